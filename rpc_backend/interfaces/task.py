"""One visit to a device, as a record: the form of a pipeline stage.

Belongs here: the record. Must not be here: how a stream runs it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from rpc_backend.graph import Tensor

if TYPE_CHECKING:
    from rpc_backend.interfaces.device import Device, Plan

TICKET_NBYTES = 16


@dataclass(frozen=True, slots=True, eq=False)
class Onward:
    """A result that goes straight to another device, where the task that waits for its ticket receives it."""

    tensor: Tensor
    target: Device


@dataclass(frozen=True, slots=True, eq=False)
class Task:
    """Write `writes`, wait for `receives`, run `plan`, read `reads`, send `onward`: prepared once, run often.

    All tensors are placed on the device of the plan. Each `receives` is filled by another task's `onward` of the same
    size; which one, the tickets of the two runs say.
    """

    plan: Plan
    writes: tuple[Tensor, ...] = ()
    reads: tuple[Tensor, ...] = ()
    receives: tuple[Tensor, ...] = ()
    onward: tuple[Onward, ...] = ()


@dataclass(frozen=True, slots=True, eq=False)
class TaskRun:
    """What one run of a task adds: the bytes to write, and a ticket per received and per sent tensor.

    `values` must not change before the run's future is done. A ticket is 16 unguessable bytes, used once.
    """

    values: tuple[memoryview, ...] = ()
    receive_tickets: tuple[bytes, ...] = ()
    onward_tickets: tuple[bytes, ...] = ()
