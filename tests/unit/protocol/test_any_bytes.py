"""Whatever bytes come, only errors of the protocol come out, and the conversation goes on as if nothing had been."""

from hypothesis import given, settings
from hypothesis import strategies as st

from rpc_backend.errors import ProtocolError
from rpc_backend.protocol import commands as c
from rpc_backend.protocol import records as r
from rpc_backend.protocol.codec import pack
from rpc_backend.protocol.conversation import BadRequestEvent, ClientConversation, RequestEvent, WorkerConversation
from rpc_backend.protocol.failures import encode_error

plain = st.recursive(
    st.none() | st.booleans() | st.integers(-(1 << 63), (1 << 64) - 1) | st.floats() | st.text() | st.binary(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=8,
)
headers = st.tuples(
    st.integers(0, 4), st.sampled_from([*c.COMMANDS, 250]), st.integers(0, 2), st.integers(0, 3),
    st.lists(plain, max_size=6), st.lists(st.integers(-1, 5), max_size=2),
).map(lambda fields: pack(list(fields)))  # fmt: skip
messages = st.lists(st.binary(max_size=20), max_size=3) | st.tuples(headers, st.binary(max_size=5)).map(list)
messages |= st.tuples(headers).map(list)


@settings(max_examples=400, deadline=None)
@given(messages)
def test_a_worker_survives_any_message(frames):
    client, worker = ClientConversation(), WorkerConversation()
    client.agree(1)
    worker.agree(1)
    try:
        event = worker.receive(frames)
    except ProtocolError:
        assert isinstance(worker.receive(client.request(c.PING, r.Empty())[1]), RequestEvent)
        return
    if isinstance(event, BadRequestEvent):
        worker.fail(event, encode_error(event.error))
    client.request(c.PING, r.Empty())
    assert isinstance(worker.receive(client.request(c.PING, r.Empty())[1]), RequestEvent)


@settings(max_examples=400, deadline=None)
@given(messages)
def test_a_client_survives_any_message(frames):
    client, worker = ClientConversation(), WorkerConversation()
    client.agree(1)
    worker.agree(1)
    event = worker.receive(client.request(c.GET_TENSOR, r.TensorRange([], 0, 1))[1])
    try:
        client.receive(frames)
    except ProtocolError:
        assert client.receive(worker.reply(event.sequence, r.Empty(), b"x")).command is c.GET_TENSOR
