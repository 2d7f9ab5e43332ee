"""Two workers that send results to each other, without sockets: what arrives, and who is told what cannot."""

from __future__ import annotations

from contextlib import suppress

import pytest

from rpc_backend import errors
from rpc_backend.graph import Graph, build, element_type, encode_graph, graph_digest
from rpc_backend.interfaces import Channel
from rpc_backend.protocol import ErrorEvent, parse_endpoint
from rpc_backend.protocol import commands as c
from rpc_backend.protocol import records as r
from rpc_backend.protocol.peer_secrets import make_secret, name_of
from rpc_backend.testing.devices import FailingDevice, NullDevice
from rpc_backend.testing.inline_worker import InlineWorker
from rpc_backend.testing.raw_client import RawClient, leaf_record, reply_of
from rpc_backend.worker import WorkerConfig
from rpc_backend.worker.peer_link import OPEN_TIMEOUT_S

F32 = element_type("F32")
NBYTES = 64
TICKET, OTHER_TICKET = bytes(16), bytes([1] * 16)
NEAR, FAR = "tcp://127.0.0.1:9", "tcp://10.0.0.1:9"


class Pair:
    """A worker that sends, one that receives, a client at each who made them known to each other."""

    def __init__(
        self, *, near: WorkerConfig | None = None, far: WorkerConfig | None = None, fails_on=(), endpoint: str = NEAR
    ) -> None:
        self.channels: list[Channel] = []
        self.refuses = False
        self.far = InlineWorker([NullDevice("far")], far or WorkerConfig(()))
        device = FailingDevice(NullDevice("near"), fails_on)
        self.near = InlineWorker([device], near or WorkerConfig(()), self._dial)
        self.sender, self.receiver = RawClient(self.near), RawClient(self.far)
        self.from_handle, self.to_handle = self.sender.alloc(2 * NBYTES), self.receiver.alloc(2 * NBYTES)
        self.stands = self.announce(endpoint)

    def announce(self, endpoint: str) -> bool:
        """Make the far worker known to the near one under an endpoint; say whether the link stands."""
        secret = make_secret()
        with suppress(errors.SessionError):  # it may be too old
            self.receiver.ask(c.PEER_ADMIT, r.PeerAdmit(secret))
        return self.sender.ask(c.PEER_CONNECT, r.PeerConnect(endpoint, secret)).result

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
    pair.far.network.cut(pair.channels[0])
    pair.refuses = True
    sequence = pair.send(5)
    notice = pair.sender.notices()[-1]
    assert (notice.code, notice.request) == (c.PEER_PUSH.code, sequence)
    assert isinstance(notice.error, errors.ConnectError)
    assert NEAR in notice.error.message
    assert "no worker that knows this client answered there" in notice.error.message
    pair.sender.ask(c.SYNCHRONIZE, r.Empty())
    pair.refuses = False
    assert pair.announce(NEAR)
    pair.send(6, ticket=OTHER_TICKET)
    pair.receive(OTHER_TICKET)
    assert pair.received() == bytes([6]) * NBYTES, "announced again, it is connected to anew"


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


def test_what_was_not_announced_is_not_dialled():
    pair = Pair()
    n_dialled = len(pair.channels)
    pair.send(5, "tcp://127.0.0.1:10")
    assert len(pair.channels) == n_dialled
    assert told(pair.sender, errors.ConfigError, "did not announce it")


@pytest.mark.parametrize("allowed", [(), ("tcp://10.0.0.2:9", "tcp://10.0.0.1:10")])
def test_what_the_list_does_not_have_is_not_dialled(allowed):
    pair = Pair(near=WorkerConfig((), peer_allow=tuple(map(parse_endpoint, allowed))), endpoint=FAR)
    assert not pair.stands
    pair.send(5, FAR)
    assert pair.channels == []
    assert told(pair.sender, errors.ConfigError, "may not connect to tcp://10.0.0.1:9")


def test_what_the_list_has_is_dialled():
    pair = Pair(near=WorkerConfig((), peer_allow=(parse_endpoint(FAR),)), endpoint=FAR)
    assert pair.stands
    pair.send(5, FAR)
    pair.receive()
    assert pair.received() == bytes([5]) * NBYTES


def test_without_a_list_other_machines_are_dialled_too():
    assert Pair(endpoint=FAR).stands


def test_a_worker_that_serves_others_does_not_dial_its_own_machine():
    pair = Pair(near=WorkerConfig((parse_endpoint("tcp://*:1", listen=True),)))
    assert not pair.stands
    assert pair.channels == []
    assert pair.announce(FAR)


def test_a_worker_that_cannot_dial_says_so():
    pair = Pair()
    pair.sender = RawClient(InlineWorker([NullDevice("only")]))
    assert not pair.announce(NEAR)


@pytest.mark.parametrize("trouble", ["nobody", "stranger", "older", "liar", "dies"])
def test_a_client_cannot_tell_what_is_at_an_endpoint_that_is_no_worker_of_its_own(trouble, monkeypatch):
    pauses = []
    monkeypatch.setattr("rpc_backend.testing.inline_worker._do_not_wait", pauses.append)
    pair = Pair(far=WorkerConfig((), proto_minor=2)) if trouble == "older" else None
    if pair is None:
        pair = Pair()
        pauses.clear()
        pair.refuses = trouble == "nobody"
        if trouble == "liar":
            monkeypatch.setattr("rpc_backend.worker.admissions.proof_of", lambda *_: bytes(32))
        if trouble == "dies":
            monkeypatch.setattr(type(pair.far.service), "on_message", lambda *_: 1 / 0)
        secret = make_secret()
        if trouble not in ("stranger", "dies"):
            pair.receiver.ask(c.PEER_ADMIT, r.PeerAdmit(secret))
        assert not pair.sender.ask(c.PEER_CONNECT, r.PeerConnect(NEAR, secret)).result
    assert not pair.stands or trouble != "older"
    assert len(pauses) == 1
    assert OPEN_TIMEOUT_S - 1 < pauses[0] <= OPEN_TIMEOUT_S
    n_dialled = len(pair.channels)
    pair.send(5)
    assert told(pair.sender, errors.ConnectError, f"{NEAR}: no worker that knows this client answered there")
    assert len(pair.channels) == n_dialled, "it is tried again only when it is announced again"


def test_the_secret_is_never_sent_to_the_other_worker():
    pair = Pair()
    secret = make_secret()
    pair.receiver.ask(c.PEER_ADMIT, r.PeerAdmit(secret))
    before = len(pair.far.network.sent.to_worker)
    assert pair.sender.ask(c.PEER_CONNECT, r.PeerConnect(NEAR, secret)).result
    said = b"".join(frame for frames in pair.far.network.sent.to_worker[before:] for frame in frames)
    assert name_of(secret) in said
    assert secret not in said


def test_only_so_many_links_are_opened_at_once(monkeypatch):
    monkeypatch.setattr("rpc_backend.worker.peers.MAX_OPENING", 0)
    pair = Pair()
    assert not pair.stands
    assert pair.channels == []


@pytest.mark.parametrize(
    ("endpoint", "secret", "error"),
    [("nowhere", bytes(32), errors.EndpointError), (NEAR, bytes(31), errors.RemoteProtocolError)],
)
def test_a_malformed_announcement_is_an_error(endpoint, secret, error):
    with pytest.raises(error):
        Pair().sender.ask(c.PEER_CONNECT, r.PeerConnect(endpoint, secret))


def test_a_worker_of_minor_3_takes_no_tensors_under_tickets():
    pair = Pair(far=WorkerConfig((), proto_minor=3))
    assert pair.stands
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
    assert pair.announce(NEAR), "the same one again"
    with pytest.raises(errors.LimitError, match="links to 1 workers"):
        pair.announce("tcp://127.0.0.1:10")


def test_links_of_a_worker_that_closes_are_closed():
    pair = Pair()
    pair.send(1)
    pair.near.close()
    assert not pair.channels[0].is_open
