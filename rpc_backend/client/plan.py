"""A graph that a worker compiles when it is first computed.

Belongs here: the plan and how it is computed. Must not be here: other commands of a stream.
"""

from __future__ import annotations

from rpc_backend.client.queue import CommandQueue
from rpc_backend.graph import Graph, graph_digest
from rpc_backend.interfaces import Device, Plan
from rpc_backend.protocol.commands import GRAPH_COMPUTE, GRAPH_RECOMPUTE
from rpc_backend.protocol.records import GraphCompute, GraphRecompute, Record

_TENSOR_RECORD_NBYTES = 256  # about what one tensor of a graph takes in a message


class RemotePlan(Plan):
    """A graph encoded once; sent whole the first time, by its digest afterwards."""

    def __init__(self, device: Device, graph: Graph, record: Record) -> None:
        self.device = device
        self.graph = graph
        self._record = record
        self._digest = graph_digest(record)
        self._sent = False

    def queue(self, queue: CommandQueue) -> None:
        """Queue one run of the graph."""
        if self._sent:
            request = GraphRecompute(queue.stream, self._digest)
            queue.ask(GRAPH_RECOMPUTE, request, otherwise=lambda: self._send_whole(queue))
        else:
            self._send_whole(queue)

    def _send_whole(self, queue: CommandQueue) -> None:
        nbytes = _TENSOR_RECORD_NBYTES * len(self._record[0])
        request = GraphCompute(queue.stream, self._record)
        self._sent = queue.post(GRAPH_COMPUTE, request, nbytes=nbytes) is not None
