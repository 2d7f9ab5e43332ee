"""Compiling leaves numba as it was."""

import ctypes

from numba import njit, types

from rpc_backend_numba.code import CodeLoader, as_callable
from rpc_backend_numba.compile import compile_function
from rpc_backend_numba.simd import helper, load, store
from rpc_backend_numba.targets import choose_target

_INT64 = types.int64


@helper
def _sum(address, n):
    total = 0
    for i in range(n):
        total += load(_INT64, address + 8 * i)
    return total


def test_a_function_runs_once_loaded_and_other_functions_of_numba_run_here():
    loader = CodeLoader(choose_target("portable"))

    def kernel(values, n, out):
        store(out, _sum(values, n))

    symbol, object_file = compile_function(kernel, 3, loader.machine)
    values, out = (ctypes.c_int64 * 3)(1, 2, 40), ctypes.c_int64()
    run = as_callable(loader.load(symbol, object_file), 3)
    run(ctypes.addressof(values), 3, ctypes.addressof(out))
    assert out.value == 43
    assert njit(lambda a: a + 1)(41) == 42
