"""One connection with a payload link: headers from the fabric and bytes from the link become whole messages, in order.

Belongs here: which payloads travel beside the fabric, memory for those that come, what must wait for them. Must not be
here: making sockets, threads, how a link moves bytes.

Order: the header of a payload is sent when its bytes come next on the link, and nothing after it before they all are
on their way; a receiver holds what comes on the fabric until the payload before it is whole.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import zmq

from rpc_backend.errors import ChannelError, LimitError, RemoteProtocolError
from rpc_backend.fabric.envelope import Envelope, Say, read_envelope
from rpc_backend.fabric.options import FabricOptions
from rpc_backend.fabric.outgoing import Outgoing
from rpc_backend.fabric.payload_memory import PayloadMemory
from rpc_backend.interfaces import PayloadLink, Tally

BESIDE_FROM_NBYTES = 4096
TURN_NBYTES = 4 << 20
MAX_HELD = 65_536
STALLED_AFTER_TIMEOUTS = 4  # of the heartbeats, which see a dead peer but not a dead device
WATCH_MS = 1000

Deliver = Callable[[list[memoryview]], None]


@dataclass(slots=True)
class _Inbound:
    """A message that came on the fabric; its payloads are filled in one after the other."""

    frames: list[memoryview]
    sizes: tuple[int, ...] = ()
    payloads: list[memoryview] = field(default_factory=list)
    n_whole: int = 0
    offset: int = 0

    @property
    def is_whole(self) -> bool:
        return self.n_whole == len(self.sizes)


class Pairing:
    """Used by the I/O thread of the connection only; whatever raises ends the connection.

    `deliver` gets each message exactly as the other side's `send` got it. `is_open`: the other side is ready, payloads
    may be sent beside the fabric.
    """

    def __init__(
        self,
        link: PayloadLink,
        deliver: Deliver,
        options: FabricOptions,
        memory: PayloadMemory,
        tallies: Sequence[Tally] = (),
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Take over a link. `tallies` count what goes over it."""
        self._clock = clock
        self._stall_s = STALLED_AFTER_TIMEOUTS * options.heartbeat_timeout_ms / 1000
        self._moved_s = clock()
        self.is_open = False
        self.is_declined = False  # the other side will not use it: close it
        self._link = link
        self._deliver = deliver
        self._options = options
        self._memory = memory
        self._tallies = tallies
        self._outbound: deque[memoryview] = deque()
        self._sent_nbytes = 0
        self._held: deque[_Inbound] = deque()

    @property
    def is_sending(self) -> bool:
        """Whether a payload is not yet all on its way: nothing else may be sent before."""
        return bool(self._outbound)

    @property
    def is_waiting(self) -> bool:
        """Whether a payload is under way: call `advance` now and then even if nothing wakes."""
        return bool(self._outbound or self._held)

    @property
    def is_idle(self) -> bool:
        """Whether nothing of this side is under way any more."""
        return not self._outbound and self._link.is_idle

    @property
    def is_proven(self) -> bool:
        """Whether the other side was reached over the link."""
        return self._link.is_proven

    def probe(self) -> None:
        """See `PayloadLink.probe`."""
        self._link.probe()

    def open(self) -> None:
        """Let the link be used: the other side is ready."""
        self.is_open = True
        for tally in self._tallies:
            tally.opened()

    def fileno(self) -> int:
        """The descriptor to wait on after `arm`."""
        return self._link.fileno()

    def carries(self, sizes: Sequence[int]) -> bool:
        """Whether the payloads of a message, of these sizes, go beside the fabric."""
        return self.is_open and self._link.is_proven and sum(sizes) >= BESIDE_FROM_NBYTES

    def begin(self, payloads: Sequence[memoryview]) -> None:
        """The header was sent with its envelope: let its payloads follow. They are needed until not `is_sending`."""
        assert not self._outbound, "one message after the other"
        self._outbound.extend(payload for payload in payloads if payload.nbytes)
        for payload in payloads:
            for tally in self._tallies:
                tally.sent(payload.nbytes)

    def arrived(self, frames: list[memoryview]) -> None:
        """Take a message from the fabric: deliver it, or hold it until what it needs is there.

        Raises:
            RemoteProtocolError, LimitError: the other side broke the protocol.
        """
        envelope = read_envelope(frames)
        if envelope is None:
            inbound = _Inbound(frames)
        elif envelope.say is Say.PAYLOADS:
            self._check(envelope.sizes)
            inbound = _Inbound(frames[1:], envelope.sizes)
        else:
            self._told(envelope.say)
            return
        if not self._held and inbound.is_whole:
            self._deliver(inbound.frames)
            return
        if len(self._held) >= MAX_HELD:
            raise RemoteProtocolError(f"{MAX_HELD} messages wait for a payload that does not come")
        self._held.append(inbound)

    def advance(self) -> bool:
        """Move what can be moved now; True if anything was: then call it again before `arm`.

        Raises:
            ChannelError: the link is broken.
        """
        self._link.advance()
        has_moved = bool(self._send_some()) | bool(self._receive_some())
        now_s = self._clock()
        if has_moved or not self.is_waiting:
            self._moved_s = now_s
        elif now_s - self._moved_s > self._stall_s:
            raise ChannelError(f"nothing of a payload moved over the link for {self._stall_s:g} s")
        return has_moved

    def finish(self) -> None:
        """The other side has sent all it will: deliver what is there. Raises as `advance`."""
        is_more = True
        while is_more:
            self._link.advance()
            is_more = bool(self._receive_some()) or not self._link.arm(False)

    def arm(self) -> bool:
        """See `PayloadLink.arm`."""
        return self._link.arm(self.is_waiting)

    def close(self) -> None:
        """Close the link, and let go of all memory."""
        self._outbound.clear()
        self._held.clear()
        self._link.close()

    def _told(self, say: Say) -> None:
        if self.is_open or self.is_declined:
            raise RemoteProtocolError(f"an envelope {say.name} on a connection where that is settled")
        if say is Say.READY:
            self.open()
            self.probe()
        else:
            self.is_declined = True

    def _check(self, sizes: Sequence[int]) -> None:
        if not self.is_open:
            raise RemoteProtocolError("payloads are said to come on a link that is not ready")
        if len(sizes) >= self._options.max_frames:
            raise LimitError(f"a message of over {self._options.max_frames} frames")
        if max(sizes) > self._options.max_frame_nbytes:
            raise LimitError(
                f"a payload of {max(sizes)} bytes is above the limit of {self._options.max_frame_nbytes} of a frame"
            )

    def _send_some(self) -> int:
        moved = 0
        while self._outbound and moved < TURN_NBYTES:
            payload = self._outbound[0]
            taken = self._link.send(payload)
            if not taken:
                break
            moved += taken
            if taken == payload.nbytes:
                self._outbound.popleft()
            else:
                self._outbound[0] = payload[taken:]
        return moved

    def _receive_some(self) -> int:
        moved = 0
        while self._held and moved < TURN_NBYTES:
            inbound = self._held[0]
            if not inbound.is_whole:
                received = self._fill(inbound)
                if not received:
                    break
                moved += received
            if inbound.is_whole:
                self._held.popleft()
                self._deliver([*inbound.frames, *inbound.payloads])
                moved += 1  # what was held after it may be delivered next
        return moved

    def _fill(self, inbound: _Inbound) -> int:
        """Receive into the payload that is not whole yet; return the bytes, or 1 where it has none."""
        size = inbound.sizes[inbound.n_whole]
        if len(inbound.payloads) == inbound.n_whole:
            inbound.payloads.append(self._memory.take(size))
        payload = inbound.payloads[-1]
        received = self._link.receive_into(payload[inbound.offset :]) if size else 0
        inbound.offset += received
        if inbound.offset < size:
            return received
        for tally in self._tallies:
            tally.received(size)
        inbound.n_whole, inbound.offset = inbound.n_whole + 1, 0
        return max(received, 1)


def send_paired(
    outgoing: Outgoing, pairing: Pairing | None, sock: zmq.Socket[bytes], prefix: bytes | None = None
) -> None:
    """Send a message, its payloads beside the fabric where `pairing` carries them. Raises as `Outgoing.send`."""
    payloads = outgoing.payloads() if pairing is not None else []
    sizes = tuple(payload.nbytes for payload in payloads)
    if pairing is None or not pairing.carries(sizes):
        outgoing.send(sock, prefix)
        return
    outgoing.send_header(sock, Envelope(Say.PAYLOADS, sizes).encode(), prefix)
    pairing.begin(payloads)
