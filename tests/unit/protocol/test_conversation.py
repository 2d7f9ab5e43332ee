"""Both halves of a conversation: one send, one receive, one answer, and nothing changed by a violation."""

import pytest

from rpc_backend.errors import (
    ComputeError,
    DeviceError,
    LimitError,
    LocalProtocolError,
    RemoteProtocolError,
    SessionError,
)
from rpc_backend.protocol import commands as c
from rpc_backend.protocol import records as r
from rpc_backend.protocol.codec import pack
from rpc_backend.protocol.conversation import (
    BadRequestEvent,
    ClientConversation,
    ErrorEvent,
    NoticeEvent,
    ReplyEvent,
    RequestEvent,
    WorkerConversation,
)
from rpc_backend.protocol.failures import encode_error
from rpc_backend.protocol.framing import Kind, Limits, decode_message, encode_message

HELLO = r.Hello(1, 1, "digest", "build", [], 5000)
RANGE = r.TensorRange([0], 0, 5)


def pair(minor=1):
    client, worker = ClientConversation(), WorkerConversation()
    client.agree(minor)
    worker.agree(minor)
    return client, worker


def raw(kind, code, sequence, ref, body, payloads=()):
    return encode_message(kind, code, sequence, ref, body, payloads, Limits())


def test_a_request_and_its_reply():
    client, worker = pair()
    sequence, frames = client.request(c.GET_TENSOR, RANGE, stream=3)
    request = worker.receive(frames)
    assert request == RequestEvent(sequence, 3, c.GET_TENSOR, RANGE, None)
    assert (client.n_open, worker.n_open) == (1, 1)
    reply = client.receive(worker.reply(request.sequence, r.Empty(), b"12345"))
    assert isinstance(reply, ReplyEvent)
    assert (reply.request, reply.command, reply.body, bytes(reply.payload)) == (
        sequence,
        c.GET_TENSOR,
        r.Empty(),
        b"12345",
    )
    assert (client.n_open, worker.n_open) == (0, 0)


def test_replies_may_come_in_another_order():
    client, worker = pair()
    first, second = (worker.receive(client.request(c.PING, r.Empty())[1]) for _ in range(2))
    assert client.receive(worker.reply(second.sequence, r.Empty())).request == second.sequence
    assert client.receive(worker.reply(first.sequence, r.Empty())).request == first.sequence


def test_hello_comes_first_and_once():
    client, worker = ClientConversation(), WorkerConversation()
    with pytest.raises(LocalProtocolError, match="before HELLO"):
        client.request(c.PING, r.Empty())
    refused = worker.receive(raw(Kind.REQUEST, c.PING.code, 1, 0, []))
    assert isinstance(refused, BadRequestEvent)
    assert isinstance(refused.error, SessionError)
    client, worker = ClientConversation(), WorkerConversation()
    assert isinstance(worker.receive(client.request(c.HELLO, HELLO)[1]), RequestEvent)
    client.agree(1)
    worker.agree(1)
    with pytest.raises(LocalProtocolError, match="said once"):
        client.request(c.HELLO, HELLO)
    assert isinstance(worker.receive(raw(Kind.REQUEST, c.HELLO.code, 2, 0, [1, 1, "", "", [], 1])), BadRequestEvent)


def test_each_request_is_answered_exactly_once():
    client, worker = pair()
    event = worker.receive(client.request(c.PING, r.Empty())[1])
    worker.reply(event.sequence, r.Empty())
    with pytest.raises(LocalProtocolError, match="has been answered"):
        worker.reply(event.sequence, r.Empty())
    with pytest.raises(LocalProtocolError, match="has been answered"):
        worker.fail(event, encode_error(DeviceError("late")))


def test_a_request_without_a_reply_is_never_answered():
    client, worker = pair()
    sequence, frames = client.request(c.SET_TENSOR, RANGE, payload=b"12345")
    event = worker.receive(frames)
    assert bytes(event.payload) == b"12345"
    assert (client.n_open, worker.n_open) == (0, 0)
    with pytest.raises(LocalProtocolError, match="expects no reply"):
        worker.reply(sequence, r.Empty())
    with pytest.raises(RemoteProtocolError, match="not open"):
        client.receive(raw(Kind.REPLY, c.SET_TENSOR.code, 1, sequence, []))


def test_a_failure_is_the_answer_or_a_notice_of_the_stream():
    client, worker = pair()
    failure = encode_error(ComputeError("broke"), device="cpu")
    asked = worker.receive(client.request(c.SYNCHRONIZE, r.Empty(), stream=2)[1])
    answer = client.receive(worker.fail(asked, failure))
    assert isinstance(answer, ErrorEvent)
    assert type(answer.error) is ComputeError
    assert (answer.request, answer.error.context.device, answer.error.context.command) == (
        asked.sequence,
        "cpu",
        "SYNCHRONIZE",
    )
    unasked = worker.receive(client.request(c.GRAPH_COMPUTE, r.GraphCompute(0, []), stream=2)[1])
    notice = client.receive(worker.fail(unasked, failure))
    assert isinstance(notice, NoticeEvent)
    assert (notice.stream, notice.code, notice.error.context.command) == (2, c.GRAPH_COMPUTE.code, "GRAPH_COMPUTE")
    assert notice.request == unasked.sequence
    assert client.receive(worker.notify(1, failure, c.GRAPH_COMPUTE.code)).request == 0


def test_a_failure_of_an_older_worker_names_no_request():
    client, _ = pair()
    notice = client.receive(raw(Kind.NOTICE, c.GRAPH_COMPUTE.code, 1, 2, [71, "broke"]))
    assert (notice.stream, notice.request, notice.error.message) == (2, 0, "broke")


def test_a_command_with_payloads_both_ways_needs_both():
    client, worker = pair(4)
    body = r.Submit(b"d", [], [], [], False)
    with pytest.raises(LocalProtocolError, match="a request of SUBMIT must carry a payload"):
        client.request(c.SUBMIT, body)
    event = worker.receive(client.request(c.SUBMIT, body, payload=b"in")[1])
    assert bytes(event.payload) == b"in"
    with pytest.raises(LocalProtocolError, match="a reply of SUBMIT must carry a payload"):
        worker.reply(event.sequence, r.Result(True))
    answer = client.receive(worker.reply(event.sequence, r.Result(True), b""))
    assert bytes(answer.payload) == b""
    assert isinstance(
        worker.receive(raw(Kind.REQUEST, c.SUBMIT.code, 2, 0, [b"d", [], [], [], False])), BadRequestEvent
    )


def test_an_unknown_command_is_answered_and_the_connection_lives():
    client, worker = pair()
    event = worker.receive(raw(Kind.REQUEST, 250, 1, 0, []))
    assert isinstance(event, BadRequestEvent)
    assert event.command is None
    assert "250" in str(event.error)
    worker.fail(event, encode_error(event.error))
    client.request(c.PING, r.Empty())  # takes the sequence number that the hand-made message used
    assert isinstance(worker.receive(client.request(c.PING, r.Empty())[1]), RequestEvent)


def test_an_error_for_a_command_without_reply_that_the_worker_does_not_know_becomes_a_notice():
    client, _ = pair()
    sequence, _ = client.request(c.FREE_BUFFER, r.BufferRef(1))
    event = client.receive(raw(Kind.ERROR, c.FREE_BUFFER.code, 1, sequence, [50, "unknown"]))
    assert isinstance(event, NoticeEvent)


@pytest.mark.parametrize(
    ("command", "body", "payloads"),
    [
        (c.PING, [], [b"x"]),
        (c.SET_TENSOR, [[0], 0, 5], []),
        (c.GET_TENSOR, [[0], 0, 5], [b"12345"]),
        (c.ALLOC_BUFFER, ["not a number", 1, ""], []),
        (c.FREE_BUFFER, [], []),
    ],
)
def test_a_known_command_with_a_wrong_body_or_payload_is_a_bad_request(command, body, payloads):
    _, worker = pair()
    event = worker.receive(raw(Kind.REQUEST, command.code, 1, 9, body, payloads))
    assert isinstance(event, BadRequestEvent)
    assert event.error.context.command == command.name
    answer = worker.fail(event, encode_error(event.error))
    expected = Kind.NOTICE if command.reply is None else Kind.ERROR
    assert decode_message(answer, Limits()).header.kind is expected


def test_commands_of_a_newer_minor_are_not_used(monkeypatch):
    newer = c.Command(200, "NEWER", r.Empty, r.Empty, c.Lane.CONTROL, "A command to come.", since=2)
    monkeypatch.setitem(c.COMMANDS, 200, newer)
    client, worker = pair(minor=1)
    with pytest.raises(LocalProtocolError, match="needs protocol minor 2"):
        client.request(newer, r.Empty())
    assert isinstance(worker.receive(raw(Kind.REQUEST, 200, 1, 0, [])), BadRequestEvent)
    client, worker = pair(minor=2)
    assert isinstance(worker.receive(client.request(newer, r.Empty())[1]), RequestEvent)


def test_our_own_mistakes_are_local_errors_and_use_no_sequence_number():
    client, worker = pair()
    with pytest.raises(LocalProtocolError, match="is a TensorRange"):
        client.request(c.SET_TENSOR, r.Empty(), payload=b"")
    with pytest.raises(LocalProtocolError, match="must carry"):
        client.request(c.SET_TENSOR, RANGE)
    with pytest.raises(LocalProtocolError, match="must not carry"):
        client.request(c.PING, r.Empty(), payload=b"")
    with pytest.raises(LocalProtocolError, match=r"BufferRef\.handle"):
        client.request(c.FREE_BUFFER, r.BufferRef("x"))
    with pytest.raises(LimitError):
        client.request(c.SET_TENSOR, RANGE, payload=bytes(Limits().max_payload_nbytes + 1))
    event = worker.receive(client.request(c.GET_TENSOR, RANGE)[1])
    with pytest.raises(LocalProtocolError, match="must carry"):
        worker.reply(event.sequence, r.Empty())
    with pytest.raises(LocalProtocolError, match="is a Empty"):
        worker.reply(event.sequence, r.Count(1), b"")
    assert client.receive(worker.reply(event.sequence, r.Empty(), b"")).request == event.sequence


def test_lost_doubled_and_swapped_messages_are_noticed_by_both_sides():
    client, worker = pair()
    first, second, third = (client.request(c.PING, r.Empty())[1] for _ in range(3))
    event = worker.receive(first)
    for wrong in (first, third):
        with pytest.raises(RemoteProtocolError, match="was due"):
            worker.receive(wrong)
    worker.receive(second)
    answers = [worker.reply(event.sequence, r.Empty()), worker.reply(event.sequence + 1, r.Empty())]
    with pytest.raises(RemoteProtocolError, match="was due"):
        client.receive(answers[1])
    client.receive(answers[0])
    with pytest.raises(RemoteProtocolError, match="was due"):
        client.receive(answers[0])
    client.receive(answers[1])


def test_a_response_scattered_by_one_receive_per_entry_fails():
    client, worker = pair()
    event = worker.receive(client.request(c.GET_TENSOR, RANGE)[1])
    frames = worker.reply(event.sequence, r.Empty(), b"12345")
    with pytest.raises(RemoteProtocolError):
        client.receive(frames[:1])  # the header alone, the rest "later"
    with pytest.raises(RemoteProtocolError):
        client.receive(frames[1:])
    with pytest.raises(RemoteProtocolError):
        client.receive([frames[0], frames[1][:2]])  # the entry in pieces
    assert client.n_open == 1, "a violation changes nothing"
    assert bytes(client.receive(frames).payload) == b"12345"


def test_one_reply_sent_by_several_sends_fails():
    client, worker = pair()
    sequence, frames = client.request(c.GET_TENSOR, RANGE)
    worker.receive(frames)
    head = pack([int(Kind.REPLY), c.GET_TENSOR.code, 1, sequence, [], [2, 3]])
    with pytest.raises(LimitError, match="2 payloads"):
        client.receive([head, b"12", b"345"])
    client.receive(raw(Kind.REPLY, c.GET_TENSOR.code, 1, sequence, [], [b"12"]))
    with pytest.raises(RemoteProtocolError, match="not open"):
        client.receive(raw(Kind.REPLY, c.GET_TENSOR.code, 2, sequence, [], [b"345"]))


@pytest.mark.parametrize(
    ("kind", "code", "ref", "body", "payloads"),
    [
        (Kind.REQUEST, c.PING.code, 1, [], []),
        (Kind.REPLY, c.PING.code, 2, [], []),
        (Kind.REPLY, c.STATS.code, 1, [{}, 1, 0.5], []),
        (Kind.REPLY, c.PING.code, 1, [], [b"x"]),
        (Kind.ERROR, c.PING.code, 2, [1, "x"], []),
        (Kind.ERROR, c.PING.code, 1, ["not a code", "x"], []),
        (Kind.ERROR, c.PING.code, 1, [1, "x"], [b"payload"]),
        (Kind.ERROR, c.FREE_BUFFER.code, 99, [1, "x"], []),
        (Kind.NOTICE, c.PING.code, 1, [], []),
    ],
)
def test_what_a_worker_may_not_send(kind, code, ref, body, payloads):
    client, _ = pair()
    sequence, _ = client.request(c.PING, r.Empty())
    assert sequence == 1
    with pytest.raises(RemoteProtocolError):
        client.receive(raw(kind, code, 1, ref, body, payloads))
    assert client.n_open == 1
    assert client.receive(raw(Kind.REPLY, c.PING.code, 1, 1, [])).command is c.PING


@pytest.mark.parametrize("kind", [Kind.REPLY, Kind.ERROR, Kind.NOTICE])
def test_clients_send_requests_only(kind):
    _, worker = pair()
    with pytest.raises(RemoteProtocolError, match="clients send requests only"):
        worker.receive(raw(kind, c.PING.code, 1, 1, []))
