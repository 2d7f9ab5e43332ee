"""What a socket of the fabric is set to.

Belongs here: the options and how they are made of settings and limits. Must not be here: sockets.
"""

from __future__ import annotations

from dataclasses import dataclass

from rpc_backend.protocol.framing import MIB, Limits
from rpc_backend.settings import Settings


@dataclass(frozen=True, slots=True)
class FabricOptions:
    """Options of one channel or listener.

    A frame above `max_frame_nbytes` ends the connection before it is read. The queue lengths are what a socket itself
    holds per connection; large payloads of a worker are bounded by `max_in_flight_nbytes` as well.
    `max_queued_nbytes` is what may wait for one client that does not read before it is cut off.
    """

    heartbeat_timeout_ms: int = 5000
    connect_timeout_ms: int = 5000
    max_frame_nbytes: int = 64 * MIB
    max_frames: int = 8
    send_queue_messages: int = 256
    receive_queue_messages: int = 16
    max_in_flight_nbytes: int = 16 * MIB
    max_queued_nbytes: int = 512 * MIB

    @classmethod
    def of(cls, settings: Settings, limits: Limits) -> FabricOptions:
        """Take what settings and limits say."""
        return cls(
            heartbeat_timeout_ms=settings.heartbeat_timeout_ms,
            connect_timeout_ms=settings.connect_timeout_ms,
            max_frame_nbytes=limits.max_frame_nbytes,
            max_frames=limits.max_payloads + 1,
        )
