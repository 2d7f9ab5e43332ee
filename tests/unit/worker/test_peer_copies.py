"""COPY_TENSOR_TO between inline workers: what lands, what is declined, what is an error, and who may write what."""

from __future__ import annotations

import pytest

from rpc_backend import errors
from rpc_backend.protocol import commands as c
from rpc_backend.protocol import records as r
from rpc_backend.protocol.peer_secrets import Role, make_nonce, make_secret, name_of, proof_of
from rpc_backend.testing.devices import NullDevice
from rpc_backend.testing.inline_workers import InlineWorkers
from rpc_backend.testing.raw_client import RawClient, leaf_record
from rpc_backend.worker import WorkerConfig

NBYTES = 64


class Party:
    """A client with a session and a buffer on each of some workers; `configs` are those of the workers."""

    def __init__(self, n: int = 2, configs=None, minor: int = 3) -> None:
        devices = [[NullDevice("zero"), NullDevice("one")] for _ in range(n)]
        self.workers = InlineWorkers(devices, configs)
        self.clients = [RawClient(worker, minor=minor) for worker in self.workers.workers]
        self.handles = [client.alloc(2 * NBYTES) for client in self.clients]

    def announce(self, source: int, target: int) -> bool:
        secret = make_secret()
        self.clients[target].ask(c.PEER_ADMIT, r.PeerAdmit(secret))
        request = r.PeerConnect(self.workers.endpoints[target], secret)
        return self.clients[source].ask(c.PEER_CONNECT, request).result

    def write(self, index: int, value: int) -> None:
        request = r.TensorRange(leaf_record(self.handles[index]), 0, NBYTES)
        self.clients[index].say(c.SET_TENSOR, request, payload=bytes([value]) * NBYTES)

    def read(self, index: int) -> bytes:
        return self.clients[index].read(self.handles[index])

    def copy(self, source: int, target: int, /, **changes) -> bool:
        fields = {
            "source": leaf_record(self.handles[source]),
            "target": leaf_record(self.handles[target]),
            "nbytes": NBYTES,
            "endpoint": self.workers.endpoints[target],
            "device": 0,
        }
        return self.clients[source].ask(c.COPY_TENSOR_TO, r.CopyTensorTo(**fields | changes)).result


@pytest.fixture
def party() -> Party:
    party = Party()
    assert party.announce(0, 1)
    party.write(0, 7)
    return party


def n_requests(party: Party, index: int, command) -> int:
    counts = party.workers.workers[index].service.state.counters.snapshot(0).commands
    return counts[command.name][0] if command.name in counts else 0


def test_a_tensor_lands_in_the_buffer_of_the_same_client(party):
    assert party.copy(0, 1)
    assert party.read(1) == bytes([7]) * NBYTES
    assert n_requests(party, 1, c.SET_TENSOR) == n_requests(party, 1, c.PEER_BARRIER) == 1


def test_one_link_is_used_again_and_closes_with_the_client(party):
    for value in (1, 2, 3):
        party.write(0, value)
        assert party.copy(0, 1)
        assert party.read(1) == bytes([value]) * NBYTES
    assert len(party.workers.dialled) == 1
    assert n_requests(party, 1, c.HELLO) == 2
    sessions = party.workers.workers[1].service.state.sessions
    assert len(sessions) == 2
    party.clients[0].say(c.GOODBYE, r.Empty())
    assert len(sessions) == 1


def test_the_first_bytes_of_a_tensor():
    party = Party()
    party.announce(0, 1)
    party.write(0, 9)
    party.write(1, 1)
    assert party.copy(0, 1, nbytes=16)
    assert party.read(1) == bytes([9]) * 16 + bytes([1]) * (NBYTES - 16)


def test_a_tensor_of_many_messages():
    party = Party(configs=[WorkerConfig(()), WorkerConfig((), max_payload_nbytes=20)])
    party.announce(0, 1)
    party.write(0, 8)
    assert party.copy(0, 1)
    assert n_requests(party, 1, c.SET_TENSOR) == 4
    assert party.clients[1].read(party.handles[1], 16) == bytes([8]) * 16


def test_it_is_answered_only_when_the_bytes_are_written(party):
    lane = party.workers.workers[1].lanes[0]
    lane.held = True
    request = r.CopyTensorTo(
        leaf_record(party.handles[0]), leaf_record(party.handles[1]), NBYTES, party.workers.endpoints[1], 0
    )
    before = len(party.clients[0].answers())
    party.clients[0].say(c.COPY_TENSOR_TO, request)
    assert len(party.clients[0].answers()) == before
    party.clients[0].ask(c.SYNCHRONIZE, r.Empty())  # the stream of the source is not held meanwhile
    party.write(0, 1)  # and its memory may be used again
    lane.release()
    assert party.clients[0].answers()[-1].body == r.Result(True)
    assert party.read(1) == bytes([7]) * NBYTES


def test_three_workers_in_a_circle_do_not_wait_for_each_other():
    party = Party(3)
    pairs = [(0, 1), (1, 2), (2, 0)]
    for source, target in pairs:
        assert party.announce(source, target)
        party.write(source, source + 1)
    lanes = [worker.lanes[0] for worker in party.workers.workers]
    for lane in lanes:
        lane.held = True
    spare = [client.alloc(NBYTES, device=1) for client in party.clients]
    for source, target in pairs:
        request = r.CopyTensorTo(
            leaf_record(party.handles[source]), leaf_record(spare[target]), NBYTES, party.workers.endpoints[target], 1
        )
        party.clients[source].say(c.COPY_TENSOR_TO, request)
    for lane in lanes:
        lane.release()
    assert [client.answers()[-1].body for client in party.clients] == [r.Result(True)] * 3
    found = [client.read(handle, stream=1)[0] for client, handle in zip(party.clients, spare, strict=True)]
    assert found == [3, 1, 2]


# Declined: the client has another way


@pytest.mark.parametrize("endpoint", ["tcp://127.0.0.1:2", "tcp://10.1.1.1:22"])
def test_where_the_client_announced_nothing_nothing_is_tried(endpoint):
    party = Party()
    assert party.copy(0, 1, endpoint=endpoint) is False
    assert party.workers.dialled == []


def test_where_nobody_is():
    party = Party()
    party.workers.refuses = True
    assert not party.announce(0, 1)
    assert party.copy(0, 1) is False
    assert len(party.workers.dialled) == 1


def test_to_a_worker_that_went_away_and_came_back(party):
    party.workers.cut_links()
    assert party.copy(0, 1), "the link is opened again"
    party.workers.cut_links()
    party.workers.refuses = True
    assert party.copy(0, 1) is False


def test_a_worker_that_goes_away_under_way_declines(party):
    party.workers.workers[1].lanes[0].held = True
    request = r.CopyTensorTo(
        leaf_record(party.handles[0]), leaf_record(party.handles[1]), NBYTES, party.workers.endpoints[1], 0
    )
    party.clients[0].say(c.COPY_TENSOR_TO, request)
    party.workers.cut_links()
    assert party.clients[0].answers()[-1].body == r.Result(False)


@pytest.mark.parametrize(
    "changes",
    [
        {"target": leaf_record(999)},
        {"target": leaf_record(1, 32)},
        {"target": leaf_record(1, 4 * NBYTES)},
        {"target": [1, 2, 3]},
        {"device": 1},
        {"device": 7},
        {"device": -1},
    ],
    ids=["handle", "small", "outside", "malformed", "other device", "no device", "negative"],
)
def test_what_the_target_does_not_take(party, changes):
    party.write(1, 1)
    assert party.copy(0, 1, **changes) is False
    assert party.read(1) == bytes([1]) * NBYTES
    assert party.copy(0, 1), "the next one is taken"


def test_more_than_either_side_will_queue():
    for configs in ([{"max_queued_nbytes": 4096}, {}], [{}, {"max_queued_nbytes": 4096}]):
        party = Party(configs=[WorkerConfig((), **config) for config in configs])
        party.announce(0, 1)
        party.handles = [client.alloc(8192) for client in party.clients]
        whole = [leaf_record(handle, 8192) for handle in party.handles]
        assert party.copy(0, 1, source=whole[0], target=whole[1], nbytes=8192) is False
        assert party.copy(0, 1)


# Errors


@pytest.mark.parametrize(
    ("changes", "error"),
    [
        ({"nbytes": NBYTES + 1}, errors.GraphError),
        ({"nbytes": -1}, errors.GraphError),
        ({"source": leaf_record(1, 4 * NBYTES)}, errors.GraphError),
        ({"source": leaf_record(999)}, errors.HandleError),
        ({"source": [1]}, errors.GraphError),
        ({"endpoint": "nowhere"}, errors.EndpointError),
        ({"endpoint": ""}, errors.EndpointError),
    ],
)
def test_a_source_or_an_endpoint_that_cannot_be_is_an_error(party, changes, error):
    with pytest.raises(error):
        party.copy(0, 1, **changes)
    assert party.copy(0, 1)


def test_a_client_of_minor_2_has_no_such_command():
    worker = Party().workers.workers[0]
    client = RawClient(worker, minor=2)
    client.conversation.agree(3)
    with pytest.raises(errors.SessionError, match="needs protocol minor 3"):
        client.ask(c.PEER_ADMIT, r.PeerAdmit(make_secret()))


# Who may write for whom


def join(client: RawClient, secret: bytes, *, nonce: bytes | None = None, role: Role = Role.SENDER) -> bytes:
    chosen = make_nonce() if nonce is None else nonce
    request = r.PeerJoin(name_of(secret), chosen, proof_of(secret, role, chosen))
    return client.ask(c.PEER_JOIN, request).proof


def set_tensor(client: RawClient, handle: int, value: int) -> None:
    request = r.TensorRange(leaf_record(handle), 0, NBYTES)
    client.say(c.SET_TENSOR, request, payload=bytes([value]) * NBYTES)
    client.ask(c.PEER_BARRIER, r.Empty())


@pytest.fixture
def admitted(party):
    """A client's session at a worker with a secret, and another connection there that joined it."""
    secret = make_secret()
    party.clients[1].ask(c.PEER_ADMIT, r.PeerAdmit(secret))
    other = RawClient(party.workers.workers[1])
    nonce = make_nonce()
    assert join(other, secret, nonce=nonce) == proof_of(secret, Role.RECEIVER, nonce)
    return other


def test_who_joined_may_write_and_nothing_else(party, admitted):
    handle = party.handles[1]
    set_tensor(admitted, handle, 5)
    assert party.read(1) == bytes([5]) * NBYTES
    with pytest.raises(errors.HandleError, match="another session"):
        admitted.read(handle)
    admitted.say(c.FREE_BUFFER, r.BufferRef(handle))
    with pytest.raises(errors.HandleError, match="another session"):
        admitted.ask(c.SYNCHRONIZE, r.Empty())
    admitted.say(c.MEMSET_TENSOR, r.TensorFill(leaf_record(handle), 0, NBYTES, 1))
    with pytest.raises(errors.HandleError, match="another session"):
        admitted.ask(c.SYNCHRONIZE, r.Empty())
    assert party.read(1) == bytes([5]) * NBYTES


def test_who_joined_one_client_cannot_write_for_another(party, admitted):
    bystander = RawClient(party.workers.workers[1])
    handle = bystander.alloc(NBYTES)
    with pytest.raises(errors.HandleError, match="another session"):
        set_tensor(admitted, handle, 5)


def test_the_right_ends_with_the_session_of_the_client(party, admitted):
    party.clients[1].say(c.GOODBYE, r.Empty())
    with pytest.raises(errors.HandleError):
        set_tensor(admitted, party.handles[1], 5)
    assert len(party.workers.workers[1].service.state.admissions) == 0


def test_a_stranger_does_not_join(party):
    secret = make_secret()
    party.clients[1].ask(c.PEER_ADMIT, r.PeerAdmit(secret))
    stranger = RawClient(party.workers.workers[1])
    with pytest.raises(errors.SessionError, match="no client here knows"):
        join(stranger, make_secret())
    with pytest.raises(errors.SessionError, match="no client here knows"):
        join(stranger, secret, role=Role.RECEIVER)
    with pytest.raises(errors.SessionError, match="no client here knows"):
        join(stranger, secret, nonce=b"")
    with pytest.raises(errors.HandleError):
        set_tensor(stranger, party.handles[1], 5)


def test_one_joins_once_and_not_oneself(party, admitted):
    secret = make_secret()
    party.clients[1].ask(c.PEER_ADMIT, r.PeerAdmit(secret))
    for client in (admitted, party.clients[1]):
        with pytest.raises(errors.SessionError, match="for one other session"):
            join(client, secret)


def test_a_secret_is_of_one_session_and_there_are_only_so_many(party, monkeypatch):
    secret = make_secret()
    party.clients[1].ask(c.PEER_ADMIT, r.PeerAdmit(secret))
    other = RawClient(party.workers.workers[1])
    with pytest.raises(errors.SessionError, match="in use"):
        other.ask(c.PEER_ADMIT, r.PeerAdmit(secret))
    with pytest.raises(errors.RemoteProtocolError, match="32 bytes"):
        other.ask(c.PEER_ADMIT, r.PeerAdmit(b"short"))
    monkeypatch.setattr("rpc_backend.worker.admissions.MAX_PER_SESSION", 1)
    other.ask(c.PEER_ADMIT, r.PeerAdmit(make_secret()))
    with pytest.raises(errors.LimitError, match="admit 1"):
        other.ask(c.PEER_ADMIT, r.PeerAdmit(make_secret()))
