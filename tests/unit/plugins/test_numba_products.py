"""Matrix products: what must hold beside being right, which the backend suite checks."""

from __future__ import annotations

import numpy as np
import pytest

from rpc_backend.graph import Graph, build, element_type
from rpc_backend.hookspecs import DeviceOptions
from rpc_backend.registry import load_registry
from rpc_backend.testing.backend_suite.leaves import Leaves

ROWS, LENGTH, COLUMNS = 19, 512, 14
F32 = element_type("F32")


@pytest.fixture(scope="module")
def device():
    made = load_registry().create_devices("numba", DeviceOptions(threads=1))[0]
    yield made
    made.close()


def _product(device, kind, weights, columns):
    a, b = build.leaf(kind, (LENGTH, ROWS)), build.leaf(F32, (LENGTH, len(columns)))
    c = build.mul_mat(a, b)
    for tensor in (a, b, c):
        tensor.buffer = device.alloc_buffer(tensor.nbytes)
    a.buffer.write(0, memoryview(weights).cast("B"))
    b.buffer.write(0, memoryview(columns).cast("B"))
    device.compile(Graph([c])).run()
    out = np.empty((len(columns), ROWS), np.float32)
    c.buffer.read_into(0, memoryview(out).cast("B"))
    return out


@pytest.mark.parametrize("name", ["Q4_1", "Q8_0", "Q4_K", "Q6_K"])
def test_a_column_does_not_depend_on_its_neighbours(device, name):
    rng = np.random.default_rng(3)
    kind = element_type(name)
    leaves = Leaves(seed=3)
    leaves.weight(kind, (LENGTH, ROWS, 1, 1))
    weights = leaves.made[0].contents[0]
    columns = rng.standard_normal((COLUMNS, LENGTH)).astype(np.float32)
    together = _product(device, kind, weights, columns)
    for count in (1, 2, 3, 4, 5, 9, 13):
        np.testing.assert_array_equal(_product(device, kind, weights, columns[:count]), together[:count])
