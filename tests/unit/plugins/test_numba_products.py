"""Matrix products: what must hold beside being right, which the backend suite checks."""

from __future__ import annotations

import numpy as np
import pytest

from rpc_backend.graph import Graph, build, element_type
from rpc_backend.hookspecs import DeviceOptions
from rpc_backend.registry import load_registry
from rpc_backend.testing.backend_suite.leaves import Leaves
from rpc_backend_numba import targets
from rpc_backend_numba.formats import FORMATS


def runnable_targets():
    return [name for name, needs in targets._NEEDS.items() if all(targets.cpu_features().get(item) for item in needs)]


ROWS, LENGTH, COLUMNS = 19, 512, 61
F32 = element_type("F32")


@pytest.fixture(scope="module", params=runnable_targets())
def device(request):
    options = DeviceOptions(threads=1, extra={"cpu_features": request.param})
    made = load_registry().create_devices("numba", options)[0]
    yield made
    made.close()


def _product(device, kind, weights, columns):
    rows = len(weights)
    a, b = build.leaf(kind, (LENGTH, rows)), build.leaf(F32, (LENGTH, len(columns)))
    c = build.mul_mat(a, b)
    for tensor in (a, b, c):
        tensor.buffer = device.alloc_buffer(tensor.nbytes)
    a.buffer.write(0, memoryview(weights).cast("B"))
    b.buffer.write(0, memoryview(columns).cast("B"))
    device.compile(Graph([c])).run()
    out = np.empty((len(columns), rows), np.float32)
    c.buffer.read_into(0, memoryview(out).cast("B"))
    return out


def _operands(kind):
    """Weights, a row of bytes each, and columns of activations."""
    leaves = Leaves(seed=3)
    leaves.weight(kind, (LENGTH, ROWS, 1, 1))
    weights = np.frombuffer(leaves.made[0].contents[0], np.uint8).reshape(ROWS, -1)
    return weights, np.random.default_rng(3).standard_normal((COLUMNS, LENGTH)).astype(np.float32)


@pytest.mark.parametrize("name", ["Q4_1", "Q5_0", "Q8_0", "IQ4_NL", "Q2_K", "Q4_K", "Q5_K", "Q6_K", "IQ4_XS"])
def test_a_column_does_not_depend_on_its_neighbours(device, name):
    kind = element_type(name)
    weights, columns = _operands(kind)
    together = _product(device, kind, weights, columns)
    for count in (1, 2, 3, 4, 5, 9, 13, 14, 47, 48, 57):
        np.testing.assert_array_equal(_product(device, kind, weights, columns[:count]), together[:count])


@pytest.mark.parametrize("name", ["Q4_1", "Q4_K"])
def test_a_row_does_not_depend_on_its_neighbours(device, name):
    kind = element_type(name)
    weights, columns = _operands(kind)
    together = _product(device, kind, weights, columns)
    for count in (1, 7, 8, 9, 16, 17):
        np.testing.assert_array_equal(_product(device, kind, weights[:count], columns), together[:, :count])


@pytest.mark.skipif("avx512" not in runnable_targets(), reason="this CPU has no AVX-512")
def test_ways_to_multiply_bytes_give_the_same_sums():
    """What bytes can hold never overflows, with AVX2's instructions no more than with AVX-512's."""
    found = []
    for name in ("avx512", "avx2"):
        options = DeviceOptions(threads=1, extra={"cpu_features": name})
        device = load_registry().create_devices("numba", options)[0]
        found.append([_product(device, element_type(name), *_extreme(name)) for name in ("Q8_0", "Q5_0", "Q6_K")])
        device.close()
    for wide, narrow in zip(*found, strict=True):
        np.testing.assert_array_equal(wide, narrow)


def _extreme(name):
    """Weights with all bits set or none next to any, but for numbers that scale them, and activations of one size."""
    weights, columns = _operands(element_type(name))
    weights, scales = weights.copy(), {"Q8_0": slice(0, 2), "Q5_0": slice(0, 2), "Q6_K": slice(192, 210)}[name]
    blocks = weights.reshape(ROWS, -1, FORMATS[name].block_nbytes)
    kept = blocks[:, :, scales].copy()
    blocks[: ROWS // 3], blocks[ROWS // 3 : 2 * ROWS // 3] = 0, 255
    if name == "Q8_0":
        blocks[0], blocks[1] = 128, 127
    blocks[:, :, scales] = kept
    return weights, np.concatenate([np.sign(columns[:7]), columns[7:]])
