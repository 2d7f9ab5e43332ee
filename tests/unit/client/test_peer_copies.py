"""Copies and tasks between workers of minor 3: straight, through this process, and when something fails."""

from __future__ import annotations

import os
from concurrent.futures import Future

import numpy as np
import pytest

from rpc_backend.errors import ComputeError, HandleError, RpcBackendError, WorkerLostError
from rpc_backend.graph import Graph, build, element_type
from rpc_backend.hookspecs import DeviceOptions
from rpc_backend.interfaces import Onward, TaskRun
from rpc_backend.registry import load_registry
from rpc_backend.settings import Settings
from rpc_backend.testing.devices import FailingDevice
from rpc_backend.testing.inline_workers import InlineWorkers
from rpc_backend.worker import WorkerConfig

F32 = element_type("F32")
N = 16


def doubler() -> FailingDevice:
    return FailingDevice(load_registry().create_devices("reference", DeviceOptions(threads=1))[0])


class Party:
    """A connection to each of three workers."""

    def __init__(self, config: WorkerConfig | None = None, **settings) -> None:
        self.backends = [doubler() for _ in range(3)]
        configs = None if config is None else [config] * 3
        self.workers = InlineWorkers([[backend] for backend in self.backends], configs)
        chosen = Settings(**{"proto_minor": 3} | settings)
        self.connections = [self.workers.connect(index, chosen) for index in range(3)]
        self.devices = [connection.devices()[0] for connection in self.connections]
        self.streams = [device.create_stream() for device in self.devices]

    def count(self, command: str) -> int:
        found = [connection.counters.snapshot().get(command) for connection in self.connections]
        return sum(counts.calls for counts in found if counts is not None)

    def hold(self) -> None:
        for worker in self.workers.workers:
            worker.network.hold()

    def deliver_all(self) -> None:
        """Deliver what waits in held networks, turn by turn, and hold no longer."""
        while sum(worker.network.deliver() for worker in self.workers.workers):
            continue
        for worker in self.workers.workers:
            worker.network.release()

    def placed(self, index: int, value: float | None = None, n: int = N):
        tensor = build.leaf(F32, [n])
        tensor.buffer = self.devices[index].alloc_buffer(4 * n)
        if value is not None:
            tensor.buffer.write(0, filled(value, n))
        return tensor

    def read(self, index: int, tensor) -> float:
        out = np.empty(tensor.ne[0], np.float32)
        self.streams[index].get_tensor(tensor, memoryview(out))
        assert (out == out[0]).all()
        return float(out[0])


def filled(value: float, n: int = N) -> memoryview:
    return memoryview(np.full(n, value, np.float32)).cast("B")


@pytest.fixture(params=[3, 4])
def party(request) -> Party:
    return Party(proto_minor=request.param)


@pytest.fixture(params=[3, 4])
def party_of_forgetful_workers(request) -> Party:
    return Party(WorkerConfig((), graphs_per_stream=1), proto_minor=request.param)


# Copies of streams


def copied(party: Party, source, target) -> bool:
    one, two = party.streams[:2]
    return two.copy_tensor_async(one, source, two, target)


def test_a_copy_goes_straight(party):
    source, target = party.placed(0, 5), party.placed(1, 1)
    assert party.devices[0].peers.open(party.devices[1].dispatcher)
    assert copied(party, source, target)
    assert party.read(1, target) == 5
    assert (party.count("COPY_TENSOR_TO"), party.count("GET_TENSORS")) == (1, 0)


def test_an_asynchronous_copy_opens_no_link(party):
    source, target = party.placed(0, 5), party.placed(1, 1)
    assert not copied(party, source, target)
    assert party.workers.dialled == []


def test_a_synchronous_copy_opens_one(party):
    source, target = party.placed(0, 5), party.placed(1, 1)
    assert party.streams[1].copy_tensor(source, target)
    assert party.read(1, target) == 5
    assert len(party.workers.dialled) == 1
    assert party.count("COPY_TENSOR_TO") == 1


@pytest.mark.parametrize("settings", [{"p2p": False}, {"proto_minor": 2}])
def test_not_where_a_switch_or_an_older_side_forbids(settings):
    party = Party(**settings)
    source, target = party.placed(0, 5), party.placed(1, 1)
    assert not party.devices[0].can_send_to(party.devices[1])
    assert not copied(party, source, target)
    assert not party.streams[1].copy_tensor(source, target)
    assert party.workers.dialled == []


def test_the_copy_comes_after_what_both_queued_before_and_before_what_they_queue_later(party):
    source, target = party.placed(0, 5), party.placed(1, 1)
    party.devices[0].peers.open(party.devices[1].dispatcher)
    before = party.streams[1].fetch_tensor(target)
    party.workers.workers[1].lanes[0].held = True
    assert copied(party, source, target)
    later: Future[memoryview] = Future()
    later.set_result(filled(9))
    party.streams[0].set_tensor_when(source, later)
    after = party.streams[1].fetch_tensor(target)
    party.hold()
    party.workers.workers[1].lanes[0].release()
    party.deliver_all()
    values = [float(np.frombuffer(each.result(0), np.float32)[0]) for each in (before, after)]
    assert values == [1, 5]
    assert party.read(0, source) == 9


def test_a_worker_that_declines_is_gone_round_and_asked_no_more(party):
    source, target = party.placed(0, 5), party.placed(1, 1)
    party.devices[0].peers.open(party.devices[1].dispatcher)
    party.workers.refuses = True
    party.workers.cut_links()
    assert copied(party, source, target)
    assert party.read(1, target) == 5
    assert (party.count("COPY_TENSOR_TO"), party.count("GET_TENSORS")) == (1, 1)
    assert not copied(party, source, target)


def test_an_error_of_the_source_is_raised_at_the_target(party):
    source, target = party.placed(0, 5), party.placed(1, 1)
    party.devices[0].peers.open(party.devices[1].dispatcher)
    party.workers.workers[0].service.state.handles._held.clear()
    assert copied(party, source, target)
    with pytest.raises(HandleError):
        party.streams[1].synchronize()
    party.streams[0].synchronize()
    party.streams[1].synchronize()


# Tasks


class Stage:
    """Doubles a row on one worker; takes it from the host or from a stage, gives it to the host or to a stage."""

    def __init__(self, party: Party, index: int, *, receives: bool = False, to: int | None = None, n: int = N) -> None:
        self.stream, device = party.streams[index], party.devices[index]
        x = build.leaf(F32, [n])
        y = build.add(x, x)
        x.buffer = y.buffer = device.alloc_buffer(8 * n)
        y.offset = 4 * n
        onward = [] if to is None else [Onward(y, party.devices[to])]
        moves = {"receives" if receives else "writes": [x]}
        self.task = device.prepare_task(Graph.of(y), reads=[] if onward else [y], onward=onward, **moves)
        self.n = n

    def submit(self, value: float | None = None, *, receive: bytes = b"", onward: bytes = b""):
        values = () if value is None else (filled(value, self.n),)
        return self.stream.submit(
            self.task, TaskRun(values, (receive,) if receive else (), (onward,) if onward else ())
        )


class Chain:
    """Three stages on three workers."""

    def __init__(self, party: Party, n: int = N) -> None:
        assert all(party.devices[index].can_send_to(party.devices[index + 1]) for index in (0, 1))
        self.stages = [
            Stage(party, 0, to=1, n=n), Stage(party, 1, receives=True, to=2, n=n), Stage(party, 2, receives=True, n=n),
        ]  # fmt: skip

    def start(self, value: float, order=(0, 1, 2)):
        tickets = [os.urandom(16) for _ in range(2)]
        one, two, three = self.stages
        submits = [
            lambda: one.submit(value, onward=tickets[0]),
            lambda: two.submit(receive=tickets[0], onward=tickets[1]),
            lambda: three.submit(receive=tickets[1]),
        ]
        futures = {index: submits[index]() for index in order}
        return futures[0], futures[1], futures[2]


def value_of(future) -> float:
    return float(np.frombuffer(future.result(0)[0], np.float32)[0])


@pytest.mark.parametrize("order", [(0, 1, 2), (2, 1, 0), (1, 0, 2)])
def test_a_chain_in_any_order_of_its_stages(order):
    party = Party()
    chain = Chain(party)
    for number in range(1, 5):
        first, second, third = chain.start(number, order)
        assert value_of(third) == 8 * number
        assert (first.result(0), second.result(0)) == ([], [])
    assert party.count("COPY_TENSOR_TO") == 8
    assert party.count("GET_TENSORS") == 4
    assert party.count("SET_TENSOR") == 4
    assert all(len(device.landings) == 0 for device in party.devices)


def test_many_runs_at_once_stay_apart():
    party = Party()
    chain = Chain(party)
    party.hold()
    ends = [chain.start(number)[2] for number in range(6)]
    party.deliver_all()
    assert [value_of(end) for end in ends] == [8 * number for number in range(6)]


@pytest.mark.parametrize("held", [(), (0,), (1,), (2,), (0, 1, 2)])
def test_chains_that_the_workers_forgot_go_on(party_of_forgetful_workers, held):
    """No worker keeps both graphs: each run makes the other one unknown, also while what it waits for is kept back."""
    party = party_of_forgetful_workers
    chains = [Chain(party, n) for n in (N, 2 * N)]
    assert [value_of(chain.start(1)[2]) for chain in chains] == [8, 8]
    lanes = [party.workers.workers[index].lanes[0] for index in held]
    for lane in lanes:
        lane.held = True
    ends = [chain.start(number)[2] for number in range(6) for chain in chains]
    for lane in lanes:
        lane.release()
    assert [value_of(end) for end in ends] == [8 * number for number in range(6) for _ in chains]
    assert [backend.n_runs for backend in party.backends] == [2 * 7] * 3
    n_sent = sum(map(party.count, ("GRAPH_COMPUTE", "GRAPH_RECOMPUTE", "SUBMIT", "SUBMIT_ONWARD")))
    assert n_sent == 3 * 2 * (7 + 6), "each run but the first was refused once, and then ran"


def test_a_chain_goes_round_a_link_that_is_lost():
    party = Party()
    chain = Chain(party)
    assert value_of(chain.start(1)[2]) == 8
    party.workers.refuses = True
    party.workers.cut_links()
    assert [value_of(chain.start(number)[2]) for number in (2, 3)] == [16, 24]
    assert not party.devices[0].peers.is_open(party.devices[1].dispatcher)
    assert party.count("COPY_TENSOR_TO") == 4, "each pair was asked once more"


def test_a_large_tensor_goes_round_in_parts(monkeypatch):
    monkeypatch.setattr("rpc_backend.client.copies.UPLOAD_CHUNK_NBYTES", 24)
    party = Party()
    chain = Chain(party)
    party.workers.refuses = True
    party.workers.cut_links()
    assert value_of(chain.start(2)[2]) == 16


@pytest.mark.parametrize("broken", [0, 1])
def test_a_stage_that_fails_fails_the_run_and_no_other(broken):
    party = Party()
    chain = Chain(party)
    party.backends[broken].fail_on = {2}
    runs = [chain.start(number) for number in range(3)]
    assert [value_of(runs[number][2]) for number in (0, 2)] == [0, 16]
    error = runs[1][2].exception(0)
    assert isinstance(error, ComputeError)
    assert isinstance(runs[1][broken].exception(0), ComputeError)
    for stream in party.streams:
        stream.synchronize()


@pytest.mark.parametrize("lost", [0, 1, 2])
def test_a_worker_that_is_lost_ends_every_wait(lost):
    party = Party()
    chain = Chain(party)
    assert value_of(chain.start(1)[2]) == 8
    party.hold()
    runs = [chain.start(number) for number in range(3)]
    party.connections[lost].dispatcher.abort()
    party.deliver_all()
    for run in runs:
        assert all(future.done() for future in run)
        assert isinstance(run[lost].exception(0), WorkerLostError)
        assert isinstance(run[2].exception(0), RpcBackendError)


def test_a_dropped_ticket_ends_the_waits_of_both_sides():
    party = Party()
    chain = Chain(party)
    one, two, _ = chain.stages
    tickets = [os.urandom(16) for _ in range(3)]
    sent = one.submit(1, onward=tickets[0])  # nobody will receive it
    received = two.submit(receive=tickets[1], onward=tickets[2])  # nobody will send it
    assert not sent.done()
    assert not received.done()
    party.devices[1].drop_tickets(tickets[:2], "the run failed")
    party.devices[2].drop_tickets(tickets[2:], "the run failed")
    for future in (sent, received):
        assert "the run failed" in str(future.exception(0))
    assert value_of(chain.start(1)[2]) == 8


def test_runs_queued_crosswise_by_two_callers_go_round():
    """Each copy waits for its target's queue, which waits for the other copy's."""
    party = Party()
    assert party.devices[0].can_send_to(party.devices[1])
    assert party.devices[1].can_send_to(party.devices[0])
    there = Stage(party, 0, to=1), Stage(party, 1, receives=True)
    back = Stage(party, 1, to=0), Stage(party, 0, receives=True)
    one, two = os.urandom(16), os.urandom(16)
    there[0].submit(1, onward=one)
    back[0].submit(2, onward=two)
    ends = there[1].submit(receive=one), back[1].submit(receive=two)
    for _ in range(2):
        assert not any(end.done() for end in ends)
        for connection in party.connections[:2]:
            connection.dispatcher.check()
    for connection in party.connections[:2]:
        connection.dispatcher.check()
    assert [value_of(end) for end in ends] == [4, 8]
    assert 1 <= party.count("GET_TENSORS") - 2 <= 2, "one of the two, or both"


def test_a_copy_whose_target_is_only_late_stays_direct():
    party = Party()
    chain = Chain(party)
    tickets = [os.urandom(16) for _ in range(2)]
    one, two, three = chain.stages
    one.submit(1, onward=tickets[0])
    for _ in range(5):
        for connection in party.connections:
            connection.dispatcher.check()
    two.submit(receive=tickets[0], onward=tickets[1])
    assert value_of(three.submit(receive=tickets[1])) == 8
    assert party.count("COPY_TENSOR_TO") == 2
