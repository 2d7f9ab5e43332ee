"""Dot products of bytes: exact in every way there is, and of the instructions that a CPU has."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import product
from typing import Any

import llvmlite.binding as llvm
import numpy as np
import pytest
from llvmlite import ir
from numba import types

from rpc_backend_numba import targets
from rpc_backend_numba.code import CodeLoader, as_callable
from rpc_backend_numba.compile import compile_function
from rpc_backend_numba.formats import (
    FORMATS,
    INPUT_MINUS_8_SUM,
    INPUT_MINUS_32_SUMS,
    INPUT_MINUS_128_SUM,
    INPUT_NBYTES,
    INPUT_SCALE,
    INPUT_SUMS_OF_HALVES,
    INPUT_SUMS_OF_TWO,
    UNIT_COLUMNS,
)
from rpc_backend_numba.simd import helper, load, lookup_intrinsic, splat, store, vector, zero
from rpc_backend_numba.simd.arithmetic import broadcast
from rpc_backend_numba.simd.byte_dots import ByteDots
from rpc_backend_numba.simd.layer import Layer
from rpc_backend_numba.simd.memory import emit_load, emit_store
from rpc_backend_numba.simd.shuffles import emit_lookup
from rpc_backend_numba.simd.tiles import tile_end_block, tile_load, tile_step_quantized, tile_store, tile_zero
from rpc_backend_numba.simd.words import load_words

NAMES = [name for name, needs in targets._NEEDS.items() if all(targets.cpu_features().get(item) for item in needs)]
OTHER_WAYS = {"avx512": ("pairs", "widened"), "avx2": ("widened",), "portable": ()}
WAYS = [(name, None) for name in NAMES] + [(name, how) for name in NAMES for how in OTHER_WAYS[name]]
LARGEST = (1, 15, 63, 127, 128, 140, 255)
FORM_NAMES = ("Q2_K", "Q3_K", "Q4_0", "Q4_K", "Q5_0", "Q6_K", "Q8_0", "MXFP4")

Function = Callable[..., None]


@pytest.fixture(scope="module", params=WAYS, ids=str)
def layer(request: pytest.FixtureRequest) -> Layer:
    """The layer of a target, or the same vectors with another way to multiply bytes that this CPU has too."""
    name, how = request.param
    target = targets.choose_target(name)
    return Layer(replace(target, byte_dot=how) if how else target)


@pytest.fixture(scope="module")
def compiled(layer: Layer) -> Callable[[Any, int], Function]:
    loader = CodeLoader(layer.target)

    def compile_one(function: Any, n_args: int) -> Function:
        call = as_callable(loader.load(*compile_function(function, n_args, loader.machine)), n_args)

        def run(*args: Any) -> None:
            assert loader is not None  # the code lives as long as its loader
            call(*(arg.ctypes.data if isinstance(arg, np.ndarray) else arg for arg in args))

        return run

    return compile_one


def _each_with_each(largest: int, lanes: int) -> tuple[np.ndarray, np.ndarray]:
    """Four unsigned with four signed bytes, at their ends and anywhere: whole vectors of them."""
    fours = list(product((0, largest), repeat=4))
    signed = list(product((-128, -127, 127), repeat=4))
    a, b = (np.array(side).reshape(-1) for side in zip(*product(fours, signed), strict=True))
    rng = np.random.default_rng(largest)
    n_any = 4096 + -len(a) % (4 * lanes)
    a = np.concatenate([a, rng.integers(0, largest + 1, n_any)]).astype(np.uint8)
    return a, np.concatenate([b, rng.integers(-128, 128, n_any)]).astype(np.int8)


def test_all_unsigned_and_all_signed_bytes(layer: Layer, compiled: Callable[[Any, int], Function]) -> None:
    U8, I8, I32, nbytes = layer.U8, layer.I8, layer.I32, 4 * layer.lanes
    one, nibble, six, seven, eight, odd, all_bits = (layer.dot4_up_to(largest) for largest in LARGEST)

    def products(which, a, b, result, n):
        for at in range(0, n, nbytes):
            total, unsigned, signed = load(I32, result + at), load(U8, a + at), load(I8, b + at)
            if which == 0:
                total = one(total, unsigned, signed)
            elif which == 1:
                total = nibble(total, unsigned, signed)
            elif which == 2:
                total = six(total, unsigned, signed)
            elif which == 3:
                total = seven(total, unsigned, signed)
            elif which == 4:
                total = eight(total, unsigned, signed)
            elif which == 5:
                total = odd(total, unsigned, signed)
            else:
                total = all_bits(total, unsigned, signed)
            store(result + at, total)

    run = compiled(products, 5)
    for which, largest in enumerate(LARGEST):
        a, b = _each_with_each(largest, layer.lanes)
        start = np.random.default_rng(1).integers(-(2**20), 2**20, len(a) // 4).astype(np.int32)
        result = start.copy()
        run(which, a, b, result, len(a))

        expected = start + (a.astype(np.int32) * b).reshape(-1, 4).sum(axis=1)
        np.testing.assert_array_equal(result, expected)


def _make_step(layer: Layer, form_name: str, n_columns: int) -> Any:
    """Return `step(weights, inputs, out)`: products of one group of weights [8 words][lane], with scales of 1 and 2."""
    F32, unit_columns = layer.F32, min(n_columns, UNIT_COLUMNS)
    words = load_words(layer.lanes, 8, 4 * layer.lanes)
    step = tile_step_quantized(F32, n_columns, unit_columns, FORMATS[form_name], layer.target.byte_dot)
    start, put, out_stride = tile_zero(F32, n_columns), tile_store(F32, n_columns), 4 * layer.lanes

    @helper
    def run(weights, inputs, out):
        group = (words(weights), splat(F32, 1.0), splat(F32, 2.0), zero(F32))
        put(step(start(), group, inputs, unit_columns * INPUT_NBYTES), out, out_stride, n_columns)

    return run


@pytest.mark.parametrize("n_columns", [1, 4])
def test_every_format_at_the_ends_of_its_weights(
    layer: Layer, compiled: Callable[[Any, int], Function], n_columns: int
) -> None:
    a, b, c, d, e, f, g, h = (_make_step(layer, name, n_columns) for name in FORM_NAMES)

    def steps(which, weights, inputs, out):
        if which == 0:
            a(weights, inputs, out)
        elif which == 1:
            b(weights, inputs, out)
        elif which == 2:
            c(weights, inputs, out)
        elif which == 3:
            d(weights, inputs, out)
        elif which == 4:
            e(weights, inputs, out)
        elif which == 5:
            f(weights, inputs, out)
        elif which == 6:
            g(weights, inputs, out)
        else:
            h(weights, inputs, out)

    run = compiled(steps, 4)
    rng = np.random.default_rng(5)
    for which, name in enumerate(FORM_NAMES):
        form = FORMATS[name]
        ends = (np.zeros((layer.lanes, 32)), np.full((layer.lanes, 32), form.largest))
        anything = [rng.integers(0, form.largest + 1, (layer.lanes, 32)) for _ in range(4)]
        alternating = [np.where(np.arange(32) % 2, value, ends[1]) for value in (0, form.zero_point)]
        for weights in (*ends, *anything, *alternating):
            for columns in _columns(rng, n_columns):
                out = np.empty((n_columns, layer.lanes), np.float32)
                run(which, _words(weights), _cells(columns), out)
                np.testing.assert_array_equal(out, _expected(form, weights, columns))


def _columns(rng: np.random.Generator, n_columns: int) -> list[np.ndarray]:
    """Activations as `product_inputs` makes them: within 127 of zero."""
    ends = np.resize([127, -127], (n_columns, 32))
    same = np.broadcast_to(np.resize([[127], [-127]], (n_columns, 1)), (n_columns, 32))
    return [np.full((n_columns, 32), -127), same, ends, rng.integers(-127, 128, (n_columns, 32))]


def _words(weights: np.ndarray) -> np.ndarray:
    """[lane][32] as words of four bytes, [8][lane]."""
    return np.ascontiguousarray(weights.astype(np.uint8).view(np.uint32).T)


def _cells(columns: np.ndarray) -> np.ndarray:
    cells = np.zeros((len(columns), INPUT_NBYTES), np.uint8)
    halves = columns.reshape(len(columns), 2, 16).sum(axis=2)
    cells[:, :32] = columns.astype(np.int8).view(np.uint8)
    numbers = cells.view(np.int32)
    numbers[:, INPUT_MINUS_8_SUM // 4] = -8 * halves.sum(axis=1)
    numbers[:, INPUT_MINUS_32_SUMS // 4 : INPUT_MINUS_32_SUMS // 4 + 2] = -32 * halves
    numbers[:, INPUT_MINUS_128_SUM // 4] = -128 * halves.sum(axis=1)
    cells.view(np.float32)[:, INPUT_SCALE // 4] = 1.0
    return cells


def _expected(form: Any, weights: np.ndarray, columns: np.ndarray) -> np.ndarray:
    """Whole numbers that float32 holds."""
    products = columns[:, None, :].astype(np.int64) * (weights.astype(np.int64) - form.zero_point)
    first, last = products[:, :, :16].sum(axis=2), products[:, :, 16:].sum(axis=2)
    return first + (2 * last if form.scale_span == 16 else last)


def _make_end(layer: Layer, form_name: str) -> Any:
    """Return `end(numbers, inputs, out)`: a block's minimums times four columns, added to one and put behind one."""
    F32, form, out_stride = layer.F32, FORMATS[form_name], 4 * layer.lanes
    add = tile_end_block(F32, 4, UNIT_COLUMNS, form, layer.target.byte_dot)
    fetch, put = tile_load(F32, 4), tile_store(F32, 4)

    @helper
    def end(numbers, inputs, out):
        put(add(fetch(out), fetch(out + 4 * out_stride), numbers, inputs, 0), out, out_stride, 4)

    return end


def test_minimums_of_a_block_at_the_ends(layer: Layer, compiled: Callable[[Any, int], Function]) -> None:
    one_span, two_spans = _make_end(layer, "Q4_K"), _make_end(layer, "Q2_K")

    def ends(which, numbers, inputs, out):
        if which == 0:
            one_span(numbers, inputs, out)
        else:
            two_spans(numbers, inputs, out)

    run = compiled(ends, 4)
    rng = np.random.default_rng(6)
    for which, (largest, elements) in enumerate(((63, 32), (15, 16))):
        shapes, limit = ((layer.lanes, 256 // elements), (4, 256 // elements)), 127 * elements
        anything = rng.integers(0, largest + 1, shapes[0]), rng.integers(-limit, limit + 1, shapes[1])
        for minimums, sums in ((np.full(shapes[0], largest), np.full(shapes[1], -limit)), anything):
            out = np.full((8, layer.lanes), 3, np.float32)
            run(which, _numbers_of(minimums), _cells_of_sums(sums), out)

            expected = 3 + 0.25 * (3 - 0.5 * (sums @ minimums.T))  # float32 holds it
            np.testing.assert_array_equal(out[:4], expected)


def _numbers_of(minimums: np.ndarray) -> np.ndarray:
    """What a block's `prepare` leaves: scales, [lane][minimum] as pairs of int16 with a lane per row, their factor."""
    n = minimums.shape[1]
    numbers = np.zeros((n + n // 2 + 1, len(minimums)), np.int32)
    numbers[n:-1] = np.ascontiguousarray(minimums.astype(np.int16)).view(np.int32).T
    numbers[-1] = np.float32(-0.5).view(np.int32)
    return numbers


def _cells_of_sums(sums: np.ndarray) -> np.ndarray:
    """A block of cells, [group][column], of the sums [column][8 groups or 16 halves]."""
    cells = np.zeros((8, len(sums), INPUT_NBYTES // 4), np.int32)
    pairs = np.ascontiguousarray(sums.astype(np.int16)).view(np.int32).T
    if len(pairs) == 4:
        cells[::2, :, INPUT_SUMS_OF_TWO // 4] = pairs
    else:
        cells[:, :, INPUT_SUMS_OF_HALVES // 4] = pairs
    cells[:, :, INPUT_SCALE // 4] = np.float32(0.25).view(np.int32)
    return cells


def test_lookups_of_any_place(layer: Layer, compiled: Callable[[Any, int], Function]) -> None:
    table = tuple(np.random.default_rng(3).integers(0, 256, 16).tolist())
    U8, look = vector(types.uint8, 32), lookup_intrinsic(table, layer.target.byte_shuffle)

    def lookup(places):
        store(places, look(load(U8, places)))

    places = np.random.default_rng(4).permutation(32).astype(np.uint8) % 16
    found = places.copy()
    compiled(lookup, 1)(found)
    np.testing.assert_array_equal(found, np.array(table, np.uint8)[places])


def _assembly(how: targets.ByteDot, largest: int, triple: str, features: str) -> str:
    """Code for four columns of a group, for a CPU of those features."""
    module = ir.Module()
    address, bytes32, ints = ir.IntType(64), ir.VectorType(ir.IntType(8), 32), ir.VectorType(ir.IntType(32), 8)
    function = ir.Function(module, ir.FunctionType(ir.VoidType(), [address] * 3), "dots")
    builder = ir.IRBuilder(function.append_basic_block())
    weights, columns, out = function.args

    def inputs(column: int, quad: int) -> Any:
        word = emit_load(builder, builder.add(columns, address(32 * column + 4 * quad)), ir.IntType(32))
        return builder.bitcast(broadcast(builder, word, 8), bytes32)

    quads = [emit_load(builder, builder.add(weights, address(32 * i)), bytes32) for i in range(8)]
    starts = [ir.Constant(ints, None)] * 4
    for column, total in enumerate(ByteDots(how, largest, 1).emit(builder, starts, quads, inputs)):
        emit_store(builder, builder.add(out, address(32 * column)), total)
    builder.ret_void()
    return _code(module, triple, features)


def _code(module: ir.Module, triple: str, features: str) -> str:
    llvm.initialize_all_targets()
    llvm.initialize_all_asmprinters()
    try:
        found = llvm.Target.from_triple(triple)
    except RuntimeError as error:
        pytest.skip(f"llvmlite has no such target: {error}")
    machine = found.create_target_machine(features=features, opt=3)
    parsed = llvm.parse_assembly(str(module))
    passes = llvm.create_pass_builder(machine, llvm.create_pipeline_tuning_options(speed_level=3))
    passes.getModulePassManager().run(parsed, passes)
    return machine.emit_assembly(parsed)


@pytest.mark.parametrize("largest", [15, 255])
@pytest.mark.parametrize("has_vnni", [True, False])
def test_avx2_uses_the_instruction_of_avx_vnni_only_where_it_is(
    monkeypatch: pytest.MonkeyPatch, has_vnni: bool, largest: int
) -> None:
    avx512 = dict.fromkeys(("avx512f", "avx512bw", "avx512vl", "avx512dq", "avx512vnni"), True)
    features = {**dict.fromkeys(("avx2", "f16c", "fma", "sse2"), True), **avx512, "avxvnni": has_vnni}
    monkeypatch.setattr(targets, "cpu_features", lambda: features)
    target = targets.choose_target("avx2")
    code = _assembly(target.byte_dot, largest, "x86_64-linux-gnu", target.features)

    assert code.count("{vex}\tvpdpbusd") == (32 if has_vnni else 0)  # the encoding of AVX-VNNI, not of AVX-512
    assert code.count("vpdpbusd") == (32 if has_vnni else 0)
    assert code.count("vpmaddubsw") == (0 if has_vnni else 32)
    assert "zmm" not in code


@pytest.mark.parametrize("largest", [15, 255])
def test_arm_multiplies_bytes_by_the_vector(largest: int) -> None:
    fast = _assembly("signed", largest, "aarch64-linux-gnu", "+neon,+dotprod")
    plain = _assembly("widened", largest, "aarch64-linux-gnu", "+neon")

    assert fast.count("sdot\t") == 64
    assert plain.count("smull\t") + plain.count("smlal\t") == 128
    for code in (fast, plain):  # no lane by itself
        assert not any(name in code for name in ("smov\t", "umov\t", "ldrsb\t", "ldrb\t", "madd\t"))


@pytest.mark.parametrize(("how", "n_lookups"), [("tbl", 2), ("selected", 0)])
def test_arm_looks_bytes_up_by_the_vector(how: targets.ByteLookup, n_lookups: int) -> None:
    module, address = ir.Module(), ir.IntType(64)
    function = ir.Function(module, ir.FunctionType(ir.VoidType(), [address]), "lookup")
    builder = ir.IRBuilder(function.append_basic_block())
    places = emit_load(builder, function.args[0], ir.VectorType(ir.IntType(8), 32))
    emit_store(builder, function.args[0], emit_lookup(builder, tuple(range(100, 116)), how, places))
    builder.ret_void()
    code = _code(module, "aarch64-linux-gnu", "+neon")

    assert code.count("tbl\t") == n_lookups
    assert "ldrb\t" not in code
