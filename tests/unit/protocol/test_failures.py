"""Errors over the wire: every class, foreign exceptions, unknown codes, bounds."""

import pytest

from rpc_backend import errors
from rpc_backend.errors import DeviceError, ErrorContext, OutOfMemoryError, RpcBackendError
from rpc_backend.protocol import records as r
from rpc_backend.protocol.codec import decode_record, encode_record
from rpc_backend.protocol.failures import (
    MAX_MESSAGE_CHARACTERS,
    MAX_TRACEBACK_CHARACTERS,
    decode_error,
    encode_error,
)

CLASSES = [cls for cls in vars(errors).values() if isinstance(cls, type) and issubclass(cls, RpcBackendError)]


@pytest.mark.parametrize("cls", CLASSES)
def test_every_error_of_ours_keeps_class_message_and_places(cls):
    original = cls("it broke", context=ErrorContext(device="cpu", op="MUL_MAT"))
    travelled = decode_record(r.Failure, encode_record(encode_error(original, worker="tcp://w:1", device="other")))
    arrived = decode_error(travelled, worker="never", command="GRAPH_COMPUTE")
    assert type(arrived) is cls
    assert arrived.message == "it broke"
    assert arrived.context.worker == "tcp://w:1"
    assert (arrived.context.device, arrived.context.op, arrived.context.command) == ("cpu", "MUL_MAT", "GRAPH_COMPUTE")
    assert arrived.context.remote_type == f"rpc_backend.errors.{cls.__name__}"


def test_a_foreign_exception_becomes_a_device_error_with_type_and_traceback():
    try:
        {}["missing"]
    except KeyError as error:
        failure = encode_error(error)
    arrived = decode_error(failure)
    assert type(arrived) is DeviceError
    assert "KeyError: 'missing'" in arrived.message
    assert arrived.context.remote_type == "KeyError"
    assert '{}["missing"]' in arrived.context.traceback


def test_running_out_of_memory_keeps_its_meaning():
    assert type(decode_error(encode_error(MemoryError()))) is OutOfMemoryError
    assert encode_error(MemoryError()).message == "MemoryError"


def test_a_second_hop_keeps_where_it_began():
    first = encode_error(ValueError("x"), worker="tcp://b:1")
    second = encode_error(decode_error(first), worker="tcp://a:1")
    assert second == first


def test_an_unknown_code_is_the_base_class():
    assert type(decode_error(r.Failure(9999, "from the future"))) is RpcBackendError


def test_message_and_traceback_are_bounded():
    failure = encode_error(ValueError("x" * 100_000))
    assert len(failure.message) == MAX_MESSAGE_CHARACTERS
    assert len(failure.traceback) == MAX_TRACEBACK_CHARACTERS
