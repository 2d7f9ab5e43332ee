"""Tasks encoded once: where their tensors lie, and what a run of them must bring."""

from __future__ import annotations

import pytest

from rpc_backend.errors import GraphError, LimitError
from rpc_backend.graph import Graph, build, element_type
from rpc_backend.interfaces import Onward, TaskRun
from rpc_backend.settings import Settings
from rpc_backend.testing.devices import NullDevice
from rpc_backend.testing.inline_worker import InlineWorker
from rpc_backend.testing.inline_workers import InlineWorkers
from rpc_backend.worker import WorkerConfig

F32 = element_type("F32")
TICKET = bytes(16)


class Parts:
    """`y = x + x` on a device, 64 bytes each."""

    def __init__(self, device) -> None:
        self.device = device
        self.x = build.leaf(F32, [16])
        self.y = build.add(self.x, self.x)
        self.x.buffer = self.y.buffer = device.alloc_buffer(128)
        self.y.offset = 64

    @property
    def graph(self) -> Graph:
        return Graph.of(self.y)


@pytest.fixture
def parts(connection) -> Parts:
    return Parts(connection.devices()[0])


def test_a_task_has_the_records_of_all_its_tensors(connection, parts):
    other = connection.devices()[1]
    task = parts.device.prepare_task(
        parts.graph, writes=[parts.x], reads=[parts.y], receives=[parts.x], onward=[Onward(parts.y, other)]
    )
    graph, writes, reads, receives, onward = task.content.record
    assert graph == task.plan.content.record
    assert writes == receives == list(task.write_records)
    assert reads == list(task.read_records)
    assert [record[8:10] for record in (writes[0], reads[0])] == [
        [parts.x.buffer.handle, 0],
        [parts.x.buffer.handle, 64],
    ]
    assert onward == [[reads[0], "", 1]]
    assert (task.write_nbytes, task.read_nbytes) == ((64,), (64,))


def test_equal_tasks_have_equal_digests(parts):
    one, same = (parts.device.prepare_task(parts.graph, writes=[parts.x], reads=[parts.y]) for _ in range(2))
    assert one.content.digest == same.content.digest
    assert one.content.digest != parts.device.prepare_task(parts.graph, writes=[parts.x]).content.digest


@pytest.mark.parametrize("role", ["graph", "writes", "reads", "receives", "onward"])
def test_a_task_never_carries_another_workers_handle(role):
    """Three workers whose tensors look alike: same shapes, same handles."""
    workers = InlineWorkers([[NullDevice("same")] for _ in range(3)])
    devices = [workers.connect(index).devices()[0] for index in range(3)]
    assert devices[0].can_send_to(devices[2])
    mine, theirs, target = (Parts(device) for device in devices)
    assert mine.x.buffer.handle == theirs.x.buffer.handle == target.x.buffer.handle
    mixed = build.add(mine.x, theirs.x)
    mixed.buffer, mixed.offset = mine.x.buffer, 64
    options = {
        "writes": [theirs.x],
        "reads": [theirs.y],
        "receives": [theirs.x],
        "onward": [Onward(theirs.y, target.device)],
    }
    chosen = {role: options[role]} if role != "graph" else {}
    graph = Graph.of(mixed) if role == "graph" else mine.graph
    sent = [len(worker.network.sent.to_worker) for worker in workers.workers]
    with pytest.raises(GraphError, match=f"copy it to same@{workers.endpoints[0]}"):
        mine.device.prepare_task(graph, **chosen)
    now = [len(worker.network.sent.to_worker) for worker in workers.workers]
    n_asked = [after - before for after, before in zip(now, sent, strict=True)]
    assert n_asked[1:] == [0, 0]
    assert n_asked[0] <= 1  # whether it supports the operations


def test_results_go_straight_to_whom_both_sides_and_the_switches_allow(worker, connection):
    def device(**settings):
        return worker.connect(Settings(**settings)).devices()[0]

    here, beside = connection.devices()
    assert here.can_send_to(here)
    assert here.can_send_to(beside)
    assert not here.can_send_to(NullDevice())
    for other in (device(proto_minor=2), device(p2p=False), device(no_async_copy=True)):
        assert not here.can_send_to(other)
        assert not other.can_send_to(here)
        assert not other.can_send_to(other)


def test_a_link_between_workers_is_asked_for_once():
    workers = InlineWorkers([[NullDevice("near")], [NullDevice("far"), NullDevice("further")]])
    (here,), there = (workers.connect(index).devices() for index in (0, 1))
    assert [here.can_send_to(each) for each in there] == [True, True]
    assert workers.dialled == [workers.endpoints[1]]
    parts = Parts(here)
    task = here.prepare_task(parts.graph, onward=[Onward(parts.y, there[1])])
    assert task.content.record[4][0][1:] == [workers.endpoints[1], 1]
    assert there[0].can_send_to(here)
    assert workers.dialled == [workers.endpoints[1], workers.endpoints[0]]


@pytest.mark.parametrize("minors", [(4, 3), (3, 4), (2, 2), (3, 2), (2, 4)])
def test_workers_that_send_in_different_ways_do_not(minors):
    workers = InlineWorkers([[NullDevice()], [NullDevice()]])
    here, there = (
        workers.connect(index, Settings(proto_minor=minor)).devices()[0] for index, minor in enumerate(minors)
    )
    assert not here.can_send_to(there)
    assert workers.dialled == []


def test_a_worker_that_cannot_connect_is_asked_no_more():
    workers = InlineWorkers([[NullDevice()], [NullDevice()]])
    here, there = (workers.connect(index).devices()[0] for index in (0, 1))
    workers.refuses = True
    assert not here.can_send_to(there)
    workers.refuses = False
    assert not here.can_send_to(there)
    assert len(workers.dialled) == 1


def test_sending_to_whom_it_cannot_is_refused(worker, parts):
    stranger = worker.connect(Settings(p2p=False)).devices()[0]
    with pytest.raises(GraphError, match="cannot send results to zero@inline"):
        parts.device.prepare_task(parts.graph, onward=[Onward(parts.y, stranger)])


def test_an_older_worker_receives_nothing_directly(worker):
    old = Parts(worker.connect(Settings(proto_minor=2)).devices()[0])
    with pytest.raises(GraphError, match="directly"):
        old.device.prepare_task(old.graph, receives=[old.x])
    assert old.device.prepare_task(old.graph, writes=[old.x]).content is None


def test_what_does_not_fit_in_a_message_goes_as_single_commands_or_not_at_all():
    worker = InlineWorker([NullDevice()], WorkerConfig((), max_payload_nbytes=100))
    parts = Parts(worker.connect().devices()[0])
    both = [parts.x, parts.y]
    assert parts.device.prepare_task(parts.graph, writes=[parts.x], reads=[parts.y]).content is not None
    assert parts.device.prepare_task(parts.graph, writes=both).content is None
    assert parts.device.prepare_task(parts.graph, reads=both).content is None
    with pytest.raises(LimitError, match="split the batch"):
        parts.device.prepare_task(parts.graph, writes=both, receives=[parts.x])


@pytest.mark.parametrize(
    ("run", "says"),
    [
        (TaskRun(receive_tickets=(TICKET,)), "takes values of"),
        (TaskRun((memoryview(bytes(63)),), (TICKET,)), "takes values of"),
        (TaskRun((memoryview(bytes(64)),) * 2, (TICKET,)), "takes values of"),
        (TaskRun((memoryview(bytes(64)),)), "0 tickets"),
        (TaskRun((memoryview(bytes(64)),), (TICKET,), (TICKET,)), "1 tickets"),
        (TaskRun((memoryview(bytes(64)),), (bytes(15),)), "16 bytes"),
    ],
)
def test_a_run_that_does_not_fit_its_task_is_refused_at_once(connection, parts, run, says):
    task = parts.device.prepare_task(parts.graph, writes=[parts.x], receives=[parts.x])
    stream = parts.device.create_stream()
    with pytest.raises(GraphError, match=says):
        stream.submit(task, run)
    assert "SUBMIT" not in connection.counters.snapshot()


def test_another_devices_task_is_refused(connection, parts):
    task = parts.device.prepare_task(parts.graph)
    with pytest.raises(GraphError, match="not prepared by one@inline"):
        connection.devices()[1].create_stream().submit(task, TaskRun())


def test_tickets_are_dropped_without_waiting_and_without_a_worker_too(worker, connection, parts):
    parts.device.drop_tickets([TICKET], "gone")
    parts.device.bury_tickets([TICKET])
    assert [connection.counters.snapshot()[name].calls for name in ("DROP_TICKETS", "BURY_TICKETS")] == [1, 1]
    assert parts.device.buries_tickets
    for minor, names in [(3, set()), (4, {"DROP_TICKETS"})]:
        old = worker.connect(Settings(proto_minor=minor))
        old.devices()[0].drop_tickets([TICKET], "gone")
        old.devices()[0].bury_tickets([TICKET])
        assert {name for name in old.counters.snapshot() if name.endswith("TICKETS")} == names
        assert not old.devices()[0].buries_tickets
    worker.network.cut(connection.dispatcher._channel)
    parts.device.drop_tickets([TICKET], "gone")
    parts.device.bury_tickets([TICKET])
