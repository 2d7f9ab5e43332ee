"""What a worker is told when it starts.

Belongs here: the record and its defaults. Must not be here: parsing of options (`cli`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from rpc_backend.protocol.endpoint import Endpoint
from rpc_backend.protocol.negotiation import NEWEST

MIB = 1 << 20


@dataclass(frozen=True, slots=True)
class WorkerConfig:
    """One worker's settings, checked when it starts.

    `memory_cap_nbytes` holds a cap by device index; a device without one may be filled. `heartbeat_ms` is the
    silence after which a client is gone. `max_queued_nbytes` bounds what one session may have waiting, and
    `graphs_per_stream` how many of its graphs, and of its tasks, are kept per device. Results are sent to workers on
    this machine, and to those in `peer_allow`; a task waits `ticket_timeout_s` for tensors of other workers.
    """

    listen: tuple[Endpoint, ...]
    memory_cap_nbytes: Mapping[int, int] = field(default_factory=dict)
    heartbeat_ms: int = 5000
    insecure: bool = False
    proto_minor: int = NEWEST
    max_payload_nbytes: int = 32 * MIB
    max_queued_nbytes: int = 64 * MIB
    graphs_per_stream: int = 64
    stop_timeout_s: float = 5.0
    peer_allow: tuple[Endpoint, ...] = ()
    ticket_timeout_s: float = 300.0
