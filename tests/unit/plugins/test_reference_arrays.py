"""Element access of the reference backend, against numbers worked out by hand."""

from __future__ import annotations

import numpy as np
import pytest
from gguf import GGMLQuantizationType
from gguf.quants import quantize

from rpc_backend.graph import Tensor, build, element_type
from rpc_backend.graph.element_types import BF16, F16, F32, I32, Q4_0, Q8_0
from rpc_backend_reference import arrays
from rpc_backend_reference.device import ReferenceDevice

_DEVICE = ReferenceDevice()


def _placed(tensor: Tensor, content: bytes = b"") -> Tensor:
    tensor.buffer = _DEVICE.alloc_buffer(tensor.nbytes)
    tensor.buffer.write(0, memoryview(content))
    return tensor


def test_axes_are_reversed_and_strides_are_kept():
    tensor = _placed(build.leaf(I32, (3, 2, 2)), np.arange(12, dtype="<i4").tobytes())
    assert arrays.cells(tensor).shape == (1, 2, 2, 3)
    assert arrays.cells(tensor)[0, 1, 0].tolist() == [6, 7, 8]
    assert arrays.cells(build.transpose(tensor))[0, 0].tolist() == [[0, 3], [1, 4], [2, 5]]
    window = build.view(tensor, (2, 2), (4, 24, 48, 48), 4)
    assert arrays.cells(window)[0, 0].tolist() == [[1, 2], [7, 8]]


def test_cells_are_the_memory_itself():
    tensor = _placed(build.leaf(I32, (3, 2)))
    arrays.cells(build.transpose(tensor))[0, 0, 2, 1] = 9
    assert arrays.cells(tensor)[0, 0].tolist() == [[0, 0, 0], [0, 0, 9]]


def test_empty_tensors_have_empty_arrays():
    assert arrays.cells(_placed(build.leaf(F32, (4, 0, 3)))).shape == (1, 3, 0, 4)
    assert arrays.floats(_placed(build.leaf(Q8_0, (32, 0)))).shape == (1, 1, 0, 32)


def _q8_block(scale: float, values: list[int]) -> bytes:
    return np.float16(scale).tobytes() + np.array(values, np.int8).tobytes()


def test_blocks_of_strided_rows():
    rows = [_q8_block(0.5 * (row + 1), [row * 10 + i % 7 for i in range(32)]) for row in range(3)]
    stored = _placed(build.leaf(Q8_0, (64, 3)), b"".join(row + _q8_block(9.0, [1] * 32) for row in rows))
    first_half = build.view(stored, (32, 3), stored.nb)
    expected = [[0.5 * (row + 1) * (row * 10 + i % 7) for i in range(32)] for row in range(3)]
    assert arrays.floats(first_half)[0, 0].tolist() == expected


def test_a_block_of_four_bits_by_hand():
    nibbles = [(i * 3) % 16 for i in range(32)]
    packed = bytes(nibbles[i] | nibbles[i + 16] << 4 for i in range(16))
    tensor = _placed(build.leaf(Q4_0, (32,)), np.float16(-0.25).tobytes() + packed)
    assert arrays.floats(tensor)[0, 0, 0].tolist() == [-0.25 * (nibble - 8) for nibble in nibbles]


@pytest.mark.parametrize(
    ("bits", "rounded"),
    [
        (0x3F80_0000, 0x3F80),  # 1
        (0x3F80_8000, 0x3F80),  # half way, down to even
        (0x3F81_8000, 0x3F82),  # half way, up to even
        (0x3F80_8001, 0x3F81),
        (0x3F80_7FFF, 0x3F80),
        (0xBF81_8000, 0xBF82),
        (0x7F7F_FFFF, 0x7F80),  # the largest float32 becomes infinity
        (0x7F80_0000, 0x7F80),
        (0xFF80_0000, 0xFF80),
        (0x7F80_0001, 0x7FC0),  # NaN stays NaN
        (0xFFFF_FFFF, 0xFFFF),
        (0x8000_0000, 0x8000),
        (0x0000_0001, 0x0000),
    ],
)
def test_rounding_to_bf16(bits, rounded):
    values = np.array([bits], np.uint32).view(np.float32)
    assert arrays.encode(BF16, values).tolist() == [rounded]


def test_bf16_is_the_upper_half_of_float32():
    values = np.array([1.0, -2.5, 0.0, np.inf, 1e-40], np.float32)
    assert np.array_equal(arrays.decode(BF16, arrays.encode(BF16, values))[:4], values[:4])
    assert np.isnan(arrays.decode(BF16, np.array([0x7FC0], np.uint16)))[0]


def test_rounding_to_f16_and_integers():
    assert arrays.encode(F16, np.array([2049.0, 2051.0, 65504.0], np.float32)).tolist() == [2048.0, 2052.0, 65504.0]
    assert arrays.encode(I32, np.array([1.9, -1.9, 0.5], np.float32)).tolist() == [1, -1, 0]


@pytest.mark.parametrize("name", ["Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0"])
def test_blocks_survive_decoding_and_encoding(name):
    kind = element_type(name)
    values = np.random.default_rng(1).normal(size=(2, 3, 5, 96)).astype(np.float32)
    encoded = arrays.encode(kind, values)
    assert np.array_equal(encoded, quantize(values, GGMLQuantizationType[name]))
    decoded = arrays.decode(kind, encoded)
    assert decoded.shape == values.shape
    assert np.max(np.abs(decoded - values)) < np.max(np.abs(values)) / {"4": 6, "5": 14, "8": 120}[name[1]]


def test_store_writes_through_strides_only():
    target = _placed(build.leaf(F16, (4, 3)))
    arrays.store(build.view(target, (2, 3), target.nb, 2), np.arange(6.0).reshape(1, 1, 3, 2))
    assert arrays.cells(target)[0, 0].tolist() == [[0, 0, 1, 0], [0, 2, 3, 0], [0, 4, 5, 0]]
