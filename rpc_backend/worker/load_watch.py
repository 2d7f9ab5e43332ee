"""Where the time of a client's loads goes, seen from the worker.

Belongs here: when a load begins and ends, and what each command of it was. Must not be here: adding up
(`rpc_backend.load_profile`).

A load begins with the first buffer for weights, and ends with the first graph or with the session. Of the time in
which a device has nothing to do before a SET_TENSOR, `wire` is that before the next part of a tensor and `gaps` that
before another tensor; `write` is the time in which bytes are put in their place, `digest` that of SET_TENSOR_HASH.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from rpc_backend.interfaces import BufferUsage
from rpc_backend.load_profile import DIGEST, GAPS, STAGING, WIRE, LoadProfile
from rpc_backend.protocol.commands import (
    ALLOC_BUFFER,
    GRAPH_COMPUTE,
    GRAPH_RECOMPUTE,
    SET_TENSOR,
    SET_TENSOR_HASH,
    SUBMIT,
    SUBMIT_ONWARD,
)
from rpc_backend.protocol.records import Record, TensorRange
from rpc_backend.worker.calls import Call
from rpc_backend.worker.sessions import Session

WRITE = "write"
_ENDING = (GRAPH_COMPUTE, GRAPH_RECOMPUTE, SUBMIT, SUBMIT_ONWARD)


@dataclass(slots=True)
class _Stream:
    """One device of a load: when it was last busy, how long it was idle since the last SET_TENSOR, what that was."""

    ended_s: float
    idle_s: float = 0.0
    tensor: Record = field(default_factory=list)
    stop: int = 0

    def follows(self, request: TensorRange) -> bool:
        """Note a SET_TENSOR; whether it goes on where the last one ended."""
        is_next = request.offset == self.stop and request.tensor == self.tensor
        self.tensor, self.stop = request.tensor, request.offset + request.nbytes
        return is_next


@dataclass(slots=True)
class _SessionLoad:
    profile: LoadProfile
    streams: dict[int, _Stream] = field(default_factory=dict)
    staged_s: float = 0.0


class LoadWatch:
    """The loads of all sessions. Any thread may call it; commands of one stream come one after another."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._loads: dict[bytes, _SessionLoad] = {}

    @contextmanager
    def watching(self, call: Call) -> Iterator[None]:
        """Time the command that runs in a block."""
        load = self._load(call)
        if load is None:
            yield
            return
        started_s = load.profile.clock()
        try:
            yield
        finally:
            self._ran(load, call, started_s, load.profile.clock())

    @contextmanager
    def staging(self, session: Session) -> Iterator[None]:
        """Time a copy before the bytes of a SET_TENSOR are put in their place."""
        load = self._loads.get(session.id)
        if load is None:
            yield
            return
        started_s = load.profile.clock()
        yield
        seconds = load.profile.clock() - started_s
        load.profile.add(STAGING, seconds)
        load.staged_s += seconds

    def closed(self, session: Session) -> None:
        """A session ended."""
        self._end(session)

    def _load(self, call: Call) -> _SessionLoad | None:
        session = call.session
        if call.command in _ENDING:
            self._end(session)
        elif call.command is ALLOC_BUFFER and call.request.usage == BufferUsage.WEIGHTS:
            with self._lock:
                if session.id not in self._loads and not session.closed:
                    self._loads[session.id] = _SessionLoad(LoadProfile())
        return self._loads.get(session.id)

    def _ran(self, load: _SessionLoad, call: Call, started_s: float, ended_s: float) -> None:
        profile = load.profile
        stream = load.streams.setdefault(call.stream, _Stream(started_s))
        stream.idle_s += started_s - stream.ended_s
        stream.ended_s = ended_s
        profile.command(call.command.name, ended_s - started_s)
        if call.command is SET_TENSOR_HASH:
            profile.add(DIGEST, ended_s - started_s)
        elif call.command is SET_TENSOR:
            staged_s, load.staged_s = load.staged_s, 0.0
            part = WIRE if stream.follows(call.request) else GAPS
            if profile.calls:
                profile.add(part, stream.idle_s)
            profile.add(WRITE, ended_s - started_s - staged_s)
            profile.call(started_s, ended_s, call.request.nbytes)
            stream.idle_s = 0.0

    def _end(self, session: Session) -> None:
        with self._lock:
            load = self._loads.pop(session.id, None)
        if load is not None:
            sys.stderr.write(load.profile.take(f"session {session.epoch}") + "\n")
