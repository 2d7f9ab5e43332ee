from __future__ import annotations

import pytest

from rpc_backend.client.placement import encode_question
from rpc_backend.errors import GraphError
from rpc_backend.graph import build, element_type
from rpc_backend.worker.tensors import check_byte, check_range, decode_question

F32 = element_type("F32")
Q4_0 = element_type("Q4_0")


def product():
    return build.mul_mat(build.leaf(Q4_0, [64, 8]), build.leaf(F32, [64, 4]))


def test_a_question_keeps_all_that_an_answer_can_depend_on():
    asked = decode_question(encode_question(product()))
    assert (asked.op.name, asked.type, asked.ne) == ("MUL_MAT", F32, (8, 4, 1, 1))
    assert [(source.type, source.ne) for source in asked.sources] == [(Q4_0, (64, 8, 1, 1)), (F32, (64, 4, 1, 1))]


def test_a_question_about_a_leaf_or_a_view():
    whole = build.leaf(F32, [64, 8])
    assert decode_question(encode_question(whole)).op is None
    window = build.view(whole, [64, 2], offset_bytes=256)
    assert decode_question(encode_question(window)).view_offs == 256


@pytest.mark.parametrize(
    ("spoil", "text"),
    [
        (lambda question: question[:1], "two lists|list of tensors"),
        (lambda question: [[], []], "list of tensors"),
        (lambda question: [question[0], [0]], "about the last"),
        (lambda question: [question[0], "x"], "list of tensors"),
        (lambda question: [[7], []], "not a list of 11 fields"),
    ],
)
def test_a_malformed_question_is_refused(spoil, text):
    with pytest.raises(GraphError, match=text):
        decode_question(spoil(encode_question(product())))


def test_a_question_with_a_place_is_refused():
    records, ids = encode_question(product())
    records[0][8] = 5
    with pytest.raises(GraphError, match="in buffer 5"):
        decode_question([records, ids])


def test_a_question_that_breaks_a_shape_rule_is_refused():
    records, ids = encode_question(product())
    records[2][1] = [9, 4, 1, 1]
    records[2][2] = [4, 36, 144, 144]
    with pytest.raises(GraphError, match="MUL_MAT"):
        decode_question([records, ids])


@pytest.mark.parametrize(("offset", "nbytes"), [(-1, 1), (0, 257), (256, 1), (1, -1), (2**63, 2**63), (2**64 - 1, 2)])
def test_ranges_outside_a_tensor_are_refused(offset, nbytes):
    with pytest.raises(GraphError, match="outside"):
        check_range(build.leaf(F32, [64]), offset, nbytes)


@pytest.mark.parametrize("value", [-1, 256])
def test_a_byte_has_its_range(value):
    with pytest.raises(GraphError, match="0 to 255"):
        check_byte(value)
