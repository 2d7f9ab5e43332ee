"""Errors as they travel: an exception to a `Failure` record and back.

Belongs here: the mapping and its bounds. Must not be here: deciding what is answered to whom.
"""

from __future__ import annotations

import traceback

from rpc_backend.errors import DeviceError, ErrorContext, OutOfMemoryError, RpcBackendError, error_class
from rpc_backend.protocol.records import Failure

MAX_MESSAGE_CHARACTERS = 4096
MAX_TRACEBACK_CHARACTERS = 16384


def encode_error(error: BaseException, **places: str) -> Failure:
    """Return the wire form of any exception; `places` (worker, device, command, op) fill what is unknown.

    A MemoryError becomes OutOfMemoryError, any other foreign exception DeviceError; its own type is kept in
    `remote_type`. What already crossed a wire keeps the type and traceback of where it began.
    """
    known = error.context if isinstance(error, RpcBackendError) else ErrorContext()
    trace = known.traceback or "".join(traceback.format_exception(error))
    return Failure(
        code=_wire_class(error).code,
        message=_message(error)[:MAX_MESSAGE_CHARACTERS],
        worker=known.worker or places.get("worker", ""),
        device=known.device or places.get("device", ""),
        command=known.command or places.get("command", ""),
        op=known.op or places.get("op", ""),
        remote_type=known.remote_type or _type_name(type(error)),
        traceback=trace[-MAX_TRACEBACK_CHARACTERS:],
    )


def decode_error(failure: Failure, **places: str) -> RpcBackendError:
    """Return the exception of a failure; an unknown code is the base class. `places` as in `encode_error`."""
    context = ErrorContext(
        failure.worker, failure.device, failure.command, failure.op, failure.remote_type, failure.traceback
    )
    return error_class(failure.code)(failure.message, context=context).located(**places)


def _wire_class(error: BaseException) -> type[RpcBackendError]:
    if isinstance(error, RpcBackendError):
        return type(error)
    return OutOfMemoryError if isinstance(error, MemoryError) else DeviceError


def _message(error: BaseException) -> str:
    if isinstance(error, RpcBackendError):
        return error.message
    return f"{type(error).__name__}: {error}" if str(error) else type(error).__name__


def _type_name(cls: type) -> str:
    return cls.__qualname__ if cls.__module__ == "builtins" else f"{cls.__module__}.{cls.__qualname__}"
