"""Questions about operations, asked many at a time and once each.

Belongs here: what a device is asked again and again. Must not be here: what the answers are used for.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import TypeVar

from rpc_backend.client.dispatcher import Dispatcher
from rpc_backend.client.placement import encode_question
from rpc_backend.errors import ErrorContext, RemoteProtocolError
from rpc_backend.graph import Tensor, graph_digest
from rpc_backend.protocol.commands import GET_ALLOC_SIZE, SUPPORTS_OP
from rpc_backend.protocol.records import OpQuery, Record

Value = TypeVar("Value", bool, int)

_BATCH = 512
_MAX_KNOWN = 1 << 16


class Questions:
    """What one remote device answered so far. Any thread may call it."""

    def __init__(self, dispatcher: Dispatcher, device: int) -> None:
        self._dispatcher = dispatcher
        self._device = device
        self._lock = threading.Lock()
        self._supported: dict[bytes, bool] = {}
        self._sizes: dict[bytes, int] = {}

    def supports(self, tensors: Sequence[Tensor]) -> list[bool]:
        """Whether the device runs each operation."""
        return self._answer(self._supported, tensors, self._ask_supported)

    def alloc_sizes(self, tensors: Sequence[Tensor]) -> list[int]:
        """The bytes to reserve for each tensor, as the worker said."""
        return self._answer(self._sizes, tensors, self._ask_sizes)

    def _answer(
        self, known: dict[bytes, Value], tensors: Sequence[Tensor], ask: Callable[[list[Record]], list[Value]]
    ) -> list[Value]:
        records = [encode_question(tensor) for tensor in tensors]
        keys = [graph_digest(record) for record in records]
        with self._lock:
            if len(known) > _MAX_KNOWN:
                known.clear()
            new = {key: record for key, record in zip(keys, records, strict=True) if key not in known}
            fresh = list(new)
            for start in range(0, len(fresh), _BATCH):
                part = fresh[start : start + _BATCH]
                values = ask([new[key] for key in part])
                if len(values) != len(part):
                    text = f"{len(part)} questions were asked and {len(values)} answered"
                    raise RemoteProtocolError(text, context=ErrorContext(worker=self._dispatcher.name))
                known.update(zip(part, values, strict=True))
            return [known[key] for key in keys]

    def _ask_supported(self, records: list[Record]) -> list[bool]:
        return self._dispatcher.call(SUPPORTS_OP, OpQuery(self._device, records)).flags

    def _ask_sizes(self, records: list[Record]) -> list[int]:
        return self._dispatcher.call(GET_ALLOC_SIZE, OpQuery(self._device, records)).nbytes
