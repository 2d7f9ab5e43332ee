"""The walker: one native call that runs a whole plan.

Belongs here: the loop over a plan's table, the barrier between dependent rows, the life of a compute thread. Must
not be here: kernels.
"""

from __future__ import annotations

from typing import Any

from numba import types

from rpc_backend_numba import layout
from rpc_backend_numba.atomics import atomic_add, atomic_load, atomic_store, call_c, code_call, pause
from rpc_backend_numba.simd import helper, load_at
from rpc_backend_numba.simd.layer import Layer

SPINS_BEFORE_YIELD = 2000

_W = layout.WORD
_ARRIVED, _GENERATION = layout.ARRIVED * _W, layout.GENERATION * _W
_TABLE, _ROWS, _STOP = layout.JOB_TABLE, layout.JOB_ROWS, layout.JOB_STOP
_YIELD, _WAIT, _POST = layout.CALL_YIELD, layout.CALL_WAIT, layout.CALL_POST
_KERNEL, _ARGUMENTS, _WAITS, _ROW_BYTES = (
    layout.ROW_KERNEL,
    layout.ROW_ARGUMENTS,
    layout.ROW_WAITS,
    layout.ROW_WORDS * _W,
)
_SEMAPHORES, _SEMAPHORE_BYTES = layout.SEMAPHORES * _W, layout.SEMAPHORE_WORDS * _W

_I64 = types.int64
_call_kernel = code_call(3)


@helper
def _barrier(state, nth):
    """Return when all `nth` threads have come here; a thread that waits long lets others run."""
    if nth == 1:
        return
    generation = atomic_load(state + _GENERATION)
    if atomic_add(state + _ARRIVED, 1) == nth - 1:
        atomic_store(state + _ARRIVED, 0)
        atomic_store(state + _GENERATION, generation + 1)
        return
    spins = 0
    while atomic_load(state + _GENERATION) == generation:
        pause()
        spins += 1
        if spins >= SPINS_BEFORE_YIELD:
            call_c(load_at(_I64, state, _YIELD), 0)


@helper
def _walk(state, ith, nth):
    row = load_at(_I64, state, _TABLE)
    for _ in range(load_at(_I64, state, _ROWS)):
        if load_at(_I64, row, _WAITS) != 0:
            _barrier(state, nth)
        _call_kernel(load_at(_I64, row, _KERNEL), load_at(_I64, row, _ARGUMENTS), ith, nth)
        row += _ROW_BYTES
    _barrier(state, nth)


def make_run(layer: Layer) -> Any:
    """Return `run(state, nth)`: wake the other threads and run the job as thread 0."""

    def run(state, nth):
        for other in range(1, nth):
            call_c(load_at(_I64, state, _POST), state + _SEMAPHORES + other * _SEMAPHORE_BYTES)
        _walk(state, 0, nth)

    return run


def make_serve(layer: Layer) -> Any:
    """Return `serve(state, ith, nth)`: the life of another thread: sleep, run the job, until told to stop."""

    def serve(state, ith, nth):
        while True:
            while call_c(load_at(_I64, state, _WAIT), state + _SEMAPHORES + ith * _SEMAPHORE_BYTES) != 0:
                pause()
            if load_at(_I64, state, _STOP) != 0:
                return
            _walk(state, ith, nth)

    return serve
