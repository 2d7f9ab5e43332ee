"""Messages on their way out: what is copied, what is referenced, and until when.

Belongs here: the copy threshold, tickets. Must not be here: queues and sockets.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass

import zmq

from rpc_backend.errors import DeadlineError, LocalProtocolError
from rpc_backend.interfaces import Ticket
from rpc_backend.protocol.framing import Frame, byte_view

COPY_BELOW_NBYTES = 64 * 1024


class SentTicket(Ticket):
    """The ticket of referenced frames: done when libzmq has let go of each."""

    def __init__(self, trackers: Sequence[zmq.MessageTracker]) -> None:
        self._trackers = trackers

    @property
    def done(self) -> bool:
        return all(tracker.done for tracker in self._trackers)

    def wait(self, timeout_s: float) -> None:
        deadline = time.monotonic() + timeout_s
        for tracker in self._trackers:
            try:
                tracker.wait(max(0.0, deadline - time.monotonic()))
            except zmq.NotDone as error:
                raise DeadlineError(f"a message was not sent within {timeout_s:g} s") from error


ALL_COPIED = SentTicket(())


@dataclass(slots=True)
class Outgoing:
    """One message ready for a socket. Dropping it lets go of its memory, and its ticket becomes done."""

    frames: list[bytes | zmq.Frame]
    nbytes: int
    ticket: Ticket

    def send(self, sock: zmq.Socket[bytes], prefix: bytes | None = None) -> None:
        """Send all frames, after `prefix`, as one message.

        Raises:
            zmq.Again: no room now; nothing was sent.
            zmq.ZMQError: with EHOSTUNREACH, the peer named by `prefix` is gone.
        """
        # Only the first part can be refused: libzmq accepts the rest of a message it has begun.
        if prefix is not None:
            sock.send(prefix, zmq.NOBLOCK | zmq.SNDMORE)
        for frame in self.frames[:-1]:
            sock.send(frame, zmq.NOBLOCK | zmq.SNDMORE)
        sock.send(self.frames[-1], zmq.NOBLOCK)

    def send_header(self, sock: zmq.Socket[bytes], envelope: bytes, prefix: bytes | None = None) -> None:
        """Send `envelope` and the header only; the payloads travel another way. Raises as `send`."""
        Outgoing([envelope, self.frames[0]], 0, self.ticket).send(sock, prefix)

    def payloads(self) -> list[memoryview]:
        """Return what follows the header; each view keeps its memory, and its ticket open."""
        return [memoryview(frame) if isinstance(frame, bytes) else frame.buffer for frame in self.frames[1:]]


def prepare(frames: Sequence[Frame]) -> Outgoing:
    """Copy what is small, reference what is large.

    Raises:
        LocalProtocolError: no frame, or memory that is not contiguous.
    """
    if not frames:
        raise LocalProtocolError("a message needs a frame")
    ready: list[bytes | zmq.Frame] = []
    trackers: list[zmq.MessageTracker] = []
    nbytes = 0
    for frame in frames:
        view = byte_view(frame)
        nbytes += view.nbytes
        if view.nbytes < COPY_BELOW_NBYTES:
            ready.append(frame if isinstance(frame, bytes) else bytes(view))
            continue
        referenced = zmq.Frame(view, track=True, copy=False)
        assert isinstance(referenced.tracker, zmq.MessageTracker), "a frame made with track=True has a tracker"
        trackers.append(referenced.tracker)
        ready.append(referenced)
    return Outgoing(ready, nbytes, SentTicket(trackers) if trackers else ALL_COPIED)
