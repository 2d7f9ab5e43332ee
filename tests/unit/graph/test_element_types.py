"""The table of element types against the gguf package, which carries ggml's numbers."""

from __future__ import annotations

import pytest
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType

from rpc_backend.errors import GraphError
from rpc_backend.graph.element_types import BF16, ELEMENT_TYPES, F32, FLOATS, Q4_K, Q8_0, QUANTIZED, element_type


@pytest.mark.parametrize("kind", ELEMENT_TYPES.values(), ids=lambda kind: kind.name)
def test_name_number_and_sizes_are_those_of_ggml(kind):
    theirs = GGMLQuantizationType(kind.code)

    assert theirs.name == kind.name
    assert GGML_QUANT_SIZES[theirs] == (kind.block_size, kind.block_nbytes)


def test_every_type_of_the_project_is_there():
    wanted = {
        "F32", "F16", "BF16", "I8", "I16", "I32", "I64", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0",
        "Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K", "IQ4_NL", "IQ4_XS", "MXFP4",
    }  # fmt: skip

    assert {kind.name for kind in ELEMENT_TYPES.values()} == wanted


def test_quantised_types_have_no_numpy_type():
    assert all(kind.dtype is None and kind.is_quantized for kind in QUANTIZED)
    assert not any(kind.is_quantized for kind in FLOATS)
    assert len(QUANTIZED) == 13
    assert BF16.dtype is not None
    assert BF16.dtype.itemsize == 2


def test_blocks_are_aligned_to_their_widest_field_and_elements_to_their_size():
    assert [element_type(name).alignment for name in ("F32", "I64", "BF16", "Q8_0", "MXFP4")] == [4, 8, 2, 2, 1]


def test_rows_are_whole_blocks():
    assert Q8_0.row_nbytes(64) == 68
    assert Q4_K.row_nbytes(512) == 288
    assert F32.row_nbytes(7) == 28
    assert F32.row_nbytes(0) == 0
    with pytest.raises(GraphError, match="33 elements is not a multiple of the 32 in a block of Q8_0"):
        Q8_0.row_nbytes(33)


def test_lookup_by_number_and_by_name_in_any_case():
    assert element_type(8) is Q8_0
    assert element_type("q8_0") is Q8_0
    for unknown in ("Q9_9", 4, -1, 2**63):
        with pytest.raises(GraphError, match=r"unknown element type .*F32"):
            element_type(unknown)
