"""A graph that a worker compiles when it is first computed.

Belongs here: the plan, and whether the worker has it. Must not be here: running it (`runs`).
"""

from __future__ import annotations

from rpc_backend.graph import Graph, graph_digest
from rpc_backend.interfaces import Device, Plan
from rpc_backend.protocol.records import Record

_TENSOR_RECORD_NBYTES = 256  # about what one tensor of a graph takes in a message


class Content:
    """A record that is sent whole the first time, and by its digest as long as the worker knows that.

    `nbytes` is about what the record takes in a message.
    """

    __slots__ = ("digest", "nbytes", "record", "was_sent")

    def __init__(self, record: Record, n_tensors: int) -> None:
        self.record = record
        self.digest = graph_digest(record)
        self.nbytes = _TENSOR_RECORD_NBYTES * n_tensors
        self.was_sent = False

    @property
    def pending_nbytes(self) -> int:
        """About what the next message takes."""
        return _TENSOR_RECORD_NBYTES if self.was_sent else self.nbytes


class RemotePlan(Plan):
    """A graph encoded once."""

    def __init__(self, device: Device, graph: Graph, record: Record) -> None:
        self.device = device
        self.graph = graph
        self.content = Content(record, len(record[0]))
