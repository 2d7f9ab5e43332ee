"""Which operations the devices take: a table of operations by devices.

Belongs here: asking and counting. Must not be here: printing (`cli`), or which forms there are (`graph.examples`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from rpc_backend.graph.examples import examples
from rpc_backend.interfaces import Device


@dataclass(frozen=True, slots=True)
class OpCoverage:
    """Of one operation on one device: how many typical forms it has, and those that the device does not take."""

    n_forms: int
    lacking: tuple[str, ...]

    def __str__(self) -> str:
        if not self.lacking:
            return "yes"
        taken = self.n_forms - len(self.lacking)
        return f"{taken} of {self.n_forms}" if taken else "no"


def op_coverage(devices: Sequence[Device]) -> dict[str, list[OpCoverage]]:
    """Return for each operation its coverage on each device; each device is asked once."""
    forms = examples()
    nodes = [node for by_form in forms.values() for node in by_form.values()]
    answers = [iter(device.supports_ops(nodes)) for device in devices]
    return {op: [_coverage(list(by_form), own) for own in answers] for op, by_form in forms.items()}


def _coverage(names: Sequence[str], answers: Iterator[bool]) -> OpCoverage:
    """Take the next answers, one per form."""
    return OpCoverage(len(names), tuple(name for name in names if not next(answers)))
