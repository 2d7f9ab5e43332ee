"""Completion queues and the channels that tell of them.

Belongs here: the order, the depth and the notification of completions. Must not be here: what completed.
"""

from __future__ import annotations

import errno
import os
import select
import threading
from collections import deque
from typing import TYPE_CHECKING, Protocol

from rpc_transport_rdma.soft.values import WC, VerbsError
from rpc_transport_rdma.verbs import WCStatus

if TYPE_CHECKING:
    from rpc_transport_rdma.soft.resources import Context


class Origin(Protocol):
    """The queue pair that a completion is of."""

    closed: bool

    def release(self, sends: int, receives: int) -> None:
        """Take queue slots back, since their completion was polled."""


class Resource:
    """Something of a device that cannot be closed while others use it."""

    kind = "resource"

    def __init__(self) -> None:
        self.users: set[int] = set()
        self.closed = False

    def ensure(self) -> None:
        """Raise EBADF when it is closed."""
        if self.closed:
            raise VerbsError(self.kind, errno.EBADF, f"{self.kind} is closed")

    def ensure_unused(self) -> None:
        """Raise EBUSY when others use it."""
        if self.users:
            raise VerbsError(
                f"closing the {self.kind}", errno.EBUSY, f"{self.kind} is in use by {len(self.users)} others"
            )

    def __enter__(self):
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close it once nothing uses it any more. A second call does nothing."""
        if self.closed:
            return
        self.ensure_unused()
        self._shut()

    def _shut(self) -> None:
        """Mark it closed and let go of what it holds; its use by others is over, or nobody can see it any more."""
        raise NotImplementedError

    def __del__(self) -> None:
        if not getattr(self, "closed", True):
            self._shut()


class CompChannel(Resource):
    """Tells of completions: `fd` is readable while events wait."""

    kind = "completion channel"

    def __init__(self, context: Context) -> None:
        super().__init__()
        self.context = context
        self._events: deque[CQ] = deque()
        self._fd = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_SEMAPHORE)
        context.users.add(id(self))

    @property
    def fd(self) -> int:
        self.ensure()
        return self._fd

    def signal(self, queue: CQ) -> None:
        """Add one event."""
        if not self.closed:
            self._events.append(queue)
            os.eventfd_write(self._fd, 1)

    def get_cq_event(self) -> CQ:
        """Wait for an event and return its queue; EAGAIN when `fd` was made non-blocking and there is none."""
        self.ensure()
        try:
            os.eventfd_read(self._fd)
        except OSError as error:
            raise VerbsError("ibv_get_cq_event", error.errno or errno.EIO) from error
        queue = self._events.popleft()
        queue.unacknowledged += 1
        return queue

    def _shut(self) -> None:
        self.closed = True
        os.close(self._fd)
        self.context.users.discard(id(self))


class CQ(Resource):
    """A completion queue of exactly `cqe` entries; one completion more and it is broken for good."""

    kind = "completion queue"

    def __init__(self, context: Context, cqe: int, channel: CompChannel | None) -> None:
        super().__init__()
        self.context, self.channel, self.cqe = context, channel, cqe
        self.unacknowledged = 0
        self._lock = threading.Lock()
        self._entries: deque[tuple[WC, Origin, int, int]] = deque()
        self._armed = self._armed_solicited = self._overrun = False
        context.users.add(id(self))
        if channel is not None:
            channel.users.add(id(self))

    def push(self, wc: WC, origin: Origin, slots: tuple[int, int], solicited: bool) -> None:
        """Add a completion that gives back `slots` (sends, receives) once polled."""
        with self._lock:
            if len(self._entries) >= self.cqe:
                self._overrun = True
            else:
                self._entries.append((wc, origin, *slots))
            wanted = self._armed or (self._armed_solicited and (solicited or wc.status != WCStatus.SUCCESS))
            if wanted:
                self._armed = self._armed_solicited = False
        if wanted and self.channel is not None:
            self.channel.signal(self)

    def poll(self, num_entries: int) -> list[WC]:
        """Return up to so many completions; EIO once the queue overran."""
        self.ensure()
        if num_entries <= 0:
            raise ValueError("num_entries must be positive")
        if self._overrun:
            raise VerbsError("ibv_poll_cq", errno.EIO)
        if not self._entries:
            select.select((), (), (), 0)  # a loop that polls must not keep the device's thread from running
            return []
        taken = self._take(self.context.poll_limit(num_entries))
        for _, origin, sends, receives in taken:
            origin.release(sends, receives)
        self.context.count_polled(len(taken))
        return [wc for wc, *_ in taken]

    def _take(self, most: int) -> list[tuple[WC, Origin, int, int]]:
        taken = []
        with self._lock:
            while len(taken) < most and self._entries:
                entry = self._entries.popleft()
                if not entry[1].closed:
                    taken.append(entry)
        return taken

    def req_notify(self, solicited_only: bool = False) -> None:
        """Arm one event for the next completion that is added."""
        self.ensure()
        with self._lock:
            if solicited_only:
                self._armed_solicited = True
            else:
                self._armed = True

    def ack_events(self, nevents: int = 1) -> None:
        """Acknowledge events that `get_cq_event` returned."""
        self.ensure()
        if nevents <= 0:
            raise ValueError("nevents must be positive")
        if nevents > self.unacknowledged:
            raise ValueError("cannot acknowledge more CQ events than were received")
        self.unacknowledged -= nevents

    def _shut(self) -> None:
        self.closed = True
        self.context.users.discard(id(self))
        if self.channel is not None:
            self.channel.users.discard(id(self))
