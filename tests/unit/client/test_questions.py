from __future__ import annotations

import pytest

from rpc_backend.errors import RemoteProtocolError
from rpc_backend.graph import build, element_type
from rpc_backend.protocol.records import Flags
from rpc_backend.testing.devices import NullDevice
from rpc_backend.testing.inline_worker import InlineWorker

F32 = element_type("F32")
F16 = element_type("F16")


def leaf(*ne: int, type=F32):
    return build.leaf(type, ne)


def calls(connection, command: str) -> int:
    counts = connection.counters.snapshot().get(command)
    return 0 if counts is None else counts.calls


@pytest.fixture
def device(connection):
    return connection.devices()[0]


def test_many_questions_are_one_message_and_asked_once(connection, device):
    tensors = [build.add(leaf(8), leaf(8)), build.sub(leaf(8), leaf(8)), build.mul(leaf(8), leaf(8))]
    assert device.supports_ops(tensors) == [True, False, True]
    assert device.supports_ops(tensors[::-1]) == [True, False, True]
    assert device.supports_op(build.add(leaf(8), leaf(8)))
    assert calls(connection, "SUPPORTS_OP") == 1


def test_more_questions_than_fit_in_a_message(connection, device):
    tensors = [leaf(n) for n in range(1, 601)]
    assert device.alloc_sizes(tensors) == [4 * n for n in range(1, 601)]
    assert calls(connection, "GET_ALLOC_SIZE") == 2


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (leaf(8), leaf(9)),
        (leaf(8), leaf(8, type=F16)),
        (build.scale(leaf(8), 1.0), build.scale(leaf(8), 2.0)),
        (build.sum_rows(leaf(8, 2)), build.sum_rows(leaf(9, 2))),
        (build.cont(leaf(8, 2)), build.cont(build.transpose(leaf(2, 8)))),
        (build.view(leaf(8, 8), [4, 4]), build.view(leaf(8, 8), [4, 4], nb=[4, 32, 128, 128])),
    ],
)
def test_whatever_an_answer_can_depend_on_makes_it_another_question(connection, device, one, other):
    device.alloc_size(one)
    device.alloc_size(other)
    assert calls(connection, "GET_ALLOC_SIZE") == 2
    device.alloc_sizes([one, other])
    assert calls(connection, "GET_ALLOC_SIZE") == 2


def test_a_size_is_never_below_the_tensor(backends, device, monkeypatch):
    strided = build.view(leaf(8, 8), [4, 4], nb=[4, 32, 256, 256])
    monkeypatch.setattr(backends[0], "alloc_size", lambda tensor: 1)
    assert device.alloc_size(strided) == strided.nbytes == 112


def test_a_size_may_be_above_the_tensor(backends, device, monkeypatch):
    monkeypatch.setattr(backends[0], "alloc_size", lambda tensor: 4096)
    assert device.alloc_size(leaf(8)) == 4096


def test_a_wrong_number_of_answers_is_refused(backends, device, monkeypatch):
    monkeypatch.setattr("rpc_backend.client.questions.Questions._ask_supported", lambda *_: Flags([True, True]).flags)
    with pytest.raises(RemoteProtocolError, match="1 questions were asked and 2 answered"):
        device.supports_op(build.add(leaf(8), leaf(8)))


def test_a_size_that_depends_on_a_sources_shape_is_asked_for_each_shape():
    """A device that wants scratch memory for the source of a sum, whose result always has one shape."""
    backend = NullDevice(size_of=lambda tensor: 4096 * tensor.sources[0].ne[0] if tensor.sources else tensor.nbytes)
    connection = InlineWorker([backend]).connect()
    device = connection.devices()[0]
    sums = [build.sum_rows(leaf(n, 2)) for n in (8, 9, 8)]
    assert {tensor.ne for tensor in sums} == {(1, 2, 1, 1)}
    assert [device.alloc_size(tensor) for tensor in sums] == [4096 * 8, 4096 * 9, 4096 * 8]
    assert calls(connection, "GET_ALLOC_SIZE") == 2
