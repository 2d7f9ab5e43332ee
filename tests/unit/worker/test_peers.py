"""Two workers that send to each other, without sockets: what arrives, and who is told what cannot."""

from __future__ import annotations

import pytest

from rpc_backend import errors
from rpc_backend.graph import Graph, build, element_type, encode_graph, graph_digest
from rpc_backend.interfaces import Channel
from rpc_backend.protocol import ErrorEvent, parse_endpoint
from rpc_backend.protocol import commands as c
from rpc_backend.protocol import records as r
from rpc_backend.testing.devices import FailingDevice, NullDevice
from rpc_backend.testing.inline_worker import InlineWorker
from rpc_backend.testing.raw_client import RawClient, leaf_record, reply_of
from rpc_backend.worker import WorkerConfig

F32 = element_type("F32")
NBYTES = 64
TICKET, OTHER_TICKET = bytes(16), bytes([1] * 16)
NEAR, FAR = "tcp://127.0.0.1:9", "tcp://10.0.0.1:9"


class Pair:
    """A worker that sends, one that receives, a client at each."""

    def __init__(self, *, near: WorkerConfig | None = None, far: WorkerConfig | None = None, fails_on=()) -> None:
        self.channels: list[Channel] = []
        self.refuses = False
        self.far = InlineWorker([NullDevice("far")], far or WorkerConfig(()))
        device = FailingDevice(NullDevice("near"), fails_on)
        self.near = InlineWorker([device], near or WorkerConfig(()), self._dial)
        self.sender, self.receiver = RawClient(self.near), RawClient(self.far)
        self.from_handle, self.to_handle = self.sender.alloc(2 * NBYTES), self.receiver.alloc(2 * NBYTES)

    def _dial(self, endpoint, on_message, on_lost) -> Channel:
        if self.refuses:
            raise errors.ConnectError(f"cannot connect to {endpoint}: nobody listens there")
        self.channels.append(self.far.network.connect(on_message=on_message, on_lost=on_lost))
        return self.channels[-1]

    def send(self, value: int, endpoint: str = NEAR, ticket: bytes = TICKET) -> int:
        """Run a task whose input goes on to the other worker; return its sequence number."""
        record = [graph(self.from_handle), [leaf_record(self.from_handle)], [], [], []]
        record[4] = [[leaf_record(self.from_handle), endpoint, 0]]
        request = r.Submit(graph_digest(record), record, [], [ticket], False)
        return self.sender.say(c.SUBMIT_ONWARD, request, payload=bytes([value]) * NBYTES)

    def receive(self, ticket: bytes = TICKET) -> None:
        """Ask for a task that reads what it receives."""
        place = leaf_record(self.to_handle)
        record = [graph(self.to_handle), [], [place], [place], []]
        self.receiver.say(c.SUBMIT, r.Submit(graph_digest(record), record, [ticket], [], False), payload=b"")

    def received(self) -> bytes:
        return bytes(reply_of(self.receiver.answers()[-1]).payload)


def graph(handle: int) -> r.Record:
    x = build.leaf(F32, [NBYTES // 4])
    return encode_graph(Graph.of(build.add(x, x)), lambda tensor: (handle, 0 if tensor is x else NBYTES))


def sessions(worker: InlineWorker) -> int:
    return len(worker.service.state.sessions)


@pytest.mark.parametrize("first", ["sender", "receiver"])
def test_a_result_reaches_the_other_worker_whoever_comes_first(first):
    pair = Pair()
    if first == "receiver":
        pair.receive()
    pair.send(5)
    if first == "sender":
        pair.receive()
    assert pair.received() == bytes([5]) * NBYTES


def test_one_link_serves_a_session_and_closes_with_it():
    pair = Pair()
    for value in (1, 2):
        pair.send(value, ticket=bytes([value] * 16))
        pair.receive(bytes([value] * 16))
        assert pair.received() == bytes([value]) * NBYTES
    assert len(pair.channels) == 1
    assert sessions(pair.far) == 2
    pair.sender.say(c.GOODBYE, r.Empty())
    assert sessions(pair.far) == 1
    assert not pair.channels[0].is_open


def test_what_a_lost_client_had_sent_does_not_stay_there():
    pair = Pair()
    pair.send(5)
    assert len(pair.far.service.state.mailbox) == 1
    pair.near.network.cut(pair.sender.channel)
    assert len(pair.far.service.state.mailbox) == 0


def test_a_failure_of_the_sender_reaches_who_waits():
    pair = Pair(fails_on=(1,))
    pair.receive()
    pair.send(5)
    answer = pair.receiver.answers()[-1]
    assert isinstance(answer, ErrorEvent)
    assert isinstance(answer.error, errors.ComputeError)
    assert answer.error.context.device == "near"


def test_a_worker_that_cannot_be_reached_is_told_to_the_client_with_the_request():
    pair = Pair()
    pair.refuses = True
    sequence = pair.send(5)
    notice = pair.sender.notices()[-1]
    assert (notice.code, notice.request) == (c.PEER_PUSH.code, sequence)
    assert isinstance(notice.error, errors.ConnectError)
    assert NEAR in notice.error.message
    pair.sender.ask(c.SYNCHRONIZE, r.Empty())
    pair.refuses = False
    pair.send(6)
    pair.receive()
    assert pair.received() == bytes([6]) * NBYTES, "the next one connects anew"


def test_a_link_that_is_lost_is_told_and_replaced():
    pair = Pair()
    sequence = pair.send(1)
    pair.far.network.cut(pair.channels[0])
    notice = pair.sender.notices()[-1]
    assert (notice.code, notice.request) == (c.PEER_PUSH.code, sequence)
    assert isinstance(notice.error, errors.WorkerLostError)
    pair.send(2, ticket=OTHER_TICKET)
    pair.receive(OTHER_TICKET)
    assert pair.received() == bytes([2]) * NBYTES


def told(client: RawClient, kind: type[Exception], text: str) -> bool:
    """Whether a notice says so of a task, and one of what it could not send."""
    found = [notice.code for notice in client.notices() if isinstance(notice.error, kind) and text in str(notice.error)]
    return found[-1] == c.SUBMIT_ONWARD.code and c.PEER_PUSH.code in found


def test_other_machines_are_dialled_only_if_allowed():
    pair = Pair()
    pair.send(5, FAR)
    assert pair.channels == []
    assert told(pair.sender, errors.ConfigError, "may not connect to tcp://10.0.0.1:9")
    allowed = Pair(near=WorkerConfig((), peer_allow=(parse_endpoint(FAR),)))
    allowed.send(5, FAR)
    allowed.receive()
    assert allowed.received() == bytes([5]) * NBYTES


def test_a_worker_that_cannot_dial_says_so():
    worker = InlineWorker([NullDevice("only")])
    pair = Pair()
    pair.near, pair.sender = worker, RawClient(worker)
    pair.from_handle = pair.sender.alloc(2 * NBYTES)
    pair.send(5)
    assert told(pair.sender, errors.ConfigError, "may not connect")


def test_an_older_worker_takes_no_tensors():
    pair = Pair(far=WorkerConfig((), proto_minor=3))
    pair.send(5)
    notice = pair.sender.notices()[-1]
    assert isinstance(notice.error, errors.NegotiationError)
    assert "minor 4" in notice.error.message


def test_a_tensor_above_what_the_other_takes_is_told_to_both():
    pair = Pair(far=WorkerConfig((), max_payload_nbytes=NBYTES - 1))
    pair.receive()
    pair.send(5)
    assert isinstance(pair.sender.notices()[-1].error, errors.LimitError)
    answer = pair.receiver.answers()[-1]
    assert isinstance(answer, ErrorEvent)
    assert isinstance(answer.error, errors.LimitError)


def test_more_than_the_other_will_keep_is_told_to_the_client():
    pair = Pair(far=WorkerConfig((), max_queued_nbytes=2000))
    sequences = [pair.send(1, ticket=bytes([number] * 16)) for number in range(4)]
    refused = {notice.request for notice in pair.sender.notices() if isinstance(notice.error, errors.LimitError)}
    assert refused == set(sequences[-1:]) or refused == set(sequences[-2:])


def test_a_session_has_only_so_many_links(monkeypatch):
    monkeypatch.setattr("rpc_backend.worker.peers.MAX_LINKS_PER_SESSION", 1)
    pair = Pair()
    pair.send(1)
    pair.send(2, "tcp://127.0.0.1:10")
    assert told(pair.sender, errors.LimitError, "links to 1 workers")


def test_links_of_a_worker_that_closes_are_closed():
    pair = Pair()
    pair.send(1)
    pair.near.close()
    assert not pair.channels[0].is_open
