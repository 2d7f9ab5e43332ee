"""The vector layer, on every target this CPU can run."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from numba import types

from rpc_backend_numba import targets
from rpc_backend_numba.code import CodeLoader, as_callable
from rpc_backend_numba.compile import compile_function
from rpc_backend_numba.formats import IQ4_NL_VALUES
from rpc_backend_numba.simd import extract, hmax, hsum, load, lookup_intrinsic, store, store_at, vector, zero
from rpc_backend_numba.simd.layer import Layer
from rpc_backend_numba.simd.tiles import transpose_square

NAMES = [name for name, needs in targets._NEEDS.items() if all(targets.cpu_features().get(item) for item in needs)]

Function = Callable[..., None]


@pytest.fixture(scope="module", params=NAMES)
def target(request: pytest.FixtureRequest) -> targets.Target:
    return targets.choose_target(request.param)


@pytest.fixture(scope="module")
def compiled(target: targets.Target) -> Callable[[Any, int], Function]:
    """Returns `compiled(function, n_args)`: machine code that takes arrays by their address, and numbers."""
    loader = CodeLoader(target)

    def compile_one(function: Any, n_args: int) -> Function:
        call = as_callable(loader.load(*compile_function(function, n_args, loader.machine)), n_args)

        def run(*args: Any) -> None:
            assert loader is not None  # the code lives as long as its loader
            call(*(arg.ctypes.data if isinstance(arg, np.ndarray) else arg for arg in args))

        return run

    return compile_one


@pytest.fixture(scope="module")
def functions(target: targets.Target, compiled: Callable[[Any, int], Function]) -> Function:
    """Returns `functions(which, source, result, n)`.

    0 exp, 1 tanh, 2 load_half, 3 store_half, 4 and 5 bf16, 6 precise_exp, 7 precise_log.
    """
    layer = Layer(target)
    F32, lanes, exp, tanh = layer.F32, layer.lanes, layer.exp, layer.tanh
    load_half, store_half = layer.load_half, layer.store_half
    load_bf16, store_bf16 = layer.load_bf16, layer.store_bf16
    precise_exp, precise_log = layer.precise_exp, layer.precise_log

    def all_functions(which, source, result, n):
        for i in range(0, n, lanes):
            if which == 0:
                store(result + 4 * i, exp(load(F32, source + 4 * i)))
            elif which == 1:
                store(result + 4 * i, tanh(load(F32, source + 4 * i)))
            elif which == 2:
                store(result + 4 * i, load_half(source + 2 * i))
            elif which == 3:
                store_half(result + 2 * i, load(F32, source + 4 * i))
            elif which == 4:
                store(result + 4 * i, load_bf16(source + 2 * i))
            elif which == 5:
                store_bf16(result + 2 * i, load(F32, source + 4 * i))
            elif which == 6:
                store(result + 4 * i, precise_exp(load(F32, source + 4 * i)))
            else:
                store(result + 4 * i, precise_log(load(F32, source + 4 * i)))

    return compiled(all_functions, 4)


def applied(functions: Function, which: int, values: np.ndarray, dtype: type) -> np.ndarray:
    result = np.empty(len(values), dtype)
    functions(which, values, result, len(values))
    return result


@pytest.fixture(scope="module")
def any_float() -> np.ndarray:
    """Float32 of every exponent, and where half precision rounds, overflows or ends."""
    rng = np.random.default_rng(0)
    bits = rng.integers(0, 2**32, 1 << 16, dtype=np.uint32).view(np.float32)
    bits[:8] = [65504, 65519.99, 65520, 65536, 2**-24, 2**-25, np.nextafter(np.float32(2**-25), 1), np.nan]
    bits[8:4104] = rng.standard_normal(4096) * 10.0 ** rng.uniform(-8, 5, 4096)
    return bits


def test_exp(functions: Function) -> None:
    x = np.linspace(-86, 88, 4096, dtype=np.float32)
    np.testing.assert_allclose(applied(functions, 0, x, np.float32), np.exp(x.astype(np.float64)), rtol=3e-7)


def test_exp_at_its_ends(functions: Function) -> None:
    x = np.full(16, -np.inf, np.float32)
    x[:7] = [0, -0.0, np.inf, np.nan, -200, 200, -100]
    found = applied(functions, 0, x, np.float32)

    np.testing.assert_array_equal(found[:6], np.array([1, 1, np.inf, np.nan, 0, np.inf], np.float32))
    assert found[6] == pytest.approx(np.exp(-100.0), rel=0.05)  # a subnormal number
    assert not np.any(found[7:])


def test_precise_functions_give_the_nearest_float(functions: Function, any_float: np.ndarray) -> None:
    small = np.random.default_rng(1).uniform(-110, 95, 1 << 16).astype(np.float32)
    for which, function in ((6, np.exp), (7, np.log)):
        for values in (any_float, small, np.abs(any_float), np.array([0, -0.0, np.inf, -np.inf] * 4, np.float32)):
            with np.errstate(all="ignore"):
                expected = function(values.astype(np.float64)).astype(np.float32)
            np.testing.assert_array_equal(applied(functions, which, values, np.float32), expected)


def test_tanh(functions: Function) -> None:
    x = np.concatenate([np.linspace(-12, 12, 4000), np.linspace(-1e-3, 1e-3, 96)]).astype(np.float32)
    np.testing.assert_allclose(applied(functions, 1, x, np.float32), np.tanh(x.astype(np.float64)), rtol=1e-6)


def test_every_half_is_read_exactly(functions: Function) -> None:
    halves = np.arange(1 << 16, dtype=np.uint16)
    found = applied(functions, 2, halves, np.float32)

    np.testing.assert_array_equal(found, halves.view(np.float16).astype(np.float32))


def test_floats_round_to_half_like_numpy(functions: Function, any_float: np.ndarray) -> None:
    found = applied(functions, 3, any_float, np.float16)
    with np.errstate(over="ignore"):
        np.testing.assert_array_equal(found, any_float.astype(np.float16))


def test_bf16_is_the_upper_half_of_a_float(functions: Function, any_float: np.ndarray) -> None:
    halves = np.arange(1 << 16, dtype=np.uint16)
    wide = (halves.astype(np.uint32) << 16).view(np.float32)
    np.testing.assert_array_equal(applied(functions, 4, halves, np.float32), wide)

    back = applied(functions, 5, any_float, np.uint16)
    bits = any_float.view(np.uint32).astype(np.uint64)
    rounded = ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)
    is_number = ~np.isnan(any_float)
    np.testing.assert_array_equal(back[is_number], rounded[is_number])
    assert np.all(np.isnan((back[~is_number].astype(np.uint32) << 16).view(np.float32)))


def test_sums_lookups_and_transposition(target: targets.Target, compiled: Callable[[Any, int], Function]) -> None:
    layer = Layer(target)
    F32, lanes, transpose = layer.F32, layer.lanes, transpose_square(layer.F32)
    table = tuple(value + 128 for value in IQ4_NL_VALUES)
    lookup, U8 = lookup_intrinsic(table, target.byte_shuffle), vector(types.uint8, 32)

    def several(matrix, transposed, places, numbers):
        transpose(matrix, 4 * lanes, transposed)
        store(places, lookup(load(U8, places)))
        first = load(F32, matrix)
        store_at(types.float32, numbers, 0, hsum(first))
        store_at(types.float32, numbers, 1, hmax(first))
        store_at(types.float32, numbers, 2, extract(first, lanes - 1))
        store_at(types.float32, numbers, 3, hsum(zero(F32)))

    matrix = np.random.default_rng(2).permutation(lanes * lanes).astype(np.float32).reshape(lanes, lanes)
    transposed, numbers = np.empty_like(matrix), np.empty(4, np.float32)
    places = np.arange(32, dtype=np.uint8) % 16
    compiled(several, 4)(matrix, transposed, places, numbers)

    np.testing.assert_array_equal(transposed, matrix.T)
    np.testing.assert_array_equal(places, np.tile(np.array(table, np.uint8), 2))
    np.testing.assert_array_equal(numbers, [matrix[0].sum(), matrix[0].max(), matrix[0, -1], 0])


def test_an_object_file_loads_more_than_once() -> None:
    target = targets.choose_target()

    def put(place, value):
        store_at(types.int64, place, 0, value + 1)

    loader = CodeLoader(target)
    symbol, object_file = compile_function(put, 2, loader.machine)
    place = np.zeros(1, np.int64)
    first, other = CodeLoader(target), CodeLoader(target)
    first.load(symbol, object_file)
    as_callable(other.load(symbol, object_file), 2)(place.ctypes.data, 41)

    assert place[0] == 42
