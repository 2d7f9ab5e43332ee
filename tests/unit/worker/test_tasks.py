"""SUBMIT and its relatives, spoken to in records over a memory network."""

from __future__ import annotations

import pytest

from rpc_backend import errors
from rpc_backend.graph import Graph, build, element_type, encode_graph, graph_digest
from rpc_backend.protocol import ErrorEvent
from rpc_backend.protocol import commands as c
from rpc_backend.protocol import records as r
from rpc_backend.testing.devices import FailingDevice, NullDevice
from rpc_backend.testing.inline_worker import InlineWorker
from rpc_backend.testing.raw_client import RawClient, leaf_record, reply_of
from rpc_backend.worker import WorkerConfig

F32 = element_type("F32")
NBYTES = 64
ENDPOINT = "tcp://127.0.0.1:9"


class Task:
    """`y = x + x` in a buffer of its own: x at 0, y behind it, a third row for what is received."""

    def __init__(self, client: RawClient, device: int = 0, *, name: str = "", **parts: object) -> None:
        self.client = client
        self.stream = device
        self.handle = client.alloc(3 * NBYTES, device)
        x = build.leaf(F32, [NBYTES // 4], name)
        graph = encode_graph(Graph.of(build.add(x, x)), lambda tensor: (self.handle, 0 if tensor is x else NBYTES))
        self.x, self.y, self.z = (leaf_record(self.handle, NBYTES, place * NBYTES) for place in range(3))
        self.record = [graph, [self.x], [self.x], [], []]
        for part, value in parts.items():
            index = ("graph", "writes", "reads", "receives", "onward").index(part)
            self.record[index] = value(self) if callable(value) else value
        self.digest = graph_digest(self.record)

    def request(self, whole: bool, receive=(), onward=(), resume=False) -> r.Submit:
        return r.Submit(self.digest, self.record if whole else [], list(receive), list(onward), resume)

    def say(self, value: bytes = b"", *, whole: bool = True, onward_only: bool = False, **tickets: object) -> int:
        command = c.SUBMIT_ONWARD if onward_only else c.SUBMIT
        return self.client.say(command, self.request(whole, **tickets), stream=self.stream, payload=value)

    def run(self, value: bytes = b"", **options: object) -> bytes | None:
        """Run it; return what it read, None if it was refused."""
        n_before = len(self.client.answers())
        self.say(value, **options)
        assert len(self.client.answers()) == n_before + 1, "it was not answered"
        return self.last()

    def last(self) -> bytes | None:
        event = reply_of(self.client.answers()[-1])
        return bytes(event.payload) if event.body.result else None


def bytes_of(number: int) -> bytes:
    return bytes([number]) * NBYTES


def ticket(number: int) -> bytes:
    return number.to_bytes(16, "big")


@pytest.fixture
def devices() -> list[NullDevice]:
    return [NullDevice("zero", 10_000), NullDevice("one", 10_000)]


@pytest.fixture
def worker(devices) -> InlineWorker:
    return InlineWorker(devices, WorkerConfig((), ticket_timeout_s=30.0))


@pytest.fixture
def client(worker) -> RawClient:
    return RawClient(worker)


# A task and its parts


def test_a_task_writes_runs_and_reads_in_one_message(devices, client):
    task = Task(client, writes=lambda t: [t.x, t.z], reads=lambda t: [t.z, t.x])
    n_before = len(client.events)
    assert task.run(bytes_of(1) + bytes_of(2)) == bytes_of(2) + bytes_of(1)
    assert task.run(bytes_of(3) + bytes_of(4), whole=False) == bytes_of(4) + bytes_of(3)
    assert len(client.events) == n_before + 2
    assert [plan.n_runs for plan in devices[0].plans] == [2]


def test_a_task_without_inputs_and_results(devices, client):
    assert Task(client, writes=[], reads=[]).run() == b""
    assert devices[0].plans[0].n_runs == 1


def test_a_task_that_comes_whole_again_is_not_compiled_again(devices, client):
    task = Task(client)
    for number in (1, 2):
        assert task.run(bytes_of(number)) == bytes_of(number)
    assert len(devices[0].plans) == 1


@pytest.mark.parametrize("value", [b"", bytes(NBYTES - 1), bytes(NBYTES + 1)])
def test_inputs_of_another_size_write_nothing(client, value):
    task = Task(client)
    task.run(bytes_of(1))
    with pytest.raises(errors.GraphError, match=rf"take {NBYTES} bytes and {len(value)} came"):
        task.run(value)
    assert client.read(task.handle) == bytes_of(1)


@pytest.mark.parametrize(
    ("record", "text"),
    [
        (lambda t: [1, 2], "five lists"),
        (lambda t: [*t.record[:4], 5], "five lists"),
        (lambda t: [*t.record[:1], [7], *t.record[2:]], "tensor record"),
        (lambda t: [*t.record[:4], [[t.x, 1, 2]]], "onward entry"),
        (lambda t: [*t.record[:4], [[t.x, "nowhere:x", 0]]], "nowhere:x"),
        (lambda t: [*t.record[:1], [leaf_record(t.handle, 4 * NBYTES)], *t.record[2:]], "outside its buffer"),
        (lambda t: [*t.record[:1], [leaf_record(999)], *t.record[2:]], "never allocated"),
    ],
)
def test_a_malformed_task_is_refused_and_the_stream_lives(client, record, text):
    task = Task(client)
    good, task.record = task.record, record(task)
    task.digest = graph_digest(task.record)
    with pytest.raises((errors.GraphError, errors.HandleError, errors.ConfigError), match=text):
        task.run(bytes_of(1))
    task.record, task.digest = good, graph_digest(good)
    assert task.run(bytes_of(2)) == bytes_of(2)


def test_a_digest_that_is_not_that_of_the_task(client):
    task = Task(client)
    task.digest = bytes(16)
    with pytest.raises(errors.GraphError, match="not that of the task"):
        task.run(bytes_of(1))


def test_a_buffer_of_another_session_or_device_opens_nothing(worker, client):
    other = Task(RawClient(worker))
    other.client = client
    with pytest.raises(errors.HandleError, match="another session"):
        other.run(bytes_of(1))
    task = Task(client, 1)
    task.stream = 0
    with pytest.raises(errors.HandleError, match="lies on device 1"):
        task.run(bytes_of(1))


def test_more_than_one_message_may_carry(devices):
    client = RawClient(InlineWorker(devices, WorkerConfig((), max_payload_nbytes=2 * NBYTES)))
    with pytest.raises(errors.LimitError, match="smaller batches"):
        Task(client, reads=lambda t: [t.x, t.y, t.z]).run(bytes_of(1))


def test_an_operation_that_the_device_lacks(client):
    client = RawClient(InlineWorker([NullDevice("zero", refused_ops=["ADD"])]))
    with pytest.raises(errors.UnsupportedOpError):
        Task(client).run(bytes_of(1))


# Refusal


def test_an_unknown_task_is_refused_and_all_that_follow_until_the_client_resumes(devices, client):
    first, second = Task(client, name="first"), Task(client, name="second")
    assert second.run(bytes_of(1)) == bytes_of(1)
    assert first.run(bytes_of(2), whole=False) is None
    assert second.run(bytes_of(3), whole=False) is None
    assert second.run(bytes_of(3), whole=True) is None
    assert client.read(second.handle) == bytes_of(1), "only tasks are refused"
    assert first.run(bytes_of(2), resume=True) == bytes_of(2)
    assert second.run(bytes_of(3), whole=False) == bytes_of(3)


def test_resuming_with_a_task_that_is_not_known_refuses_again(client):
    task = Task(client)
    assert task.run(bytes_of(1), whole=False) is None
    assert task.run(bytes_of(1), whole=False, resume=True) is None
    assert task.run(bytes_of(1)) is None
    assert task.run(bytes_of(1), resume=True) == bytes_of(1)


def test_a_refusal_without_an_answer_is_a_notice_and_fails_nothing_else(client):
    task = Task(client, reads=[])
    sequences = [task.say(bytes_of(1), whole=False, onward_only=True), task.say(bytes_of(2), onward_only=True)]
    notices = client.notices()
    assert [notice.request for notice in notices] == sequences
    assert all(isinstance(notice.error, errors.StaleGraphError) for notice in notices)
    client.ask(c.SYNCHRONIZE, r.Empty())
    task.say(bytes_of(3), onward_only=True, resume=True)
    assert client.read(task.handle) == bytes_of(3)


def test_a_task_over_a_freed_buffer_is_refused_and_cannot_come_back(devices, client):
    task = Task(client)
    task.run(bytes_of(1))
    client.say(c.FREE_BUFFER, r.BufferRef(task.handle))
    client.alloc(3 * NBYTES)
    assert task.run(bytes_of(2), whole=False) is None
    assert devices[0].plans[0].closed
    with pytest.raises(errors.HandleError, match="was freed"):
        task.run(bytes_of(2), resume=True)


def test_only_the_last_tasks_are_kept(devices):
    client = RawClient(InlineWorker(devices, WorkerConfig((), graphs_per_stream=2)))
    tasks = [Task(client, name=name) for name in "abc"]
    for task in tasks:
        task.run(bytes_of(1))
    assert [task.run(bytes_of(2), whole=False) is None for task in tasks[1:]] == [False, False]
    assert tasks[0].run(bytes_of(2), whole=False) is None
    assert [plan.closed for plan in devices[0].plans] == [True, False, False]


def test_sessions_do_not_share_tasks(worker, client):
    task = Task(client)
    task.run(bytes_of(1))
    task.client = RawClient(worker)
    assert task.run(bytes_of(1), whole=False) is None


def test_a_failed_stream_that_is_told_to_resume_resumes(client):
    task = Task(client)
    assert task.run(bytes_of(1), whole=False) is None
    client.say(c.BUFFER_CLEAR, r.BufferClear(999, 0))
    with pytest.raises(errors.HandleError, match="999"):
        task.run(bytes_of(1), resume=True)
    assert task.run(bytes_of(2)) == bytes_of(2)


# Errors


def test_an_error_of_a_task_is_its_answer_and_the_stream_goes_on():
    device = FailingDevice(NullDevice("zero"), {2})
    client = RawClient(InlineWorker([device]))
    task = Task(client)
    task.run(bytes_of(1))
    with pytest.raises(errors.ComputeError, match="graph 2 fails") as caught:
        task.run(bytes_of(2))
    assert (caught.value.context.command, caught.value.context.device) == ("SUBMIT", "zero")
    assert task.run(bytes_of(3), whole=False) == bytes_of(3)
    assert client.notices() == []


def test_a_task_without_an_answer_fails_alone_and_the_notice_names_the_request():
    client = RawClient(InlineWorker([FailingDevice(NullDevice("zero"), {1})]))
    task = Task(client, reads=[])
    sequence = task.say(bytes_of(1), onward_only=True)
    assert [(notice.request, notice.code) for notice in client.notices()] == [(sequence, c.SUBMIT_ONWARD.code)]
    assert isinstance(client.notices()[0].error, errors.ComputeError)
    task.say(bytes_of(2), onward_only=True)
    assert task.run(bytes_of(3)) == b""
    assert len(client.notices()) == 1


def test_a_task_with_results_needs_an_answer(client):
    Task(client).say(bytes_of(1), onward_only=True)
    assert isinstance(client.notices()[0].error, errors.GraphError)
    assert "comes with SUBMIT" in str(client.notices()[0].error)


def test_older_clients_do_not_have_it(worker):
    client = RawClient(worker, minor=1)
    task = Task(client)
    client.conversation.agree(4)
    with pytest.raises(errors.SessionError, match="SUBMIT needs protocol minor 4"):
        task.run(bytes_of(1))


# From task to task on one worker


def handing_over(client: RawClient, **options: object) -> tuple[Task, Task]:
    """A task on device 0 whose input goes on to one on device 1, which reads it."""
    source = Task(client, 0, reads=[], onward=lambda t: [[t.x, "", 1]], **options)
    return source, Task(client, 1, writes=[], receives=lambda t: [t.z], reads=lambda t: [t.z], **options)


def test_a_result_goes_to_another_device_of_the_worker(worker, client):
    source, target = handing_over(client)
    source.say(bytes_of(7), onward_only=True, onward=[ticket(1)])
    assert target.run(receive=[ticket(1)]) == bytes_of(7)
    assert len(worker.service.state.mailbox) == 0


def test_a_task_that_came_first_waits_and_holds_its_own_stream_only(worker, client):
    source, target = handing_over(client)
    other = Task(RawClient(worker), 1)
    target.say(receive=[ticket(1)])
    client.say(c.MEMSET_TENSOR, r.TensorFill(target.z, 0, NBYTES, 9), stream=1)
    n_before = len(client.answers())
    assert other.run(bytes_of(3)) == bytes_of(3), "another client is served meanwhile"
    client.ask(c.SYNCHRONIZE, r.Empty(), stream=0)
    assert len(client.answers()) == n_before + 1
    source.say(bytes_of(7), onward_only=True, onward=[ticket(1)])
    assert target.last() == bytes_of(7)
    assert client.read(target.handle, NBYTES, 1, offset=2 * NBYTES) == bytes_of(9), "it ran after the task"


def test_a_task_that_must_wait_is_compiled_before(devices, client):
    source, target = handing_over(client)
    target.say(receive=[ticket(1)])
    assert [(plan.n_runs, plan.closed) for plan in devices[1].plans] == [(0, False)]
    source.say(bytes_of(7), onward_only=True, onward=[ticket(1)])
    assert target.last() == bytes_of(7)
    assert [plan.n_runs for plan in devices[1].plans] == [1]


def test_a_task_that_must_wait_and_cannot_be_compiled_fails_when_its_input_is_there(client):
    source, target = handing_over(client)
    client.say(c.FREE_BUFFER, r.BufferRef(target.handle), stream=1)
    target.say(receive=[ticket(1)])
    source.say(bytes_of(7), onward_only=True, onward=[ticket(1)])
    with pytest.raises(errors.HandleError, match="was freed"):
        target.last()


def test_runs_that_overtake_each_other_are_told_apart_by_their_tickets(client):
    source, target = handing_over(client)
    for number in (2, 1):
        source.say(bytes_of(number), onward_only=True, onward=[ticket(number)])
    for number in (1, 2):
        assert target.run(receive=[ticket(number)]) == bytes_of(number)


@pytest.mark.parametrize(
    ("tickets", "error", "text"),
    [
        ({"receive": []}, errors.GraphError, "1 receive tickets and 0 came"),
        ({"receive": [ticket(1), ticket(2)]}, errors.GraphError, "1 receive tickets and 2 came"),
        ({"receive": [b"short"]}, errors.RemoteProtocolError, "16 bytes, not 5"),
        ({"receive": [ticket(1)], "onward": [ticket(2)]}, errors.GraphError, "0 onward tickets and 1 came"),
    ],
)
def test_tickets_that_do_not_fit_the_task(client, tickets, error, text):
    _, target = handing_over(client)
    client.say(c.DROP_TICKETS, r.Tickets([ticket(1), ticket(2)], "gone"))
    with pytest.raises(error, match=text):
        target.run(**tickets)


def test_a_push_under_a_malformed_ticket_is_refused(worker, client):
    client.say(c.PEER_PUSH, r.PeerPush(b"short"), payload=b"x")
    client.say(c.PEER_FAIL, r.PeerFail(ticket(1), ["not", "a", "failure"]))
    client.say(c.DROP_TICKETS, r.Tickets([b""], "gone"))
    assert [type(notice.error) for notice in client.notices()] == [errors.RemoteProtocolError] * 3
    assert len(worker.service.state.mailbox) == 0


def test_a_tensor_of_another_size_is_refused(client):
    _, target = handing_over(client)
    client.say(c.PEER_PUSH, r.PeerPush(ticket(1)), payload=b"four")
    with pytest.raises(errors.GraphError, match=rf"{NBYTES} bytes from another worker and 4 came"):
        target.run(receive=[ticket(1)])


def test_a_ticket_that_nobody_serves_ends_with_the_deadline(devices, monkeypatch):
    worker = InlineWorker(devices, WorkerConfig((), ticket_timeout_s=0.0))
    _, target = handing_over(RawClient(worker))
    with pytest.raises(errors.DeadlineError, match="input 0 of the task"):
        target.run(receive=[ticket(1)])


def test_dropped_tickets_fail_the_tasks_that_wait_or_will(client):
    _, target = handing_over(client)
    target.say(receive=[ticket(1)])
    client.say(c.DROP_TICKETS, r.Tickets([ticket(1), ticket(2)], "worker tcp://b:1 is lost"))
    with pytest.raises(errors.WorkerLostError, match="tcp://b:1 is lost"):
        target.last()
    with pytest.raises(errors.WorkerLostError, match="tcp://b:1 is lost"):
        target.run(receive=[ticket(2)])


def test_buried_tickets_keep_nothing_whether_it_came_before_or_after(worker, client):
    client.say(c.PEER_PUSH, r.PeerPush(ticket(1)), payload=b"before")
    client.say(c.BURY_TICKETS, r.Tickets([ticket(1), ticket(2)]))
    client.say(c.PEER_PUSH, r.PeerPush(ticket(2)), payload=b"after")
    client.say(c.BURY_TICKETS, r.Tickets([b"short"]))
    assert [type(notice.error) for notice in client.notices()] == [errors.RemoteProtocolError]
    assert len(worker.service.state.mailbox) == 0


@pytest.mark.parametrize("onward_only", [True, False])
def test_who_waits_for_a_task_that_failed_is_told(onward_only):
    client = RawClient(InlineWorker([FailingDevice(NullDevice("zero"), {1}), NullDevice("one")]))
    source, target = handing_over(client)
    target.say(receive=[ticket(1)])
    source.say(bytes_of(1), onward_only=onward_only, onward=[ticket(1)])
    told = [event.error for event in client.answers() if isinstance(event, ErrorEvent)]
    assert len(told) == (1 if onward_only else 2)
    assert all(isinstance(error, errors.ComputeError) and error.context.device == "zero" for error in told)


def test_who_waits_for_a_task_that_was_skipped_is_told(client):
    source, target = handing_over(client)
    for number in (1, 2):
        target.say(receive=[ticket(number)])
    client.say(c.BUFFER_CLEAR, r.BufferClear(999, 0))
    for number in (1, 2):
        source.say(bytes_of(1), onward_only=True, onward=[ticket(number)])
    waited = [event for event in client.answers() if isinstance(event, ErrorEvent)]
    assert [type(event.error) for event in waited] == [errors.HandleError] * 2


def test_a_refused_task_leaves_its_tickets_alone(worker, client):
    source, target = handing_over(client)
    source.say(bytes_of(7), onward_only=True, onward=[ticket(1)])
    assert target.run(whole=False, receive=[ticket(1)]) is None
    assert target.run(receive=[ticket(1)], resume=True) == bytes_of(7)


def test_a_task_that_will_be_refused_waits_for_no_ticket(client):
    _, target = handing_over(client)
    assert target.run(whole=False, receive=[ticket(1)]) is None
    assert target.run(receive=[ticket(1)]) is None


def test_what_nobody_asks_for_is_bounded_and_goes_with_its_session(devices):
    worker = InlineWorker(devices, WorkerConfig((), max_queued_nbytes=20_000))
    pusher, client = RawClient(worker), RawClient(worker)
    for number in range(10):
        pusher.say(c.PEER_PUSH, r.PeerPush(ticket(number)), payload=bytes(4000))
    assert all(isinstance(notice.error, errors.LimitError) for notice in pusher.notices())
    assert 0 < len(pusher.notices()) < 10
    mailbox = worker.service.state.mailbox
    assert 0 < len(mailbox) < 10
    client.ask(c.PING, r.Empty())
    worker.network.cut(pusher.channel)
    assert len(mailbox) == 0


def test_a_session_that_ends_leaves_no_ticket_behind(worker, client):
    source, target = handing_over(client)
    target.say(receive=[ticket(1)])
    source.say(bytes_of(1), onward_only=True, onward=[ticket(2)])
    worker.network.cut(client.channel)
    other = RawClient(worker)
    other.say(c.PEER_PUSH, r.PeerPush(ticket(1)), payload=bytes(NBYTES))
    assert len(worker.service.state.mailbox) == 0


# Events


def test_a_stream_waits_for_a_point_in_another(worker, client):
    first, second = Task(client, 0), Task(client, 1)
    worker.lanes[0].held = True
    first.say(bytes_of(1))
    client.say(c.EVENT_RECORD, r.EventRef(5), stream=0)
    client.say(c.EVENT_WAIT, r.EventRef(5), stream=1)
    second.say(bytes_of(2))
    assert Task(RawClient(worker), 1).run(bytes_of(3)) == bytes_of(3)
    n_before = len(client.answers())
    worker.lanes[0].release()
    answers = client.answers()[n_before:]
    assert [bytes(reply_of(event).payload) for event in answers] == [bytes_of(1), bytes_of(2)]


def test_a_ring_of_waits_does_not_lock(worker, client):
    for lane in worker.lanes:
        lane.held = True
    for event, (record, wait) in enumerate([(0, 1), (1, 0), (0, 1)]):
        client.say(c.EVENT_RECORD, r.EventRef(event % 2), stream=record)
        client.say(c.EVENT_WAIT, r.EventRef(event % 2), stream=wait)
    for stream in (0, 1):
        client.say(c.SYNCHRONIZE, r.Empty(), stream=stream)
    n_before = len(client.answers())
    for lane in worker.lanes:
        lane.release()
    assert len(client.answers()) == n_before + 2


def test_a_wait_for_an_event_that_nobody_recorded_is_nothing(client):
    client.say(c.EVENT_WAIT, r.EventRef(3), stream=1)
    client.ask(c.SYNCHRONIZE, r.Empty(), stream=1)


def test_a_stream_that_waited_for_a_failed_one_fails_too(client):
    client.say(c.BUFFER_CLEAR, r.BufferClear(999, 0), stream=0)
    client.say(c.EVENT_RECORD, r.EventRef(1), stream=0)
    client.say(c.EVENT_WAIT, r.EventRef(1), stream=1)
    for stream in (0, 1):
        with pytest.raises(errors.HandleError, match="999"):
            client.ask(c.SYNCHRONIZE, r.Empty(), stream=stream)
    client.say(c.EVENT_RECORD, r.EventRef(1), stream=0)
    client.say(c.EVENT_WAIT, r.EventRef(1), stream=1)
    client.ask(c.SYNCHRONIZE, r.Empty(), stream=1)


def test_too_many_events_are_refused(client, monkeypatch):
    monkeypatch.setattr("rpc_backend.worker.events.MAX_EVENTS", 1)
    for event in (1, 2):
        client.say(c.EVENT_RECORD, r.EventRef(event))
    assert [type(notice.error) for notice in client.notices()] == [errors.LimitError]
