"""The command table: one row per wire command.

Belongs here: rows. Client stubs, worker dispatch, counters, documentation and golden-bytes tests derive
from it. Must not be here: what a command does, which the worker's handlers know.

A code is never reused and HELLO never moves. Source: codes 0 to 17 are those of ggml-rpc 7.0.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Generic, TypeVar

from rpc_backend.protocol import records as r

MAJOR = 1
MINOR = 5

Request = TypeVar("Request")
Reply = TypeVar("Reply")


class Payload(Enum):
    """Which side of a command carries one raw payload frame."""

    NONE = "none"
    REQUEST = "request"
    REPLY = "reply"
    BOTH = "both"

    def covers(self, side: Payload) -> bool:
        """Whether `side` (REQUEST or REPLY) carries a payload."""
        return self in (side, Payload.BOTH)


class Lane(Enum):
    """Where a worker runs a command: at once, or in the order of its stream."""

    CONTROL = "control"
    STREAM = "stream"


@dataclass(frozen=True, slots=True)
class Command(Generic[Request, Reply]):
    """One row. `reply` None means that the request is never answered; `since` is the first minor that has it."""

    code: int
    name: str
    request: type[Request]
    reply: type[Reply] | None
    lane: Lane
    doc: str
    payload: Payload = Payload.NONE
    since: int = 1


_C, _S = Lane.CONTROL, Lane.STREAM

HELLO = Command(14, "HELLO", r.Hello, r.HelloReply, _C, "Open a session; the first request of every connection.")
DEVICE_COUNT = Command(15, "DEVICE_COUNT", r.Empty, r.Count, _C, "Count the worker's devices.")
GET_ALIGNMENT = Command(1, "GET_ALIGNMENT", r.DeviceRef, r.Size, _C, "Alignment of tensors in buffers of a device.")
GET_MAX_SIZE = Command(2, "GET_MAX_SIZE", r.DeviceRef, r.Size, _C, "Largest buffer of a device.")
GET_DEVICE_MEMORY = Command(11, "GET_DEVICE_MEMORY", r.DeviceRef, r.DeviceMemory, _C, "Free and total memory.")
ALLOC_BUFFER = Command(0, "ALLOC_BUFFER", r.AllocBuffer, r.BufferRef, _S, "Allocate a buffer.")
BUFFER_GET_BASE = Command(3, "BUFFER_GET_BASE", r.BufferRef, r.BufferBase, _C, "Base of a buffer's addresses.")
FREE_BUFFER = Command(4, "FREE_BUFFER", r.BufferRef, None, _S, "Free a buffer.")
BUFFER_CLEAR = Command(5, "BUFFER_CLEAR", r.BufferClear, None, _S, "Set every byte of a buffer.")
SET_TENSOR = Command(
    6, "SET_TENSOR", r.TensorRange, None, _S, "Write bytes of a tensor from the payload.", Payload.REQUEST
)
SET_TENSOR_HASH = Command(
    7, "SET_TENSOR_HASH", r.TensorHash, r.Result, _S, "Write bytes of a tensor that the worker already holds."
)
GET_TENSOR = Command(8, "GET_TENSOR", r.TensorRange, r.Empty, _S, "Read bytes of a tensor.", Payload.REPLY)
COPY_TENSOR = Command(9, "COPY_TENSOR", r.TensorPair, r.Result, _S, "Copy a tensor within the worker.")
GRAPH_COMPUTE = Command(10, "GRAPH_COMPUTE", r.GraphCompute, None, _S, "Compute a graph.")
INIT_TENSOR = Command(12, "INIT_TENSOR", r.TensorRef, None, _S, "Prepare the memory of a tensor before its first use.")
GET_ALLOC_SIZE = Command(13, "GET_ALLOC_SIZE", r.OpQuery, r.Sizes, _C, "Bytes to reserve for each of some tensors.")
GRAPH_RECOMPUTE = Command(
    16, "GRAPH_RECOMPUTE", r.GraphRecompute, r.Result, _S, "Compute a known graph again; False = send it whole."
)
MEMSET_TENSOR = Command(17, "MEMSET_TENSOR", r.TensorFill, None, _S, "Set bytes of a tensor.")
GET_TENSORS = Command(
    18, "GET_TENSORS", r.TensorRanges, r.Empty, _S, "Read bytes of several tensors.", Payload.REPLY, since=2
)
COPY_TENSOR_TO = Command(
    19,
    "COPY_TENSOR_TO",
    r.CopyTensorTo,
    r.Result,
    _S,
    "Copy a tensor to another worker; answered when it is there. False = copy through the client.",
    since=3,
)
PEER_BARRIER = Command(
    20, "PEER_BARRIER", r.Empty, r.Empty, _S, "Answered when all before it on the stream is written.", since=3
)
SYNCHRONIZE = Command(64, "SYNCHRONIZE", r.Empty, r.Empty, _S, "Answered when all before it on the stream is done.")
SUPPORTS_OP = Command(65, "SUPPORTS_OP", r.OpQuery, r.Flags, _C, "Whether a device runs each of some operations.")
PING = Command(66, "PING", r.Empty, r.Empty, _C, "Answered at once: the worker's own thread is alive.")
STATS = Command(67, "STATS", r.Empty, r.Stats, _C, "Counters of the worker.")
GOODBYE = Command(68, "GOODBYE", r.Empty, None, _C, "Close the session and free all it holds.")
SUBMIT = Command(
    69,
    "SUBMIT",
    r.Submit,
    r.Result,
    _S,
    "Run a task, read its results; False = send it whole.",
    Payload.BOTH,
    since=4,
)
SUBMIT_ONWARD = Command(
    70, "SUBMIT_ONWARD", r.Submit, None, _S, "Run a task whose results all go onward.", Payload.REQUEST, since=4
)
EVENT_RECORD = Command(71, "EVENT_RECORD", r.EventRef, None, _S, "Mark a point in a stream.", since=4)
EVENT_WAIT = Command(
    72, "EVENT_WAIT", r.EventRef, None, _S, "Hold a stream until the point last marked before is passed.", since=4
)
PEER_PUSH = Command(
    73,
    "PEER_PUSH",
    r.PeerPush,
    None,
    _C,
    "Bring a tensor for the task that has its ticket.",
    Payload.REQUEST,
    since=4,
)
PEER_FAIL = Command(74, "PEER_FAIL", r.PeerFail, None, _C, "Say why the tensor of a ticket will not come.", since=4)
DROP_TICKETS = Command(75, "DROP_TICKETS", r.Tickets, None, _C, "Say that nobody will serve some tickets.", since=4)
PEER_ADMIT = Command(
    76, "PEER_ADMIT", r.PeerAdmit, r.Empty, _C, "Let workers that know a secret write for this session.", since=3
)
PEER_CONNECT = Command(
    77,
    "PEER_CONNECT",
    r.PeerConnect,
    r.Result,
    _C,
    "Announce another worker; answered when the link to it stands. False = copy through the client.",
    since=3,
)
PEER_JOIN = Command(78, "PEER_JOIN", r.PeerJoin, r.PeerProof, _C, "Show that both workers know a secret.", since=3)

BURY_TICKETS = Command(79, "BURY_TICKETS", r.Tickets, None, _C, "Say that no task will take some tickets.", since=5)

COMMANDS: dict[int, Command] = {row.code: row for row in list(globals().values()) if isinstance(row, Command)}
