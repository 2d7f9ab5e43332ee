"""The steps of one client: small writes, the graph that follows them, and the read after it, as one task of the worker.

Belongs here: what is held back until the graph comes, and which task stands for it. Must not be here: the
translation of graphs (`translate`).

llama.cpp sends the same few inputs, the same graph and the same read again for every token. One message for all of
them is a fraction of the work that one each would be. Nobody else can see what is held back: all other commands of the
client come after it. A read is part of a step from the second time on that it follows the same graph.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, field
from typing import NamedTuple

import xxhash

from rpc_backend.plugin_api import GraphError, commands, graph_digest, records
from rpc_transport_ggml.places import Places
from rpc_transport_ggml.translate import Record, graph_record
from rpc_transport_ggml.wire import decode_graph, graph_device
from rpc_transport_ggml.worker_session import WorkerSession

MAX_HELD_NBYTES = 1 << 18
MAX_READ_NBYTES = 1 << 20
_MAX_HELD = 64
_MAX_KNOWN = 256
_MAX_VARIANTS = 3
_NOTHING = b""
"""Stands for the digest of a graph that computes nothing."""


class HeldWrite(NamedTuple):
    """The bytes of a whole tensor; `raw` is how the client described it, `record` how the worker knows it."""

    raw: bytes
    record: Record
    data: memoryview


class Read(NamedTuple):
    """A read of a whole tensor; `raw` and `record` as of a write."""

    raw: bytes
    record: Record
    device: int


class _Graph(NamedTuple):
    raw: memoryview
    key: bytes


@dataclass(slots=True)
class _Known:
    """The tasks of one graph after the same writes: their digests by what they read, and the read that is expected."""

    digests: dict[bytes, bytes] = field(default_factory=dict)
    read: Read | None = None


_Variants = dict[tuple[bytes, ...], _Known]


class _Running(NamedTuple):
    device: int
    graph: _Graph
    known: _Known
    read: Read | None
    digest: bytes
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
        self._variants: OrderedDict[bytes, _Variants] = OrderedDict()

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
        return self._end_step()[0]

    def take_read(self, read: Read) -> memoryview | None:
        """Return what the step that runs reads, if it is this; else note it for the next such step."""
        running = self._running
        if running is None or self._held or read.device != running.device:
            return None
        if running.read is not None and running.read.raw == read.raw:
            return self._end_step()[1]
        if len(running.known.digests) <= _MAX_VARIANTS:
            running.known.read = read
        return None

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
        self._variants.clear()

    def _run(self, device: int, graph: _Graph) -> None:
        self.settle()
        variants = self._variants_of(graph)
        key = tuple(write.raw for write in self._held)
        is_one_too_many = key not in variants and len(variants) >= _MAX_VARIANTS
        if self._held and (device != self._held_device or is_one_too_many):
            self.flush()
            key = ()
        known = variants.setdefault(key, _Known())
        read = known.read
        digest = known.digests.get(read.raw if read else b"")
        task: Record = []
        if digest is None:
            task = self._task(graph, self._held, read)
            digest = graph_digest(task) if task[0][1] else _NOTHING
            known.digests[read.raw if read else b""] = digest
        if digest == _NOTHING:
            self.flush()
            return
        writes = self._take_held()
        sequence = self._submit(device, records.Submit(digest, task, [], [], resume=bool(task)), writes)
        self._running = _Running(device, graph, known, read, digest, writes, sequence)

    def _end_step(self) -> tuple[bool, memoryview | None]:
        """Return what `settle` does, and what the step read."""
        running, self._running = self._running, None
        if running is None:
            return False, None
        answer = self._session.wait(running.sequence, commands.SUBMIT)
        if answer.body.result:
            return False, answer.payload
        task = self._task(running.graph, running.writes, running.read)
        whole = records.Submit(running.digest, task, [], [], resume=True)
        answer = self._session.wait(self._submit(running.device, whole, running.writes), commands.SUBMIT)
        return True, answer.payload

    def _submit(self, device: int, request: records.Submit, writes: list[HeldWrite]) -> int:
        payload = memoryview(b"".join(write.data for write in writes))
        return self._session.begin(commands.SUBMIT, request, stream=device, payload=payload)

    def _task(self, graph: _Graph, writes: list[HeldWrite], read: Read | None) -> Record:
        record = graph_record(decode_graph(graph.raw), self._places)
        return [record, [write.record for write in writes], [read.record] if read else [], [], []]

    def _variants_of(self, graph: _Graph) -> _Variants:
        """Return the tasks that a graph is part of, by the writes before it."""
        variants = self._variants.get(graph.key)
        if variants is None:
            variants = self._variants[graph.key] = {}
            if len(self._variants) > _MAX_KNOWN:
                self._variants.popitem(last=False)
        return variants

    def _take_held(self) -> list[HeldWrite]:
        held, self._held, self._held_nbytes = self._held, [], 0
        return held
