"""The bodies of all messages: small typed records.

Belongs here: one record per request and reply, and the tensor forms they carry. Must not be here: framing,
or what a command does.

A record travels as the list of its fields. A newer minor version may only append fields with defaults.
`tensor` fields are `encode_tensor` records without references (a leaf with its absolute place), `graph` fields
are `encode_graph` records, and `ops` are lists of graph records with one node each.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

Record = list[Any]
"""A tensor or graph record of `rpc_backend.graph`."""


@dataclass(frozen=True, slots=True)
class Empty:
    """No fields."""


@dataclass(frozen=True, slots=True)
class Hello:
    """What a client says first. `heartbeat_ms` is the silence after which it counts the worker as lost.

    `links` are the payload links it could have, each `[transport, data, ""]`; those of a client before minor 4 are
    not looked at.
    """

    major: int
    minor: int
    op_digest: str
    build: str
    abilities: list[str]
    heartbeat_ms: int
    links: list[list[Any]] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class HelloReply:
    """What a worker answers. `devices` has `[name, description, kind]` of each device.

    `max_payload_nbytes` bounds one payload frame, `max_queued_nbytes` what a session may have queued. `links` answers
    those of the client, each `[transport, data, refusal]`; the one without a refusal is taken up.
    """

    major: int
    minor: int
    op_digest: str
    build: str
    abilities: list[str]
    session: bytes
    epoch: int
    devices: list[list[str]]
    max_payload_nbytes: int
    max_queued_nbytes: int
    links: list[list[Any]] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class DeviceRef:
    """A device by its index on the worker."""

    device: int


@dataclass(frozen=True, slots=True)
class Count:
    """A count of devices."""

    count: int


@dataclass(frozen=True, slots=True)
class Size:
    """A size in bytes."""

    nbytes: int


@dataclass(frozen=True, slots=True)
class DeviceMemory:
    """Memory of a device, in bytes, under the worker's cap."""

    free_nbytes: int
    total_nbytes: int


@dataclass(frozen=True, slots=True)
class AllocBuffer:
    """Ask for memory; `usage` is a `BufferUsage`."""

    device: int
    nbytes: int
    usage: str


@dataclass(frozen=True, slots=True)
class BufferRef:
    """A buffer by its handle."""

    handle: int


@dataclass(frozen=True, slots=True)
class BufferBase:
    """The start of a buffer in the session's flat address space, an invention of the worker."""

    base: int


@dataclass(frozen=True, slots=True)
class BufferClear:
    """Set every byte of a buffer."""

    handle: int
    value: int


@dataclass(frozen=True, slots=True)
class TensorRef:
    """One placed tensor."""

    tensor: Record


@dataclass(frozen=True, slots=True)
class TensorRange:
    """Bytes of a placed tensor."""

    tensor: Record
    offset: int
    nbytes: int


@dataclass(frozen=True, slots=True)
class TensorHash:
    """Content that the worker may already hold: an xxh3-128 digest of `nbytes` bytes at `offset` of a tensor.

    A gateway in the worker's process may give the 8 bytes of FNV-1a in its place, big-endian.

    True = they are in place. False = they are not, and what was there may be gone; if they are uploaded now, a worker
    with a cache keeps them under the digest.
    """

    tensor: Record
    offset: int
    nbytes: int
    digest: bytes


@dataclass(frozen=True, slots=True)
class TensorFill:
    """Set bytes of a placed tensor."""

    tensor: Record
    offset: int
    nbytes: int
    value: int


@dataclass(frozen=True, slots=True)
class TensorPair:
    """Copy `source` over `target`."""

    source: Record
    target: Record


@dataclass(frozen=True, slots=True)
class Result:
    """Whether it was done; False is no error, the caller has another way."""

    result: bool


@dataclass(frozen=True, slots=True)
class OpQuery:
    """Questions about operations on one device."""

    device: int
    ops: list[Record]


@dataclass(frozen=True, slots=True)
class Sizes:
    """One size in bytes per question."""

    nbytes: list[int]


@dataclass(frozen=True, slots=True)
class Flags:
    """One yes or no per question."""

    flags: list[bool]


@dataclass(frozen=True, slots=True)
class GraphCompute:
    """Compute a graph and remember it under its digest."""

    device: int
    graph: Record


@dataclass(frozen=True, slots=True)
class GraphRecompute:
    """Compute a graph again that was sent before."""

    device: int
    digest: bytes


@dataclass(frozen=True, slots=True)
class TensorRanges:
    """Bytes of several placed tensors, each `[tensor, offset, nbytes]`; they travel as one payload, end to end."""

    ranges: list[list[Any]]


@dataclass(frozen=True, slots=True)
class EventRef:
    """An event of the session, by a number that the client gives."""

    event: int


@dataclass(frozen=True, slots=True)
class Submit:
    """One run of a task: its inputs are the payload, end to end in the order of the task's writes.

    `task` is the task record, or empty if the worker has it under `digest`: `[graph, writes, reads, receives, onward]`,
    the middle three lists of tensor records, `onward` a list of `[tensor, endpoint, device]` with endpoint "" for
    this worker. `receive_tickets` and `onward_tickets` have one ticket for each of those. `resume` ends a refusal:
    after a task was not known, nothing of the stream runs until a SUBMIT has it.
    """

    digest: bytes
    task: Record
    receive_tickets: list[bytes]
    onward_tickets: list[bytes]
    resume: bool


@dataclass(frozen=True, slots=True)
class PeerPush:
    """A tensor for the task that waits for `ticket`; the bytes are the payload."""

    ticket: bytes


@dataclass(frozen=True, slots=True)
class PeerFail:
    """The tensor of `ticket` will not come; `failure` has the fields of a `Failure`."""

    ticket: bytes
    failure: list[Any]


@dataclass(frozen=True, slots=True)
class Tickets:
    """Tickets that nobody will serve, or take; `reason` is for the error of the tasks that wait for them."""

    tickets: list[bytes]
    reason: str = ""


@dataclass(frozen=True, slots=True)
class CopyTensorTo:
    """Copy the first `nbytes` of `source` over `target`, on device `device` of the worker at `endpoint`.

    `target` is a record of the same client's session there.
    """

    source: Record
    target: Record
    nbytes: int
    endpoint: str
    device: int


@dataclass(frozen=True, slots=True)
class PeerAdmit:
    """Who knows `secret` may write the tensors of this session."""

    secret: bytes


@dataclass(frozen=True, slots=True)
class PeerConnect:
    """The worker at `endpoint` belongs to this client too, and admits who knows `secret`."""

    endpoint: str
    secret: bytes


@dataclass(frozen=True, slots=True)
class PeerJoin:
    """The sender knows the secret of this `name`; see `protocol.peer_secrets`."""

    name: bytes
    nonce: bytes
    proof: bytes


@dataclass(frozen=True, slots=True)
class PeerProof:
    """The receiver knows it too."""

    proof: bytes


@dataclass(frozen=True, slots=True)
class Stats:
    """Counts since the worker started: per command `[calls, bytes in, bytes out]`.

    `weights` counts what a digest saved: hits, misses, and bytes by where they came from or went to. `carried` counts
    what went beside the fabric: per payload transport `[links, payloads in, bytes in, payloads out, bytes out]`.
    """

    commands: dict[str, list[int]]
    sessions: int
    uptime_s: float
    weights: dict[str, int] = field(default_factory=dict)
    carried: dict[str, list[int]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Failure:
    """An error as it travels; the fields of `errors.ErrorContext`, and the wire code.

    `request` is set in notices: the sequence number of the request that failed, 0 if it was no single one.
    """

    code: int
    message: str
    worker: str = ""
    device: str = ""
    command: str = ""
    op: str = ""
    remote_type: str = ""
    traceback: str = ""
    request: int = 0
