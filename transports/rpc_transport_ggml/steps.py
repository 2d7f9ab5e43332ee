"""The steps of one client: small writes and the graph that follows them, as one task of the worker.

Belongs here: what is held back until the graph comes, and which task stands for it. Must not be here: the
translation of graphs (`translate`).

llama.cpp sends the same few inputs and the same graph again for every token. One message for all of them is a
fraction of the work that one each would be. Nobody else can see what is held back: all other commands of the client
come after it.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import NamedTuple

import xxhash

from rpc_backend.plugin_api import GraphError, commands, graph_digest, records
from rpc_transport_ggml.places import Places
from rpc_transport_ggml.translate import Record, graph_record
from rpc_transport_ggml.wire import decode_graph, graph_device
from rpc_transport_ggml.worker_session import WorkerSession

MAX_HELD_NBYTES = 1 << 18
_MAX_HELD = 64
_MAX_KNOWN = 256
_MAX_VARIANTS = 2
_NOTHING = b""
"""Stands for the digest of a graph that computes nothing."""


class HeldWrite(NamedTuple):
    """The bytes of a whole tensor; `raw` is how the client described it, `record` how the worker knows it."""

    raw: bytes
    record: Record
    data: memoryview


class _Graph(NamedTuple):
    raw: memoryview
    key: bytes


_Variant = tuple[bytes, ...]


class _Running(NamedTuple):
    device: int
    graph: _Graph
    request: records.Submit
    writes: list[HeldWrite]
    sequence: int


class Steps:
    """Holds writes, runs graphs. `forget_graphs` is due when a buffer is freed.

    What runs is not waited for: `settle` does. An error of it ends the session (`WorkerSession.begin`).
    """

    def __init__(self, session: WorkerSession, places: Places) -> None:
        self._session = session
        self._places = places
        self._held: list[HeldWrite] = []
        self._held_nbytes = 0
        self._held_device = 0
        self._running: _Running | None = None
        self._last: dict[int, _Graph] = {}
        self._digests: OrderedDict[bytes, dict[_Variant, bytes]] = OrderedDict()

    def hold(self, device: int, write: HeldWrite) -> None:
        """Keep a write until a graph or another command comes."""
        is_full = len(self._held) == _MAX_HELD or self._held_nbytes + write.data.nbytes > MAX_HELD_NBYTES
        if self._held and (is_full or device != self._held_device):
            self.flush()
        self._held.append(write)
        self._held_nbytes += write.data.nbytes
        self._held_device = device

    def flush(self) -> None:
        """Send what is held back, each write by itself, after the graph that was sent."""
        if self._held:
            self.settle()
        for write in self._take_held():
            request = records.TensorRange(write.record, 0, write.data.nbytes)
            self._session.tell(commands.SET_TENSOR, request, stream=self._held_device, payload=write.data)

    def settle(self) -> bool:
        """Wait until the graph that was sent has run; True if it began only now, because the worker had dropped it."""
        running, self._running = self._running, None
        if running is None or self._session.wait(running.sequence, commands.SUBMIT).body.result:
            return False
        device, graph, request, writes, _ = running
        whole = records.Submit(request.digest, self._task(graph, writes), [], [], resume=True)
        self._session.wait(self._submit(device, whole, writes), commands.SUBMIT)
        return True

    def finish(self) -> None:
        """Send what is held back, and wait until all that was sent has run."""
        self.flush()
        self.settle()

    def compute(self, raw: memoryview) -> None:
        """Run a graph. Raises as `decode_graph` and `graph_record`, and what the worker answers."""
        device = graph_device(raw)
        if device >= self._session.n_devices:
            raise GraphError(f"a graph for device {device}, but there are {self._session.n_devices}")
        graph = _Graph(raw, xxhash.xxh3_128_digest(raw))
        self._run(device, graph)
        self._last[device] = graph

    def repeat(self, device: int) -> None:
        """Run the last graph of a device again. Raises GraphError: there is none, or a buffer was freed since."""
        graph = self._last.get(device)
        if graph is None:
            raise GraphError(f"there is no graph of device {device} to repeat")
        self._run(device, graph)

    def forget_graphs(self) -> None:
        """Let nothing be repeated until it comes again."""
        self._last.clear()

    def _run(self, device: int, graph: _Graph) -> None:
        self.settle()
        known = self._known(graph)
        variant = tuple(write.raw for write in self._held)
        is_one_too_many = variant not in known and len(known) > _MAX_VARIANTS
        if self._held and (device != self._held_device or is_one_too_many or known.get(()) is _NOTHING):
            self.flush()
            variant = ()
        digest = known.get(variant)
        if digest is _NOTHING:
            return
        task: Record = []
        if digest is None:
            task = self._task(graph, self._held)
            if not task[0][1]:
                known[()] = _NOTHING
                self.flush()
                return
            digest = known[variant] = graph_digest(task)
        writes = self._take_held()
        request = records.Submit(digest, task, [], [], resume=bool(task))
        self._running = _Running(device, graph, request, writes, self._submit(device, request, writes))

    def _submit(self, device: int, request: records.Submit, writes: list[HeldWrite]) -> int:
        payload = memoryview(b"".join(write.data for write in writes))
        return self._session.begin(commands.SUBMIT, request, stream=device, payload=payload)

    def _task(self, graph: _Graph, writes: list[HeldWrite]) -> Record:
        return [graph_record(decode_graph(graph.raw), self._places), [write.record for write in writes], [], [], []]

    def _known(self, graph: _Graph) -> dict[_Variant, bytes]:
        """Return the digests of the tasks that a graph is part of, by the writes before it."""
        known = self._digests.get(graph.key)
        if known is None:
            known = self._digests[graph.key] = {}
            if len(self._digests) > _MAX_KNOWN:
                self._digests.popitem(last=False)
        return known

    def _take_held(self) -> list[HeldWrite]:
        held, self._held, self._held_nbytes = self._held, [], 0
        return held
