"""What a worker is told when it starts.

Belongs here: the record and its defaults. Must not be here: parsing of options (`cli`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from rpc_backend.protocol.endpoint import Endpoint
from rpc_backend.protocol.negotiation import NEWEST

MIB = 1 << 20


@dataclass(frozen=True, slots=True)
class WorkerConfig:
    """One worker's settings, checked when it starts.

    `memory_cap_nbytes` holds a cap by device index; a device without one may be filled. `heartbeat_ms` is the
    silence after which a client is gone. `max_queued_nbytes` bounds what one session may have waiting, and
    `graphs_per_stream` how many of its graphs, and of its tasks, are kept per device. Tensors are sent to workers that
    the client announced and that are in `peer_allow`; None is the rule of `dial_rules`, empty is nobody. A task waits
    `ticket_timeout_s` for tensors of other workers. Uploaded weights are kept in `cache_folder`, which then has
    `cache_limit_nbytes` at most, and are taken from there and from the GGUF files below `model_folders`; an index of
    such a file lies beside it, or in `index_folder`. Large ones are also known by FNV-1a, which a gateway's clients ask
    for, if `names_file` says where that is kept. Without `load_opt` each upload is copied once more before it is
    put in its place; with `load_profile` the times of each load are printed.
    """

    listen: tuple[Endpoint, ...]
    memory_cap_nbytes: Mapping[int, int] = field(default_factory=dict)
    heartbeat_ms: int = 5000
    insecure: bool = False
    proto_minor: int = NEWEST
    max_payload_nbytes: int = 32 * MIB
    max_queued_nbytes: int = 64 * MIB
    graphs_per_stream: int = 160
    cache_folder: Path | None = None
    cache_limit_nbytes: int | None = None
    model_folders: tuple[Path, ...] = ()
    index_folder: Path | None = None
    names_file: Path | None = None
    load_opt: bool = True
    load_profile: bool = False
    stop_timeout_s: float = 5.0
    peer_allow: tuple[Endpoint, ...] | None = None
    ticket_timeout_s: float = 300.0
