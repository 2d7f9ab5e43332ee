"""Runs a case on a device and on the oracle, and compares.

Belongs here: placing, running, guard bytes, the verdict. Must not be here: cases.
"""

from __future__ import annotations

import contextlib
import functools
import zlib
from dataclasses import dataclass

import numpy as np

from rpc_backend.errors import ComputeError, RpcBackendError
from rpc_backend.graph import Graph, Tensor, check_graph
from rpc_backend.hookspecs import DeviceOptions
from rpc_backend.interfaces import Buffer, BufferUsage, Device
from rpc_backend.registry import load_registry
from rpc_backend.testing.backend_suite.case import Case, CaseResult
from rpc_backend.testing.backend_suite.leaves import Array, Leaves
from rpc_backend.testing.backend_suite.values import cells, covered_bytes, difference, numbers

_GUARD_NBYTES = 64
_GUARD_VALUE = 0xA5
_N_ROUNDS = 2
_OVERWRITING = ("CPY", "SET_ROWS")


class _Wrong(Exception):
    """The device broke a rule; the text says which."""


@dataclass(frozen=True, slots=True)
class _Guard:
    buffer: Buffer
    offset: int
    place: str


@functools.cache
def reference_device() -> Device:
    """Return the device that says what is right."""
    return load_registry().create_devices("reference", DeviceOptions())[0]


def run_case(device: Device, case: Case, oracle: Device | None = None) -> CaseResult:
    """Run a case on `device`, compare with `oracle` (by default the reference backend), never raise.

    It fails if a result is too far off, if bytes outside the results change, if a second run of the plan
    with other inputs goes wrong, or if an allocation size is below a tensor's extent.
    """
    trial = Trial(device, case)
    try:
        refused = trial.refused_op()
        if refused:
            return CaseResult(case, "unsupported", detail=refused)
        with Trial(oracle or reference_device(), case) as right, trial:
            return _verdict(case, max(_round(case, trial, right, number) for number in range(_N_ROUNDS)))
    except _Wrong as wrong:
        return CaseResult(case, "failed", float("inf"), str(wrong))
    except Exception as error:
        return CaseResult(case, "failed", float("inf"), f"{type(error).__name__}: {error}")


def _verdict(case: Case, error: float) -> CaseResult:
    if error <= case.tolerance:
        return CaseResult(case, "passed", error)
    return CaseResult(case, "failed", error, f"{case.measure} error {error:.3g} is above {case.tolerance:.3g}")


def _round(case: Case, trial: Trial, right: Trial, number: int) -> float:
    trial.write(number)
    right.write(number)
    if case.fails_first and number == 0:
        trial.compute_badly()
        return 0.0
    trial.compute()
    right.compute()
    trial.check_unharmed(number)
    source = None
    if case.measure == "order":
        source = numbers(right.output.sources[0].type, right.cells_of(right.output.sources[0]))
    ours, oracle = trial.cells_of(trial.output), right.cells_of(right.output)
    return difference(case.measure, trial.output.type, ours, oracle, source)


class Trial:
    """One case on one device: its graph, memory, stream and plan. Use as a context manager."""

    def __init__(self, device: Device, case: Case) -> None:
        self.device = device
        self.leaves = Leaves(zlib.crc32(case.id.encode()))
        self.output = case.build(self.leaves)
        self.graph = Graph.of(self.output)
        self._buffers: list[Buffer] = []
        self._guards: list[_Guard] = []

    def refused_op(self) -> str:
        """Return the first node the device does not take, or nothing."""
        answers = self.device.supports_ops(self.graph.nodes)
        if answers != [self.device.supports_op(node) for node in self.graph.nodes]:
            raise _Wrong("supports_ops and supports_op disagree")
        return next((str(node) for node, answer in zip(self.graph.nodes, answers, strict=True) if not answer), "")

    def __enter__(self) -> Trial:
        with contextlib.ExitStack() as undo:
            undo.callback(self._free)
            self._place()
            check_graph(self.graph)
            self.stream = self.device.create_stream()
            undo.callback(self.stream.close)
            self.plan = self.device.compile(self.graph)
            undo.callback(self.plan.close)
            self._resources = undo.pop_all()
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._resources.close()

    def _free(self) -> None:
        for buffer in self._buffers:
            buffer.close()

    def _place(self) -> None:
        weights = {leaf.tensor for leaf in self.leaves.made if leaf.usage is BufferUsage.WEIGHTS}
        roots = [tensor for tensor in self.graph.tensors() if tensor.view_src is None]
        self._allocate([root for root in roots if root in weights], BufferUsage.WEIGHTS)
        self._allocate([root for root in roots if root not in weights], BufferUsage.ANY)

    def _allocate(self, tensors: list[Tensor], usage: BufferUsage) -> None:
        step, end = self.device.info.alignment, _GUARD_NBYTES
        guards = [(0, "before the first tensor")]
        for tensor, size in zip(tensors, self.device.alloc_sizes(tensors), strict=True):
            if size < tensor.nbytes or size != self.device.alloc_size(tensor):
                raise _Wrong(f"alloc_size {size} of {tensor} does not hold its {tensor.nbytes} bytes")
            tensor.offset = -(-end // step) * step
            end = tensor.offset + size + _GUARD_NBYTES
            guards.append((tensor.offset + size, f"after {tensor}"))
        if not tensors:
            return
        buffer = self.device.alloc_buffer(end, usage)
        self._buffers.append(buffer)
        buffer.fill(0, end, _GUARD_VALUE)
        for tensor in tensors:
            tensor.buffer = buffer
        self._guards += [_Guard(buffer, offset, place) for offset, place in guards]

    def write(self, number: int) -> None:
        """Write every input of a round; in the second, weights only if they change."""
        for leaf in self.leaves.made:
            once = leaf.usage is BufferUsage.WEIGHTS and leaf.contents[0] is leaf.contents[1]
            if leaf.tensor.buffer is not None and not (once and number):
                self.stream.set_tensor(leaf.tensor, memoryview(leaf.contents[number]))

    def compute(self) -> None:
        self.stream.compute(self.plan)
        self.stream.synchronize()

    def compute_badly(self) -> None:
        """Run inputs that must fail."""
        try:
            self.compute()
        except ComputeError as error:
            op = self.output.op.name if self.output.op else "leaf"
            if op not in str(error):
                raise _Wrong(f"the error does not name {op}: {error}") from error
        except RpcBackendError as error:
            raise _Wrong(f"{type(error).__name__} instead of ComputeError: {error}") from error
        else:
            raise _Wrong("bad data was computed without an error")
        self._check_guards()

    def cells_of(self, tensor: Tensor) -> Array:
        """Return the elements of a tensor, read as the bytes of it alone."""
        return cells(tensor, self._read(tensor))

    def check_unharmed(self, number: int) -> None:
        """Check that inputs, guard bytes, and what surrounds a result within its target are as before."""
        self._check_guards()
        written = {node.view_src for node in self.graph.nodes if node.op and node.op.name in _OVERWRITING}
        for leaf in self.leaves.made:
            if leaf.tensor.buffer is None or (leaf.tensor in written and leaf.tensor is not self.output.view_src):
                continue
            now, before = self._read(leaf.tensor), np.frombuffer(leaf.contents[number], np.uint8)
            changed = now != before
            if self.output.view_src is leaf.tensor:
                changed &= ~covered_bytes(self.output, now.size, self.output.view_offs)
            if np.any(changed):
                raise _Wrong(f"byte {int(np.argmax(changed))} of {leaf.tensor} was overwritten")

    def _check_guards(self) -> None:
        for guard in self._guards:
            found = np.empty(_GUARD_NBYTES, np.uint8)
            guard.buffer.read_into(guard.offset, found.data)
            if np.any(found != _GUARD_VALUE):
                raise _Wrong(f"byte {int(np.argmax(found != _GUARD_VALUE))} {guard.place} was written")

    def _read(self, tensor: Tensor) -> Array:
        out = np.empty(tensor.nbytes, np.uint8)
        if out.size:
            self.stream.get_tensor(tensor, out.data)
        return out
