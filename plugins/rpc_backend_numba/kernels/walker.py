"""The walker: one native call that runs a whole plan.

Belongs here: the loop over a plan's table, the barrier between dependent rows, the life of a compute thread. Must
not be here: kernels.
"""

from __future__ import annotations

from typing import Any

from numba import types

from rpc_backend_numba import layout
from rpc_backend_numba.atomics import atomic_add, atomic_load, atomic_store, call_c, code_call, compare_exchange, pause
from rpc_backend_numba.simd import helper, load_at, store_at
from rpc_backend_numba.simd.layer import Layer

_SPINS, _FEW_SPINS = 2000, 50
"""Checks before a thread that waits goes to sleep: some ten microseconds, and one or two."""
_PATIENCE, _SECOND_TRY = 4, 16
"""After so many waits that all ended in sleep, others seem to need this core: few checks, but for every 16th wait."""

_W = layout.WORD
_ARRIVED, _GENERATION = layout.ARRIVED * _W, layout.GENERATION * _W
_TABLE, _ROWS, _STOP = layout.JOB_TABLE, layout.JOB_ROWS, layout.JOB_STOP
_WAIT, _POST = layout.CALL_WAIT, layout.CALL_POST
_KERNEL, _ARGUMENTS, _WAITS, _ROW_BYTES = (
    layout.ROW_KERNEL,
    layout.ROW_ARGUMENTS,
    layout.ROW_WAITS,
    layout.ROW_WORDS * _W,
)
_SEMAPHORES, _SEMAPHORE_BYTES = layout.SEMAPHORES * _W, layout.SEMAPHORE_WORDS * _W
_ASLEEP, _NAPS = layout.ASLEEP * _W, layout.SEMAPHORES + layout.NAPS

_I64 = types.int64
_call_kernel = code_call(3)


@helper
def _wait_for_post(state, ith):
    while call_c(load_at(_I64, state, _WAIT), state + _SEMAPHORES + ith * _SEMAPHORE_BYTES) != 0:
        pause()  # a signal came


@helper
def _post(state, ith):
    call_c(load_at(_I64, state, _POST), state + _SEMAPHORES + ith * _SEMAPHORE_BYTES)


@helper
def _sleep(state, ith, generation):
    """Sleep until the generation is over; who ends it takes back the mark of each sleeper, and posts to it.

    Who is still at that for an earlier generation may wake a thread too soon.
    """
    asleep = state + _SEMAPHORES + ith * _SEMAPHORE_BYTES + _ASLEEP
    while atomic_load(state + _GENERATION) == generation:
        atomic_add(asleep, 1)
        if atomic_load(state + _GENERATION) != generation and compare_exchange(asleep, 1, 0):
            return  # it ended just now, and nobody will post
        _wait_for_post(state, ith)


@helper
def _wake_sleepers(state, nth):
    for other in range(nth):
        asleep = state + _SEMAPHORES + other * _SEMAPHORE_BYTES + _ASLEEP
        if atomic_load(asleep) != 0 and compare_exchange(asleep, 1, 0):
            _post(state, other)


@helper
def _barrier(state, ith, nth):
    """Return when all `nth` threads have come here."""
    if nth == 1:
        return
    generation = atomic_load(state + _GENERATION)
    if atomic_add(state + _ARRIVED, 1) == nth - 1:
        atomic_store(state + _ARRIVED, 0)
        atomic_add(state + _GENERATION, 1)
        _wake_sleepers(state, nth)
        return
    own = state + ith * _SEMAPHORE_BYTES
    naps = load_at(_I64, own, _NAPS)
    is_patient = naps < _PATIENCE or naps % _SECOND_TRY == 0
    for _ in range(_SPINS if is_patient else _FEW_SPINS):
        if atomic_load(state + _GENERATION) != generation:
            if is_patient:
                store_at(_I64, own, _NAPS, 0)
            return
        pause()
    store_at(_I64, own, _NAPS, naps + 1)
    _sleep(state, ith, generation)


@helper
def _walk(state, ith, nth):
    row = load_at(_I64, state, _TABLE)
    for _ in range(load_at(_I64, state, _ROWS)):
        if load_at(_I64, row, _WAITS) != 0:
            _barrier(state, ith, nth)
        _call_kernel(load_at(_I64, row, _KERNEL), load_at(_I64, row, _ARGUMENTS), ith, nth)
        row += _ROW_BYTES
    _barrier(state, ith, nth)


def make_run(layer: Layer) -> Any:
    """Return `run(state, nth)`: wake the other threads and run the job as thread 0."""

    def run(state, nth):
        for other in range(1, nth):
            _post(state, other)
        _walk(state, 0, nth)

    return run


def make_serve(layer: Layer) -> Any:
    """Return `serve(state, ith, nth)`: the life of another thread: sleep, run the job, until told to stop."""

    def serve(state, ith, nth):
        while True:
            _wait_for_post(state, ith)
            if load_at(_I64, state, _STOP) != 0:
                return
            _walk(state, ith, nth)

    return serve
