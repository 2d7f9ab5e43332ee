"""What all commands of one worker share.

Belongs here: devices with their accounts and streams, the tables, the checks of indices. Must not be here:
single commands, threads or sockets.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from rpc_backend.errors import ConfigError, GraphError, HandleError
from rpc_backend.interfaces import Buffer, Carried, Device, Stream
from rpc_backend.protocol.negotiation import Greeting
from rpc_backend.worker.admissions import Admissions
from rpc_backend.worker.config import WorkerConfig
from rpc_backend.worker.counters import Counters
from rpc_backend.worker.handles import HandleTable, HeldBuffer
from rpc_backend.worker.load_watch import LoadWatch
from rpc_backend.worker.mailbox import Mailbox
from rpc_backend.worker.memory import MemoryAccount
from rpc_backend.worker.peer_link import Dial, Pause
from rpc_backend.worker.peers import Peers, Spawn
from rpc_backend.worker.sessions import Session, SessionTable
from rpc_backend.worker.weights import Weights

_LOG = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Seat:
    """A device with the account of its memory and the stream that runs its graphs."""

    index: int
    device: Device
    account: MemoryAccount
    stream: Stream


class WorkerState:
    """The devices, sessions, buffers, tensors under way and counts of one worker.

    `name` is its endpoint, for errors; `carried` counts what went beside the fabric.
    """

    def __init__(
        self,
        config: WorkerConfig,
        devices: Sequence[Device],
        greeting: Greeting,
        *,
        end_session: Callable[[bytes, str], None],
        wake: Callable[[int, bytes], None],
        dial: Dial | None,
        spawn: Spawn,
        weights: Weights,
        pause: Pause,
    ) -> None:
        """Check the configuration against the devices.

        `end_session(peer, reason)` closes a peer's session, `wake(device, session)` looks again at a stream that is
        held; `dial`, `spawn` and `pause` are those of `Peers`.

        Raises:
            ConfigError: no device, two of one name, a cap for a device that is not there or above its memory.
        """
        _check_devices(devices)
        unknown = sorted(set(config.memory_cap_nbytes) - set(range(len(devices))))
        if unknown:
            raise ConfigError(f"a memory cap for device {unknown[0]}, but the devices are 0 to {len(devices) - 1}")
        self.config = config
        self.greeting = greeting
        self.end_session = end_session
        self.wake = wake
        self.name = ""
        self.carried: Callable[[], Mapping[str, Carried]] = dict
        self.seats = [
            Seat(index, device, MemoryAccount(device, config.memory_cap_nbytes.get(index)), device.create_stream())
            for index, device in enumerate(devices)
        ]
        self.sessions = SessionTable(len(devices), config.graphs_per_stream)
        self.handles = HandleTable()
        self.counters = Counters()
        self.weights = weights
        self.load_watch = LoadWatch() if config.load_profile else None
        self.mailbox = Mailbox(config.max_queued_nbytes, config.ticket_timeout_s)
        self.admissions = Admissions()
        self.peers = Peers(config, greeting, self.mailbox, dial, spawn, pause)

    def seat(self, index: int) -> Seat:
        """Return a device by its index.

        Raises:
            GraphError: there is none.
        """
        if not 0 <= index < len(self.seats):
            raise GraphError(f"device {index} does not exist here; this worker has {len(self.seats)}")
        return self.seats[index]

    def held(self, session: Session, stream: int, handle: int) -> HeldBuffer:
        """Return a buffer of a session on the device of a stream.

        Raises:
            HandleError: it was freed, is another session's, or lies on another device.
        """
        held = self.handles.find(session.id, handle)
        if held.device != stream:
            raise HandleError(
                f"buffer {handle} lies on device {held.device}, it cannot be used in the stream of device {stream}"
            )
        return held

    def free(self, session: Session, held: HeldBuffer) -> None:
        """Free a buffer and forget every graph and task that touches it.

        Its memory stays while weights in it are still being stored, unless it is needed.
        """
        self.handles.remove(held)
        account = self.seats[held.device].account
        account.retain(held.buffer.nbytes)
        try:
            stream = session.streams[held.device]
            stream.uploads.drop_buffer(held.buffer)
            stream.graphs.drop_buffer(held.handle)
            stream.tasks.drop_buffer(held.handle)
        finally:
            self.weights.when_stored(held.buffer, partial(_close, held.buffer, account))

    def release_session(self, session: Session, device: int) -> None:
        """Free all that a session has on a device. Runs in the thread of that device, and does not raise."""
        for held in self.handles.of_session(session.id, device):
            try:
                self.free(session, held)
            except Exception:
                _LOG.exception("freeing buffer %d of a closed session failed", held.handle)
        # Once more: what ran last in this thread may have sent something after the session ended.
        self.mailbox.drop_sender(session)
        try:
            session.streams[device].graphs.clear()
            session.streams[device].tasks.clear()
            session.streams[device].uploads.clear()
        except Exception:
            _LOG.exception("dropping the graphs of a closed session failed")


def _close(buffer: Buffer, account: MemoryAccount) -> None:
    try:
        buffer.close()
    finally:
        account.release(buffer.nbytes, retained=True)


def _check_devices(devices: Sequence[Device]) -> None:
    if not devices:
        raise ConfigError("a worker needs at least one device")
    names = [device.info.name for device in devices]
    doubled = sorted({name for name in names if names.count(name) > 1})
    if doubled:
        raise ConfigError(f"two devices are named {doubled[0]}; names are unique within a worker")
