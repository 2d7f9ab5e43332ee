"""What happens when a message comes or a client goes.

Belongs here: the way of a message to the thread that runs it, and the end of sessions. Must not be here: what
commands do (`handlers`), the rules of errors (`executor`), or opening sockets (`server`).

Threads: the I/O thread of the listener receives and runs commands of the control lane; one thread per device
runs the commands of its streams, so a long graph delays nothing but its own device.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from rpc_backend.errors import GraphError, LimitError, RpcBackendError, SessionError
from rpc_backend.graph import op_table_digest
from rpc_backend.interfaces import Channel, Device, Listener, OnLost, OnMessage
from rpc_backend.protocol import BadRequestEvent, Lane, Limits, RequestEvent, own_greeting
from rpc_backend.protocol.commands import HELLO
from rpc_backend.worker.calls import Call, collect_handlers
from rpc_backend.worker.config import WorkerConfig
from rpc_backend.worker.counters import UNKNOWN
from rpc_backend.worker.executor import Executor
from rpc_backend.worker.handlers import MODULES
from rpc_backend.worker.lanes import DeviceLane
from rpc_backend.worker.links import Link
from rpc_backend.worker.local_channel import LocalListener
from rpc_backend.worker.peer_link import Dial, Pause
from rpc_backend.worker.peers import Spawn, spawn_thread
from rpc_backend.worker.sessions import Session
from rpc_backend.worker.state import WorkerState
from rpc_backend.worker.weights import Weights

_LOG = logging.getLogger(__name__)

_CALL_OVERHEAD_NBYTES = 256
_ATTACH_TIMEOUT_S = 30.0


@dataclass(frozen=True, slots=True)
class _Refused:
    """A request that cannot be run, in its place in the stream whose error it becomes."""

    session: Session
    link: Link
    event: BadRequestEvent


@dataclass(frozen=True, slots=True)
class _Release:
    """The last item of a closed session in a lane: free what it holds on that device."""

    session: Session
    device: int


@dataclass(frozen=True, slots=True)
class _Preparation:
    """What comes right before a command that may have to wait."""

    call: Call


_Item = Call | _Preparation | _Refused | _Release


class Service:
    """Devices served to whoever sends messages through a listener."""

    def __init__(
        self,
        config: WorkerConfig,
        devices: Sequence[Device],
        build: str = "",
        *,
        dial: Dial | None = None,
        make_lane: Callable[[str, Callable[[_Item], None], Callable[[_Item], float]], DeviceLane[_Item]] = DeviceLane,
        spawn: Spawn = spawn_thread,
        pause: Pause = time.sleep,
    ) -> None:
        """Check the configuration; `build` is the text that HELLO gives, `dial` connects to other workers.

        Raises:
            ConfigError: it does not fit the devices.
            SettingError: no such protocol minor.
            LocalProtocolError: a command without a handler.
        """
        weights = Weights(config, spawn)
        greeting = own_greeting(op_table_digest(), build, weights.abilities, config.proto_minor)
        self.config = config
        self.limits = Limits(max_payload_nbytes=config.max_payload_nbytes)
        self.state = WorkerState(
            config,
            devices,
            greeting,
            end_session=self._end_session,
            wake=self._wake,
            dial=dial,
            spawn=spawn,
            pause=pause,
            weights=weights,
        )
        self._executor = Executor(self.state, collect_handlers(MODULES))
        self._lanes = [make_lane(f"device-{seat.index}", self._run_item, self._wait_s) for seat in self.state.seats]
        self._links: dict[bytes, Link] = {}
        self._listener: Listener | None = None
        self._local = LocalListener(self.on_message, self.on_peer_lost)
        self._receiving = threading.RLock()  # the listener's thread and those of local clients
        self._attached = threading.Event()

    def prepare(self) -> None:
        """Do what must be done before anybody can connect."""
        self.state.weights.start()

    def start(self) -> None:
        """Start the threads of the devices."""
        for lane in self._lanes:
            lane.start()

    def attach(self, listener: Listener) -> None:
        """Answer through `listener`, whose callbacks are `on_message` and `on_peer_lost`."""
        self._listener = listener
        self.state.name = listener.names[0]
        self.state.carried = lambda: listener.carried
        self._attached.set()

    def on_message(self, peer: bytes, frames: list[memoryview]) -> None:
        """Take one message. Raises ProtocolError if the peer must be closed."""
        with self._receiving:
            self._take(peer, frames)

    def connect_local(self, on_message: OnMessage, on_lost: OnLost) -> Channel:
        """Open a channel within this process, for a gateway; as `LocalDial`."""
        return self._local.connect(on_message, on_lost)

    def _take(self, peer: bytes, frames: list[memoryview]) -> None:
        link = self._link(peer)
        event = link.receive(frames)
        nbytes = sum(frame.nbytes for frame in frames)
        name = event.command.name if event.command else UNKNOWN
        self.state.counters.count(name, calls=1, nbytes_in=nbytes)
        if isinstance(event, BadRequestEvent):
            self._refuse(link, event)
            return
        self._dispatch(link, event, nbytes + _CALL_OVERHEAD_NBYTES)

    def on_peer_lost(self, peer: bytes) -> None:
        """Free all that a client held, after what it has running."""
        with self._receiving:
            self._end_session(peer, "the client is gone")
            self._links.pop(peer, None)

    def close(self) -> None:
        """End the running commands, or give up on them, and close the devices."""
        self._local.abort()
        self.state.peers.close()
        for lane in self._lanes:
            if not lane.close(self.config.stop_timeout_s):
                _LOG.warning("a command was still running when the worker closed")
        self.state.weights.close()
        for seat in self.state.seats:
            seat.stream.close()
            seat.device.close()

    def _link(self, peer: bytes) -> Link:
        link = self._links.get(peer)
        if link is None:
            # The first message can come while `listen` returns.
            self._attached.wait(_ATTACH_TIMEOUT_S)
            assert self._listener is not None, "attach is called when listening began"
            listener = self._local if self._local.has(peer) else self._listener
            link = self._links[peer] = Link(peer, listener, self.limits)
        return link

    def _dispatch(self, link: Link, event: RequestEvent, nbytes: int) -> None:
        session = self.state.sessions.find(link.peer)
        call = Call(link, event, session, nbytes)
        if session is None and event.command is not HELLO:
            reason = link.closed_because or "the first command must be HELLO"
            self._executor.fail(call, SessionError(f"this connection has no session: {reason}"))
        elif event.command.lane is Lane.CONTROL or session is None:
            self._executor.run_control(call)
        else:
            self._queue(call, session)

    def _refuse(self, link: Link, event: BadRequestEvent) -> None:
        session, command = self.state.sessions.find(link.peer), event.command
        keeps_error = command is not None and command.lane is Lane.STREAM and command.reply is None
        if session is not None and keeps_error and 0 <= event.stream < len(self._lanes):
            self._lanes[event.stream].put(session.id, _Refused(session, link, event))
        else:
            self._executor.refuse(link, event)

    def _queue(self, call: Call, session: Session) -> None:
        if not 0 <= call.stream < len(self._lanes):
            there = f"this worker has streams 0 to {len(self._lanes) - 1}, one per device"
            self._executor.fail(call, GraphError(f"stream {call.stream} does not exist; {there}"))
            return
        try:
            session.queue(call.nbytes, self.config.max_queued_nbytes)
        except LimitError as error:
            self._executor.fail(call, error)
            self._end_session(call.link.peer, error.message)
            return
        try:
            call = self._executor.arrived(call)
        except RpcBackendError as error:
            session.unqueue(call.nbytes)
            self._executor.fail(call, error)
            return
        lane = self._lanes[call.stream]
        if self._executor.must_prepare(call):
            lane.put(session.id, _Preparation(call))
        lane.put(session.id, call)

    def _wake(self, device: int, session: bytes) -> None:
        self._lanes[device].wake(session)

    def _wait_s(self, item: _Item) -> float:
        return self._executor.wait_s(item) if isinstance(item, Call) else 0.0

    def _end_session(self, peer: bytes, reason: str) -> None:
        session = self.state.sessions.remove(peer)
        if session is None:
            return
        self._links[peer].closed_because = reason
        for device, lane in enumerate(self._lanes):
            for call in lane.drop(session.id):
                if isinstance(call, Call):
                    self._abandon(call, reason)
            lane.put(session.id, _Release(session, device))
        if self.state.load_watch is not None:
            self.state.load_watch.closed(session)
        self.state.mailbox.drop_sender(session)
        self.state.admissions.drop(session)
        self.state.peers.close_session(session)

    def _abandon(self, call: Call, reason: str) -> None:
        self._executor.abandon(call)
        if call.command.reply is not None:
            self._executor.fail(call, SessionError(f"the session was closed: {reason}"))

    def _run_item(self, item: _Item) -> None:
        match item:
            case Call():
                self._executor.run_stream(item)
            case _Preparation(call):
                self._executor.prepare(call)
            case _Refused(session, link, event):
                self._executor.refuse(link, event, session.streams[event.stream])
            case _Release(session, device):
                self.state.release_session(session, device)
