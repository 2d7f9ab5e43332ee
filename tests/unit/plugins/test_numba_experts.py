"""Products with chosen matrices: how they are split, and what must hold beside being right, which the suite checks."""

from __future__ import annotations

import numpy as np
import pytest

from rpc_backend.graph import Graph, build, element_type
from rpc_backend.hookspecs import DeviceOptions
from rpc_backend.interfaces import BufferUsage, HostBuffer
from rpc_backend.registry import load_registry
from rpc_backend.testing.backend_suite.leaves import Leaves
from rpc_backend.testing.devices import NullDevice
from rpc_backend_numba.builder import PlanBuilder
from rpc_backend_numba.lowering import LOWERINGS

BUFFER = HostBuffer(NullDevice(), 1 << 24)
F32, I32 = element_type("F32"), element_type("I32")
LENGTH, ROWS, EXPERTS = 256, 35, 4


def _lowered(kind, used, tokens, *, rows=ROWS, interleaved=False):
    leaves = [
        build.leaf(element_type(kind), (LENGTH, rows, EXPERTS)),
        build.leaf(F32, (LENGTH, 1, tokens)),
        build.leaf(I32, (used, tokens)),
    ]
    node = build.mul_mat_id(*leaves)
    for number, tensor in enumerate((*leaves, node)):
        tensor.buffer, tensor.offset = BUFFER, number << 21
    builder = PlanBuilder(16, lambda tensor: interleaved)
    assert LOWERINGS["MUL_MAT_ID"].supports(node)
    LOWERINGS["MUL_MAT_ID"].emit(builder, node)
    LOWERINGS["MUL_MAT_ID"].emit(builder, node)
    return [row.codes for row in builder.rows]


PREPARED = [["block_inputs.F32"], ["expert_groups"], ["expert_units.quantized"]]


def test_interleaved_matrices_go_by_panels_as_they_lie():
    tiles = [["expert_tiles", "tile.Q4_K"]]
    assert _lowered("Q4_K", 2, 1, rows=32, interleaved=True) == [*PREPARED, *tiles, *tiles]


def test_a_rest_of_rows_is_interleaved_on_the_way():
    tiles = [["expert_tiles", "tile.Q4_K"], ["expert_tiles", "interleave.Q4_K", "tile.Q4_K"]]
    assert _lowered("Q4_K", 2, 3, interleaved=True) == [*PREPARED, *tiles, *tiles]


def test_few_tokens_take_a_rest_of_rows_pair_by_pair():
    both = [["expert_tiles", "tile.Q4_K"], ["expert_rows", "rows.Q4_K"]]
    assert _lowered("Q4_K", 2, 2, interleaved=True) == [*PREPARED, *both, *both]


@pytest.mark.parametrize(("tokens", "kernel"), [(7, "expert_rows"), (8, "expert_tiles")])
def test_float_matrices_become_panels_when_many_pairs_share_them(tokens, kernel):
    assert _lowered("F16", 2, tokens)[-1][0] == kernel


def _device(threads):
    return load_registry().create_devices("numba", DeviceOptions(threads=threads))[0]


@pytest.fixture(scope="module")
def device():
    made = _device(2)
    yield made
    made.close()


def _compute(device, kind, columns, ids):
    """The products of rows of activations [token, LENGTH] with the matrices of `ids` [token, used]."""
    leaves = Leaves(seed=5)
    leaves.weight(kind, (LENGTH, ROWS, EXPERTS, 1))
    experts = build.leaf(kind, (LENGTH, ROWS, EXPERTS))
    b, chosen = build.leaf(F32, (LENGTH, 1, len(columns))), build.leaf(I32, ids.shape[::-1])
    node = build.mul_mat_id(experts, b, chosen)
    for tensor in (experts, b, chosen, node):
        usage = BufferUsage.WEIGHTS if tensor is experts else BufferUsage.ANY
        tensor.buffer = device.alloc_buffer(tensor.nbytes, usage)
    experts.buffer.write(0, memoryview(leaves.made[0].contents[0]).cast("B"))
    b.buffer.write(0, memoryview(np.ascontiguousarray(columns)).cast("B"))
    chosen.buffer.write(0, memoryview(ids.astype(np.int32)).cast("B"))
    device.compile(Graph([node])).run()
    out = np.empty((*ids.shape, ROWS), np.float32)
    node.buffer.read_into(0, memoryview(out).cast("B"))
    return out


@pytest.fixture(scope="module")
def chosen():
    random = np.random.default_rng(7)
    columns = random.standard_normal((300, LENGTH)).astype(np.float32)
    return columns, random.integers(0, EXPERTS, (300, 2))


@pytest.mark.parametrize(("name", "rounding"), [("Q4_K", 0), ("MXFP4", 0), ("F32", 1e-4)])
def test_a_chunk_of_many_rows_is_as_good_as_each_alone(device, chosen, name, rounding):
    columns, ids = chosen
    together = _compute(device, element_type(name), columns, ids)
    for token in (0, 1, 150, 299):
        alone = _compute(device, element_type(name), columns[token : token + 1], ids[token : token + 1])
        np.testing.assert_allclose(together[token], alone[0], rtol=rounding, atol=rounding)


def test_results_do_not_depend_on_the_number_of_threads(device, chosen):
    columns, ids = chosen
    other = _device(1)
    kind = element_type("Q4_K")
    np.testing.assert_array_equal(_compute(device, kind, columns, ids), _compute(other, kind, columns, ids))
    other.close()
