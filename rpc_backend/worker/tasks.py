"""Tasks: what one SUBMIT runs, checked and compiled once.

Belongs here: the prepared form and how it runs. Must not be here: records from outside (`tensors`), tickets
(`mailbox`), or the way to other workers (`peers`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from rpc_backend.errors import ComputeError, GraphError, RpcBackendError
from rpc_backend.interfaces import Buffer, Plan, Stream


class Place(NamedTuple):
    """Bytes of a buffer that were found to lie inside it."""

    buffer: Buffer
    offset: int
    nbytes: int


class Target(NamedTuple):
    """A result that goes to the worker at `endpoint`, or stays on this one if that is empty."""

    place: Place
    endpoint: str


@dataclass(frozen=True, slots=True, eq=False)
class PreparedTask:
    """A task of one device. `nbytes_in` and `nbytes_out` are the sums of `writes` and `reads`."""

    plan: Plan
    writes: tuple[Place, ...]
    reads: tuple[Place, ...]
    receives: tuple[Place, ...]
    onward: tuple[Target, ...]
    nbytes_in: int
    nbytes_out: int

    def close(self) -> None:
        """Give back what the plan holds."""
        self.plan.close()


def run_task(task: PreparedTask, stream: Stream, inputs: memoryview, received: Sequence[memoryview]) -> None:
    """Write what came, and compute.

    Raises:
        GraphError: the bytes that came are not of the sizes of the task.
        ComputeError: the graph failed.
    """
    _check_sizes(task, inputs, received)
    at = 0
    for buffer, offset, nbytes in task.writes:
        buffer.write(offset, inputs[at : at + nbytes])
        at += nbytes
    for place, data in zip(task.receives, received, strict=True):
        place.buffer.write(place.offset, data)
    run_plan(task.plan, stream)


def run_plan(plan: Plan, stream: Stream) -> None:
    """Compute a plan, and return when it is done.

    Raises:
        ComputeError: it failed; a foreign exception is mapped to this.
    """
    try:
        stream.compute(plan)
        stream.synchronize()
    except (RpcBackendError, MemoryError):
        raise
    except Exception as error:
        raise ComputeError(f"{type(error).__name__}: {error}") from error


def read_places(places: Sequence[Place], nbytes: int) -> memoryview:
    """Return the bytes of places, `nbytes` in all, end to end, in memory of their own."""
    out = np.empty(nbytes, np.uint8).data
    at = 0
    for buffer, offset, length in places:
        buffer.read_into(offset, out[at : at + length])
        at += length
    return out


def _check_sizes(task: PreparedTask, inputs: memoryview, received: Sequence[memoryview]) -> None:
    if inputs.nbytes != task.nbytes_in:
        raise GraphError(f"the inputs of the task take {task.nbytes_in} bytes and {inputs.nbytes} came")
    for index, (place, data) in enumerate(zip(task.receives, received, strict=True)):
        if place.nbytes != data.nbytes:
            raise GraphError(
                f"input {index} of the task takes {place.nbytes} bytes from another worker and {data.nbytes} came"
            )
