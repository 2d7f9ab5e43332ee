"""Workers that send tensors to each other: real processes, with deadlines, and with one of them killed."""

from __future__ import annotations

import secrets
import time
from collections.abc import Iterator
from concurrent.futures import Future
from typing import Any

import numpy as np
import pytest

from rpc_backend.client import Connection, connect
from rpc_backend.errors import DeadlineError, LimitError, WorkerLostError
from rpc_backend.graph import Graph, build, element_type, encode_graph, encode_tensor, graph_digest
from rpc_backend.protocol import commands as c
from rpc_backend.protocol import records as r
from rpc_backend.settings import Settings
from rpc_backend.testing.workers import WorkerProcess

F32 = element_type("F32")
SETTINGS = Settings(heartbeat_timeout_ms=1000, connect_timeout_ms=5000, command_timeout_ms=15_000)
TICKET_S = 2.0
N = 40_000  # elements: above what the fabric copies, so that frames are referenced


class Doubler:
    """A stage on a worker: takes a row from the client or another stage, doubles it, reads it or sends it on."""

    def __init__(
        self, connection: Connection, *, receives: bool = False, onward: str | None = None, n: int = N
    ) -> None:
        self.dispatcher = connection.dispatcher
        nbytes = 4 * n
        handle = self.dispatcher.call(c.ALLOC_BUFFER, r.AllocBuffer(0, 2 * nbytes, "any")).handle
        x = build.leaf(F32, [n])
        graph = encode_graph(Graph.of(build.add(x, x)), lambda tensor: (handle, 0 if tensor is x else nbytes))
        rows = [
            encode_tensor(build.leaf(F32, [n]), {}, lambda _, at=at: (handle, at), computed=False)
            for at in (0, nbytes)
        ]  # fmt: skip
        self.record = [
            graph,
            [] if receives else rows[:1],
            rows[1:] if onward is None else [],
            rows[:1] if receives else [],
            [] if onward is None else [[rows[1], onward, 0]],
        ]
        self.digest = graph_digest(self.record)
        self.is_known = False

    def run(self, value: Any = b"", *, receive: bytes = b"", onward: bytes = b"") -> Future[Any] | None:
        """Queue one run; the future gives the answer, if it has one."""
        record, self.is_known = [] if self.is_known else self.record, True
        tickets = [[ticket] if ticket else [] for ticket in (receive, onward)]
        request = r.Submit(self.digest, record, *tickets, False)
        if onward:
            self.dispatcher.post(c.SUBMIT_ONWARD, request, value)
            return None
        return self.dispatcher.submit(c.SUBMIT, request, value).future


def row(future: Future[Any] | None) -> float:
    """Return the one number that all elements of a result are."""
    values = np.frombuffer(future.result(10).payload, np.float32)
    assert (values == values[0]).all()
    return float(values[0])


def announce(*connections: Connection) -> None:
    """Make the workers known to each other, as a client does before it plans."""
    for source in connections:
        for target in connections:
            if source is not target:
                assert source.devices()[0].can_send_to(target.devices()[0]), (source.endpoint, target.endpoint)


def ticket() -> bytes:
    return secrets.token_bytes(16)


def full(value: float, n: int = N) -> bytes:
    return np.full(n, value, np.float32).tobytes()


@pytest.fixture(scope="module")
def workers() -> Iterator[list[WorkerProcess]]:
    with (
        WorkerProcess("reference", ticket_timeout_s=TICKET_S) as one,
        WorkerProcess("reference", ticket_timeout_s=TICKET_S) as two,
    ):
        yield [one, two]


@pytest.fixture
def connections(workers) -> Iterator[list[Connection]]:
    with connect(workers[0].endpoint, SETTINGS) as one, connect(workers[1].endpoint, SETTINGS) as two:
        announce(one, two)
        yield [one, two]


class Ring:
    """From a worker to the next and back to where it came from; each doubles."""

    def __init__(self, home: Connection, away: Connection) -> None:
        self.first = Doubler(home, onward=away.endpoint)
        self.second = Doubler(away, receives=True, onward=home.endpoint)
        self.third = Doubler(home, receives=True)

    def run(self, value: float) -> Future[Any]:
        there, back = ticket(), ticket()
        self.second.run(receive=there, onward=back)
        self.first.run(full(value), onward=there)
        answer = self.third.run(receive=back)
        assert answer is not None
        return answer


def test_rings_of_two_clients_in_opposite_directions(workers, connections):
    """Both workers send to and wait for each other all the time, with ten runs of each client under way."""
    with connect(workers[0].endpoint, SETTINGS) as one, connect(workers[1].endpoint, SETTINGS) as two:
        announce(one, two)
        rings = [Ring(*connections), Ring(two, one)]
        for start in (0, 10, 20):
            answers = [(number, ring.run(number)) for number in range(start, start + 10) for ring in rings]
            assert all(row(answer) == 8.0 * number for number, answer in answers)


def test_a_stage_whose_input_comes_late_holds_up_nobody_else(workers, connections):
    waiting, source = Doubler(connections[1], receives=True), Doubler(connections[0], onward=workers[1].endpoint)
    there = ticket()
    answer = waiting.run(receive=there)
    with connect(workers[1].endpoint, SETTINGS) as other:
        assert row(Doubler(other).run(full(3.0))) == 6.0
    assert not answer.done()
    source.run(full(5.0), onward=there)
    assert row(answer) == 20.0


def test_a_ticket_that_never_comes_ends_with_its_deadline(workers, connections):
    waiting = Doubler(connections[1], receives=True)
    started_s = time.monotonic()
    answer = waiting.run(receive=ticket())
    with pytest.raises(DeadlineError, match="input 0 of the task") as caught:
        answer.result(10)
    assert TICKET_S * 0.9 < time.monotonic() - started_s < TICKET_S + 3
    assert caught.value.context.worker == workers[1].endpoint


def test_a_forged_ticket_brings_nothing_to_others(workers, connections):
    waiting, source = Doubler(connections[1], receives=True), Doubler(connections[0], onward=workers[1].endpoint)
    there = ticket()
    answer = waiting.run(receive=there)
    with connect(workers[1].endpoint, SETTINGS) as intruder:
        intruder.dispatcher.post(c.PEER_PUSH, r.PeerPush(ticket()), full(666.0))
        intruder.dispatcher.call(c.SYNCHRONIZE, r.Empty())
    source.run(full(1.0), onward=there)
    assert row(answer) == 4.0


def test_a_tensor_above_the_limits_is_told_to_who_waits(workers):
    with (
        WorkerProcess("reference", max_queued_nbytes=100_000, ticket_timeout_s=TICKET_S) as small,
        connect(workers[0].endpoint, SETTINGS) as one,
        connect(small.endpoint, SETTINGS) as two,
    ):
        announce(one, two)
        source, waiting = Doubler(one, onward=small.endpoint), Doubler(two, receives=True)
        there = ticket()
        answer = waiting.run(receive=there)
        source.run(full(1.0), onward=there)
        with pytest.raises(LimitError, match="bytes waiting"):
            answer.result(10)
        one.call(c.SYNCHRONIZE, r.Empty())


def test_a_receiver_that_is_killed_is_named_and_holds_up_nobody(workers, connections):
    with WorkerProcess("reference") as doomed:
        with connect(doomed.endpoint, SETTINGS) as two:
            announce(connections[0], two)
            source, local = Doubler(connections[0], onward=doomed.endpoint), Doubler(connections[0])
            waiting, there = Doubler(two, receives=True), ticket()
            answer = waiting.run(receive=there)
            source.run(full(1.0), onward=there)
            assert row(answer) == 4.0
            doomed.kill()
            errors = notices(connections[0])
            started_s = time.monotonic()
            while not errors and time.monotonic() - started_s < 10:
                source.run(full(1.0), onward=ticket())
                assert row(local.run(full(2.0))) == 4.0
                time.sleep(0.05)
        assert errors, "nobody said that the receiver is gone"
        assert any(doomed.endpoint in str(error.error) for error in errors)
        assert row(local.run(full(3.0))) == 6.0


def test_a_sender_that_is_killed_ends_the_wait_when_the_client_says_so(workers, connections):
    with WorkerProcess("reference:delay_ms=5000") as doomed, connect(doomed.endpoint, SETTINGS) as one:
        announce(one, connections[1])
        source, waiting = Doubler(one, onward=workers[1].endpoint), Doubler(connections[1], receives=True)
        there = ticket()
        answer = waiting.run(receive=there)
        source.run(full(1.0), onward=there)
        doomed.kill()
        connections[1].dispatcher.post(c.DROP_TICKETS, r.Tickets([there], f"worker {doomed.endpoint} is lost"))
        with pytest.raises(WorkerLostError, match=doomed.endpoint):
            answer.result(10)
    assert row(Doubler(connections[1]).run(full(1.0))) == 2.0


def test_nothing_of_a_client_that_left_stays(workers):
    with connect(workers[0].endpoint, SETTINGS) as one, connect(workers[1].endpoint, SETTINGS) as two:
        announce(one, two)
        source = Doubler(one, onward=workers[1].endpoint)
        for _ in range(10):
            source.run(full(1.0), onward=ticket())
        one.call(c.SYNCHRONIZE, r.Empty())
    deadline_s = time.monotonic() + 5
    for worker in workers:
        with connect(worker.endpoint, SETTINGS) as watcher:
            while (n_sessions := watcher.call(c.STATS, r.Empty()).sessions) > 1:
                assert time.monotonic() < deadline_s, f"{n_sessions - 1} sessions stayed"
                time.sleep(0.02)


def notices(connection: Connection) -> list[Any]:
    """Return a list that fills with the notices of a connection from now on."""
    found: list[Any] = []
    conversation = connection.dispatcher._conversation
    receive = conversation.receive

    def watch(frames: Any) -> Any:
        event = receive(frames)
        if type(event).__name__ == "NoticeEvent":
            found.append(event)
        return event

    conversation.receive = watch
    return found
