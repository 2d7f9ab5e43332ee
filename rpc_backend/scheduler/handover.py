"""Tensors that a run hands over to a later one, from device to device and past the host.

Belongs here: what is handed over, and its end if no run takes it. Must not be here: how it travels (`pipeline`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from rpc_backend.graph import Tensor
from rpc_backend.interfaces import Device


@dataclass(frozen=True, slots=True)
class Handover:
    """What runs of a graph give to later runs, and take from earlier ones; a taken tensor is one of its inputs.

    `gives` names the device on which the later run takes each tensor.
    """

    gives: Mapping[Tensor, int] = field(default_factory=dict)
    takes: tuple[Tensor, ...] = ()


NO_HANDOVER = Handover()


class Given:
    """A tensor that a run gives, on its way to `device` or there already. One later run may take it."""

    def __init__(self, tensor: Tensor, index: int, device: Device, ticket: bytes) -> None:
        self.tensor = tensor
        self.device_index = index
        self.ticket = ticket
        self.is_open = True
        self._device = device

    def take(self) -> bytes:
        """Return the ticket; from now on a run will take the tensor."""
        self.is_open = False
        return self.ticket

    def discard(self) -> None:
        """No run will take it: its device need not keep it. Does nothing once a run takes it."""
        if self.is_open:
            self.is_open = False
            self._device.bury_tickets([self.ticket])

    def fail(self, reason: str) -> None:
        """It will not come: whoever takes it, or will, fails with `reason`."""
        self._device.drop_tickets([self.ticket], reason)
