"""The records of the suite: a case and what came of it.

Belongs here: records. Must not be here: cases themselves, or running them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from rpc_backend.graph import Tensor
from rpc_backend.testing.backend_suite.leaves import Leaves

Build = Callable[[Leaves], Tensor]
"""Makes the inputs and returns the node under test."""

Measure = Literal["nmse", "relative", "exact", "order"]
"""How results are compared with the oracle's: normalised mean squared error; greatest relative error of an
element; equal values; indices that sort alike."""

Status = Literal["passed", "unsupported", "failed"]


@dataclass(frozen=True, slots=True)
class Case:
    """One operation on one arrangement of inputs.

    `tolerance` is the greatest error that passes, in the unit of `measure`. With `fails_first` the first
    round of inputs holds an error in its data: a ComputeError must come, and the second round must work.
    """

    id: str
    op: str
    build: Build
    measure: Measure = "nmse"
    tolerance: float = 1e-6
    fails_first: bool = False


@dataclass(frozen=True, slots=True)
class CaseResult:
    """What came of a case; `error` is in the unit of the case's measure, `detail` says what is wrong."""

    case: Case
    status: Status
    error: float = 0.0
    detail: str = ""


def case_id(op: str, *parts: object) -> str:
    """Return `OP[part,part,…]`, without empty parts."""
    return f"{op}[{','.join(str(part) for part in parts if str(part))}]"


def extents(*ne: int) -> str:
    """Return extents as `64x3x2`, without trailing ones."""
    kept = list(ne)
    while len(kept) > 1 and kept[-1] == 1:
        kept.pop()
    return "x".join(map(str, kept))
