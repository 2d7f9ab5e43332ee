"""Attention: what must hold beside being right, which the backend suite checks."""

from __future__ import annotations

import numpy as np
import pytest

from rpc_backend.graph import Graph, build, element_type
from rpc_backend.hookspecs import DeviceOptions
from rpc_backend.registry import load_registry
from rpc_backend_numba.attention_scratch import BLOCK, ITEM_ROWS, Region, region_offsets

HEAD, HEADS, KV_HEADS, POSITIONS, TOKENS = 40, 6, 2, 150, 37
F16, F32 = element_type("F16"), element_type("F32")


@pytest.fixture(scope="module", params=["auto", "portable"])
def device(request):
    options = DeviceOptions(threads=1, extra={"cpu_features": request.param})
    made = load_registry().create_devices("numba", options)[0]
    yield made
    made.close()


@pytest.fixture(scope="module")
def cache():
    rng = np.random.default_rng(5)
    return [rng.standard_normal((KV_HEADS, POSITIONS, HEAD)).astype(np.float16) for _ in range(2)]


@pytest.fixture(scope="module")
def queries():
    return np.random.default_rng(6).standard_normal((HEADS, TOKENS, HEAD)).astype(np.float32)


def _causal(n_positions=POSITIONS):
    last = POSITIONS - TOKENS + np.arange(TOKENS)[:, None]
    return np.where(np.arange(n_positions) <= last, 0, -np.inf).astype(np.float16)


def _attend(device, queries, keys, values, mask):
    """The result as [token, head, element]."""
    arrays = (queries, keys, values, mask)
    q, k, v, m = (build.leaf(F32 if array is queries else F16, array.shape[::-1]) for array in arrays)
    out = build.flash_attn_ext(q, k, v, m, HEAD**-0.5)
    for tensor, array in zip((q, k, v, m), arrays, strict=True):
        tensor.buffer = device.alloc_buffer(tensor.nbytes)
        tensor.buffer.write(0, memoryview(np.ascontiguousarray(array)).cast("B"))
    out.buffer = device.alloc_buffer(out.nbytes)
    device.compile(Graph([out])).run()
    result = np.empty((queries.shape[1], queries.shape[0], HEAD), np.float32)
    out.buffer.read_into(0, memoryview(result).cast("B"))
    return result


def test_a_token_does_not_depend_on_its_neighbours(device, cache, queries):
    mask = _causal()
    together = _attend(device, queries, *cache, mask)
    for first, count in ((0, 1), (5, 2), (9, 3), (20, 4), (3, 7), (0, 17), (1, 36)):
        some = slice(first, first + count)
        alone = _attend(device, queries[:, some], *cache, mask[some])
        np.testing.assert_array_equal(alone, together[some])


@pytest.mark.parametrize("n_hidden", [1, 10, BLOCK, 3 * BLOCK + 5])
def test_hidden_positions_at_the_end_do_not_matter(device, cache, queries, n_hidden):
    expected = _attend(device, queries, *cache, _causal())
    padded = [np.pad(part, ((0, 0), (0, n_hidden), (0, 0)), constant_values=np.nan) for part in cache]
    np.testing.assert_array_equal(_attend(device, queries, *padded, _causal(POSITIONS + n_hidden)), expected)


@pytest.mark.parametrize("hidden", [slice(0, 70), slice(30, 31), slice(64, 130)], ids=["first", "hole", "block"])
def test_hidden_positions_between_do_not_matter(device, cache, queries, hidden):
    mask = _causal()
    mask[:, hidden] = -np.inf
    expected = _attend(device, queries, *cache, mask)
    spoilt = [part.copy() for part in cache]
    for part in spoilt:
        part[:, hidden] = np.nan
    found = _attend(device, queries, *spoilt, mask)
    assert np.isfinite(found).all()
    np.testing.assert_array_equal(found, expected)


def test_threads_do_not_change_the_result(device, cache, queries):
    options = DeviceOptions(threads=3, extra={"cpu_features": device.info.description.split(" with ")[1].split()[0]})
    other = load_registry().create_devices("numba", options)[0]
    try:
        found = _attend(other, queries, *cache, _causal())
    finally:
        other.close()
    np.testing.assert_array_equal(found, _attend(device, queries, *cache, _causal()))


@pytest.mark.parametrize("lanes", [8, 16])
def test_regions_of_the_working_memory_are_aligned_and_apart(lanes):
    offsets, end = region_offsets(40, 24, lanes)
    assert len(offsets) == len(Region)
    assert all(offset % 64 == 0 for offset in offsets)
    assert offsets == sorted(set(offsets))
    assert end - offsets[Region.MASKS] >= 8 * ITEM_ROWS
