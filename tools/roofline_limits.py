"""What this machine can do at most: bytes read per second, multiply-adds per second.

Belongs here: kernels that do nothing else, on the numba backend's own vector layer and target, so that they use the
instructions that its products use. Must not be here: operations of a graph (`roofline_ops`).
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from rpc_backend_numba.code import CodeLoader, as_callable
from rpc_backend_numba.compile import compile_function
from rpc_backend_numba.simd import fma, helper, load, store, zero
from rpc_backend_numba.simd.layer import Layer
from rpc_backend_numba.targets import Target

_WINDOWS, _WINDOW_NBYTES = 8, 32 << 20
"""What a thread reads in one round after the other: when a window returns, no cache holds it."""
_RING_NBYTES = 4096
"""Of operands: in the nearest cache, and never the same twice in a row, so that nothing can be computed ahead."""
_CHAINS = 8
_STEPS = 1 << 19
_TRIES = 100
_WAIT_S = 60.0

Native = Callable[..., int]


@dataclass(frozen=True, slots=True)
class Limits:
    """The best of many tries with `threads` threads at once. GB are 10^9 bytes, a MAC is one multiply-add."""

    threads: int
    read_gbps: float
    byte_gmacs: float
    float_gmacs: float

    def seconds(self, nbytes: float, macs: float, *, is_float: bool) -> float:
        """Return the least time that reading so much and computing so much can take, one beside the other."""
        peak = self.float_gmacs if is_float else self.byte_gmacs
        return max(nbytes / self.read_gbps, macs / peak) / 1e9

    def best(self, other: Limits) -> Limits:
        """Return the better of each figure: a limit that something else pushed down is none."""
        mine, others = self.as_dict(), other.as_dict()
        return Limits(**{name: max(value, others[name]) for name, value in mine.items()})

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


def measure_limits(target: Target, threads: int) -> Limits:
    """Measure all limits; takes a second or two."""
    layer, loader = Layer(target), CodeLoader(target)
    kernels = [_native(loader, make(layer), 3) for make in (make_read, make_byte_dots, make_float_dots)]
    read, byte_dots, float_dots = kernels
    memory = np.ones((_WINDOWS, threads, _WINDOW_NBYTES // 8), np.int64)
    nbytes = _best([[[window.ctypes.data, window.nbytes] for window in windows] for windows in memory], read)
    ring = np.linspace(1.0, 2.0, _RING_NBYTES // 4, dtype=np.float32)
    steps = _best([[[ring.ctypes.data, _STEPS]] * threads], byte_dots)
    float_steps = _best([[[ring.ctypes.data, _STEPS]] * threads], float_dots)
    macs, float_macs = steps * _CHAINS * 4 * layer.lanes, float_steps * _CHAINS * layer.lanes
    return Limits(threads, nbytes / 1e9, macs / 1e9, float_macs / 1e9)


def _native(loader: CodeLoader, function: Callable[..., None], n_args: int) -> Native:
    return as_callable(loader.load(*compile_function(function, n_args, loader.machine)), n_args)


def _best(rounds: Sequence[Sequence[Sequence[int]]], kernel: Native) -> float:
    """Run a kernel with one thread per list of arguments, for each round in turn; return its best work per second.

    The second argument of each list counts work. A round takes a millisecond or two, so that some are undisturbed.
    """
    best = 0.0
    for number in range(_TRIES):
        arguments = rounds[number % len(rounds)]
        best = max(best, sum(work for _, work in arguments) / _run(arguments, kernel))
    return best


def _run(arguments: Sequence[Sequence[int]], kernel: Native) -> float:
    """Return the seconds from the first thread's start to the end of the last."""
    sinks = [np.zeros(64, np.int64) for _ in arguments]
    gate = threading.Barrier(len(arguments))
    times: list[float] = []

    def work(values: Sequence[int], sink: Any) -> None:
        gate.wait(_WAIT_S)
        started = time.perf_counter()
        kernel(*values, sink.ctypes.data)
        times.extend((started, time.perf_counter()))

    threads = [threading.Thread(target=work, args=pair) for pair in zip(arguments, sinks, strict=True)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(_WAIT_S)
    return max(times) - min(times)


def make_read(layer: Layer) -> Callable[..., None]:
    """Return `read(address, nbytes, sink)`: load every byte once; `nbytes` is a multiple of 4096."""
    I32, width = layer.I32, 4 * layer.lanes
    stride = 4 * width

    def read(address, nbytes, sink):
        a, b, c, d = zero(I32), zero(I32), zero(I32), zero(I32)
        end = address + nbytes
        while address < end:
            a = a ^ load(I32, address)
            b = b ^ load(I32, address + width)
            c = c ^ load(I32, address + 2 * width)
            d = d ^ load(I32, address + 3 * width)
            address += stride
        store(sink, (a ^ b) ^ (c ^ d))

    return read


def make_byte_dots(layer: Layer) -> Callable[..., None]:
    """Return `dots(ring, n, sink)`: n steps of independent chains of byte products."""
    return _make_chains(layer, layer.I32, layer.U8, layer.I8, layer.dot4)


def make_float_dots(layer: Layer) -> Callable[..., None]:
    """Return `dots(ring, n, sink)`: n steps of independent chains of float32 multiply-adds."""

    @helper
    def multiply_add(total, value, weight):
        return fma(value, weight, total)

    return _make_chains(layer, layer.F32, layer.F32, layer.F32, multiply_add)


def _make_chains(layer: Layer, Total: Any, Value: Any, Weight: Any, step: Any) -> Callable[..., None]:
    """Eight chains of `total = step(total, value, weight)`; all share a step's value, each has its own weight."""
    width, mask = 4 * layer.lanes, _RING_NBYTES - 1

    def dots(ring, n, sink):
        p, q, r, s = load(Weight, ring), load(Weight, ring + 64), load(Weight, ring + 128), load(Weight, ring + 192)
        t, u, v, w = load(Weight, ring + 4), load(Weight, ring + 68), load(Weight, ring + 132), load(Weight, ring + 196)
        a, b, c, d = zero(Total), zero(Total), zero(Total), zero(Total)
        e, f, g, h = zero(Total), zero(Total), zero(Total), zero(Total)
        for i in range(n):
            x = load(Value, ring + ((i * width) & mask))
            a, b, c, d = step(a, x, p), step(b, x, q), step(c, x, r), step(d, x, s)
            e, f, g, h = step(e, x, t), step(f, x, u), step(g, x, v), step(h, x, w)
        store(sink, ((a + b) + (c + d)) + ((e + f) + (g + h)))

    return dots
