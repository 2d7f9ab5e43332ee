"""The worker's promises, spoken to in records over a memory network."""

from __future__ import annotations

import pytest

from rpc_backend import errors
from rpc_backend.graph import Graph, build, element_type, encode_graph, graph_digest
from rpc_backend.protocol import ErrorEvent
from rpc_backend.protocol import commands as c
from rpc_backend.protocol import records as r
from rpc_backend.testing.devices import FailingDevice, NullDevice
from rpc_backend.testing.inline_worker import InlineWorker
from rpc_backend.testing.raw_client import RawClient as Peer
from rpc_backend.testing.raw_client import hello, reply_of
from rpc_backend.testing.raw_client import leaf_record as leaf
from rpc_backend.worker import WorkerConfig

F32 = element_type("F32")
ROW = [16]
NBYTES = 64


def doubling(handle: int, name: str = "") -> r.Record:
    """The record of `y = x + x`, x at 0 and y behind it."""
    x = build.leaf(F32, ROW, name)
    y = build.add(x, x)
    return encode_graph(Graph.of(y), lambda tensor: (handle, 0 if tensor is x else NBYTES))


@pytest.fixture
def devices() -> list[NullDevice]:
    return [NullDevice("zero", 10_000), NullDevice("one", 10_000)]


@pytest.fixture
def worker(devices) -> InlineWorker:
    return InlineWorker(devices)


@pytest.fixture
def peer(worker) -> Peer:
    return Peer(worker)


# Greeting


def test_hello_opens_a_session_and_names_the_devices(peer):
    assert peer.hello.devices == [["zero", "computes nothing", "cpu"], ["one", "computes nothing", "cpu"]]
    assert len(peer.hello.session) == 16
    assert peer.hello.max_queued_nbytes == WorkerConfig(()).max_queued_nbytes


def test_sessions_have_ids_and_epochs_of_their_own(worker, peer):
    other = Peer(worker)
    assert other.hello.session != peer.hello.session
    assert other.hello.epoch > peer.hello.epoch


@pytest.mark.parametrize("request_", [hello(major=2), hello(digest="other"), hello(minor=0)])
def test_a_greeting_without_common_ground_is_refused(worker, request_):
    peer = Peer(worker, greet=False)
    with pytest.raises(errors.NegotiationError, match=rf"the client speaks version .*, the worker 1\.{c.MINOR}"):
        peer.ask(c.HELLO, request_)


def test_before_hello_everything_else_is_refused(worker):
    peer = Peer(worker, greet=False)
    peer.conversation.agree(1)
    with pytest.raises(errors.SessionError, match="HELLO"):
        peer.ask(c.PING, r.Empty())


def test_a_second_hello_is_refused_and_the_session_stays(peer):
    peer.conversation.minor = None
    with pytest.raises(errors.SessionError, match="once"):
        peer.ask(c.HELLO, hello())
    peer.conversation.minor = 1
    assert peer.ask(c.DEVICE_COUNT, r.Empty()).count == 2


# Questions


def test_what_a_device_is(peer):
    assert peer.ask(c.GET_ALIGNMENT, r.DeviceRef(1)).nbytes == 64
    assert peer.ask(c.GET_MAX_SIZE, r.DeviceRef(1)).nbytes == 1 << 62
    assert peer.ask(c.GET_DEVICE_MEMORY, r.DeviceRef(1)) == r.DeviceMemory(10_000, 10_000)


@pytest.mark.parametrize("device", [-1, 2, 1 << 62])
def test_a_device_that_is_not_there(peer, device):
    with pytest.raises(errors.GraphError, match="does not exist"):
        peer.ask(c.GET_ALIGNMENT, r.DeviceRef(device))


def test_ping_and_stats(peer):
    peer.ask(c.PING, r.Empty())
    stats = peer.ask(c.STATS, r.Empty())
    assert stats.sessions == 1
    assert stats.commands["PING"][0] == 1
    assert all(count > 0 for count in stats.commands["PING"])
    assert stats.uptime_s >= 0


# Memory


def test_a_cap_holds_over_all_sessions(devices):
    worker = InlineWorker(devices, WorkerConfig((), {0: 1000}))
    first, second = Peer(worker), Peer(worker)
    assert first.ask(c.GET_DEVICE_MEMORY, r.DeviceRef(0)) == r.DeviceMemory(1000, 1000)
    first.alloc(600)
    with pytest.raises(errors.OutOfMemoryError, match=r"401 bytes .* 400 of 1000 are free"):
        second.alloc(401)
    second.alloc(400)
    assert first.ask(c.GET_DEVICE_MEMORY, r.DeviceRef(0)).free_nbytes == 0


@pytest.mark.parametrize("nbytes", [-1, 10_001, 1 << 63, (1 << 64) - 1])
def test_sizes_that_cannot_be_are_refused_and_nothing_changes(peer, nbytes):
    with pytest.raises((errors.LimitError, errors.OutOfMemoryError), match=str(nbytes)):
        peer.alloc(nbytes)
    assert peer.ask(c.GET_DEVICE_MEMORY, r.DeviceRef(0)).free_nbytes == 10_000
    peer.alloc(1_000)


def test_an_empty_buffer_is_allowed_and_can_be_freed(peer):
    handle = peer.alloc(0)
    assert handle > 0
    peer.say(c.FREE_BUFFER, r.BufferRef(handle))
    assert peer.notices() == []


def test_an_unknown_usage_is_refused(peer):
    with pytest.raises(errors.GraphError, match="'other'"):
        peer.ask(c.ALLOC_BUFFER, r.AllocBuffer(0, 10, "other"))


def test_an_allocation_that_the_device_refuses_counts_for_nothing(worker, devices, peer, monkeypatch):
    monkeypatch.setattr(devices[0], "alloc_buffer", lambda *_: (_ for _ in ()).throw(MemoryError()))
    with pytest.raises(errors.OutOfMemoryError):
        peer.alloc(100)
    monkeypatch.undo()
    assert peer.ask(c.GET_DEVICE_MEMORY, r.DeviceRef(0)).free_nbytes == 10_000


def test_goodbye_frees_all_that_a_session_holds(worker, devices, peer):
    for device in (0, 1):
        peer.alloc(100, device)
    peer.say(c.GOODBYE, r.Empty())
    assert [device.used_nbytes for device in devices] == [0, 0]
    with pytest.raises(errors.SessionError, match="GOODBYE"):
        peer.ask(c.PING, r.Empty())


def test_a_lost_client_leaves_nothing_behind(worker, devices, peer):
    peer.alloc(100)
    worker.network.cut(peer.channel)
    assert devices[0].used_nbytes == 0
    assert Peer(worker).ask(c.STATS, r.Empty()).sessions == 1


def test_what_a_lost_client_had_queued_is_not_run(worker, devices, peer):
    handle = peer.alloc(2 * NBYTES)
    worker.lanes[0].held = True
    peer.say(c.GRAPH_COMPUTE, r.GraphCompute(0, doubling(handle)))
    worker.network.cut(peer.channel)
    worker.lanes[0].release()
    assert devices[0].plans == []
    assert devices[0].used_nbytes == 0


# Handles


@pytest.mark.parametrize("other", ["freed", "foreign", "unknown", "null"])
def test_a_handle_that_is_not_the_sessions_own_opens_nothing(worker, peer, other):
    owner = Peer(worker)
    handle = owner.alloc(2 * NBYTES)
    owner.say(c.SET_TENSOR, r.TensorRange(leaf(handle), 0, NBYTES), payload=b"x" * NBYTES)
    if other == "freed":
        peer, handle = owner, owner.alloc(2 * NBYTES)
        owner.say(c.FREE_BUFFER, r.BufferRef(handle))
    elif other in ("unknown", "null"):
        handle = {"unknown": 999, "null": 0}[other]
    kind = errors.GraphError if other == "null" else errors.HandleError
    with pytest.raises(kind):
        peer.read(handle)
    with pytest.raises(errors.HandleError):
        peer.ask(c.BUFFER_GET_BASE, r.BufferRef(handle))
    for command, body, payload in (
        (c.SET_TENSOR, r.TensorRange(leaf(handle), 0, NBYTES), bytes(NBYTES)),
        (c.MEMSET_TENSOR, r.TensorFill(leaf(handle), 0, NBYTES, 1), None),
        (c.GRAPH_COMPUTE, r.GraphCompute(0, doubling(handle)), None),
        (c.FREE_BUFFER, r.BufferRef(handle), None),
        (c.BUFFER_CLEAR, r.BufferClear(handle, 0), None),
    ):
        peer.say(command, body, payload=payload)
        with pytest.raises(kind if command in (c.SET_TENSOR, c.MEMSET_TENSOR, c.GRAPH_COMPUTE) else errors.HandleError):
            peer.ask(c.SYNCHRONIZE, r.Empty())
    if other != "freed":
        assert owner.read(1) == b"x" * NBYTES


def test_a_buffer_is_used_in_the_stream_of_its_device(peer):
    handle = peer.alloc(NBYTES, 0)
    with pytest.raises(errors.HandleError, match="lies on device 0"):
        peer.read(handle, stream=1)


def test_a_command_for_a_device_comes_in_its_stream(peer):
    with pytest.raises(errors.GraphError, match="stream of device 1"):
        peer.ask(c.ALLOC_BUFFER, r.AllocBuffer(0, 1, "any"), stream=1)


@pytest.mark.parametrize("stream", [2, 1 << 40])
def test_a_stream_that_is_not_there(peer, stream):
    with pytest.raises(errors.GraphError, match="does not exist"):
        peer.ask(c.SYNCHRONIZE, r.Empty(), stream=stream)


def test_bases_of_buffers_do_not_overlap(peer):
    handles = [peer.alloc(100) for _ in range(3)]
    bases = [peer.ask(c.BUFFER_GET_BASE, r.BufferRef(handle)).base for handle in handles]
    assert bases[0] + 100 < bases[1] < bases[1] + 100 < bases[2]


# Tensors


def test_bytes_go_where_they_should_and_come_back(peer):
    handle = peer.alloc(2 * NBYTES)
    peer.say(c.BUFFER_CLEAR, r.BufferClear(handle, 7))
    peer.say(c.SET_TENSOR, r.TensorRange(leaf(handle, offset=NBYTES), 4, 8), payload=b"12345678")
    peer.say(c.MEMSET_TENSOR, r.TensorFill(leaf(handle), 60, 4, 9))
    expected = b"\7" * 60 + b"\t" * 4 + b"\7" * 4 + b"12345678" + b"\7" * 52
    assert peer.read(handle, 2 * NBYTES) == expected


def test_a_copy_within_a_device_and_across_two(peer):
    source, near, far = peer.alloc(NBYTES), peer.alloc(NBYTES), peer.alloc(NBYTES, 1)
    peer.say(c.BUFFER_CLEAR, r.BufferClear(source, 5))
    for target, stream in ((near, 0), (far, 1)):
        pair = r.TensorPair(leaf(source), leaf(target))
        assert peer.ask(c.COPY_TENSOR, pair, stream=stream).result
        assert peer.read(target, stream=stream) == b"\5" * NBYTES


def test_a_copy_through_the_host_where_a_device_cannot(peer, monkeypatch):
    handle = peer.alloc(3 * NBYTES)
    peer.say(c.SET_TENSOR, r.TensorRange(leaf(handle), 0, NBYTES), payload=bytes(range(NBYTES)))
    monkeypatch.setattr("rpc_backend.interfaces.HostBuffer.copy_from", lambda *_: False)
    monkeypatch.setattr("rpc_backend.worker.handlers.tensors._COPY_CHUNK_NBYTES", 7)
    pair = r.TensorPair(leaf(handle), leaf(handle, offset=4))
    assert peer.ask(c.COPY_TENSOR, pair).result
    assert peer.read(handle, 68) == bytes(range(4)) + bytes(range(NBYTES))


def test_a_copy_between_layouts_is_refused(peer):
    handle = peer.alloc(4 * NBYTES)
    with pytest.raises(errors.GraphError, match="differ in type, extents or strides"):
        peer.ask(c.COPY_TENSOR, r.TensorPair(leaf(handle), leaf(handle, 2 * NBYTES)))


@pytest.mark.parametrize(
    ("offset", "nbytes"), [(0, NBYTES + 1), (NBYTES, 1), (-1, 1), (1, -1), ((1 << 64) - 1, 1), ((1 << 63), 1 << 63)]
)
def test_no_byte_outside_a_tensor_is_read_or_set(peer, offset, nbytes):
    handle = peer.alloc(4 * NBYTES)
    with pytest.raises(errors.GraphError, match="outside"):
        peer.ask(c.GET_TENSOR, r.TensorRange(leaf(handle), offset, nbytes))
    peer.say(c.MEMSET_TENSOR, r.TensorFill(leaf(handle), offset, nbytes, 1))
    with pytest.raises(errors.GraphError, match="outside"):
        peer.ask(c.SYNCHRONIZE, r.Empty())
    assert peer.read(handle, 4 * NBYTES) == bytes(4 * NBYTES)


@pytest.mark.parametrize(
    ("field", "value", "text"),
    [
        (0, 99, "unknown element type"),
        (0, -1, "unknown element type"),
        (1, [1 << 40, 1, 1, 1], "outside its buffer"),
        (1, [(1 << 64) - 1, 1, 1, 1], "out of range"),
        (1, [-4, 1, 1, 1], "negative"),
        (1, [1, 1, 1], "right length"),
        (2, [-4, 64, 64, 64], "out of range"),
        (2, [1 << 63, 64, 64, 64], "out of range"),
        (3, 1234, "unknown operation"),
        (4, b"short", "op parameters"),
        (5, [0], "not before it"),
        (6, 0, "not before it"),
        (8, "x", "number belongs"),
        (9, -4, "outside its buffer"),
        (9, 1, "multiples of 4"),
        (9, (1 << 64) - 4, "outside its buffer"),
        (10, 5, "malformed name"),
    ],
)
def test_a_hostile_tensor_is_refused(peer, field, value, text):
    record = leaf(peer.alloc(2 * NBYTES))
    record[field] = value
    with pytest.raises(errors.GraphError, match=text):
        peer.ask(c.GET_TENSOR, r.TensorRange(record, 0, 4))


def test_a_read_above_the_payload_limit_is_refused(devices):
    peer = Peer(InlineWorker(devices, WorkerConfig((), max_payload_nbytes=128)))
    handle = peer.alloc(256)
    with pytest.raises(errors.LimitError, match="read it in parts"):
        peer.ask(c.GET_TENSOR, r.TensorRange(leaf(handle, 256), 0, 256))


def read_many(peer: Peer, *ranges: list) -> bytes:
    return bytes(reply_of(peer.answer(c.GET_TENSORS, r.TensorRanges(list(ranges)))).payload)


def test_many_reads_come_in_one_answer_end_to_end(peer):
    first, second = peer.alloc(NBYTES), peer.alloc(NBYTES)
    peer.say(c.SET_TENSOR, r.TensorRange(leaf(first), 0, NBYTES), payload=bytes(range(NBYTES)))
    peer.say(c.BUFFER_CLEAR, r.BufferClear(second, 7))
    ranges = [[leaf(second), 0, 2], [leaf(first), 3, 4], [leaf(first), 5, 0], [leaf(second), 8, 1]]
    assert read_many(peer, *ranges) == bytes([7, 7, 3, 4, 5, 6, 7])
    assert read_many(peer) == b""


@pytest.mark.parametrize(
    ("entry", "text"),
    [
        (lambda record: [record, 0, NBYTES + 1], "outside"),
        (lambda record: [record, -1, 1], "outside"),
        (lambda record: [record, 0], "list of tensor, offset"),
        (lambda record: [record, 0, True], "list of tensor, offset"),
        (lambda record: ["tensor", 0, 1], "list of tensor, offset"),
        (lambda record: [leaf(999), 0, 1], "never allocated"),
    ],
)
def test_one_bad_read_among_many_is_refused(peer, entry, text):
    record = leaf(peer.alloc(NBYTES))
    with pytest.raises((errors.GraphError, errors.HandleError), match=text):
        read_many(peer, [record, 0, 4], entry(record))


def test_many_reads_above_the_payload_limit_are_refused(devices):
    peer = Peer(InlineWorker(devices, WorkerConfig((), max_payload_nbytes=128)))
    record = leaf(peer.alloc(NBYTES))
    assert len(read_many(peer, *[[record, 0, NBYTES]] * 2)) == 128
    with pytest.raises(errors.LimitError, match="129 bytes are above the 128"):
        read_many(peer, *[[record, 0, NBYTES]] * 2, [record, 0, 1])


def test_many_reads_need_the_minor_that_has_them(worker):
    peer = Peer(worker, minor=1)
    peer.conversation.agree(2)
    with pytest.raises(errors.SessionError, match="GET_TENSORS needs protocol minor 2"):
        read_many(peer)


def test_a_payload_of_another_size_than_announced(peer):
    handle = peer.alloc(NBYTES)
    peer.say(c.SET_TENSOR, r.TensorRange(leaf(handle), 0, 8), payload=b"1234")
    with pytest.raises(errors.GraphError, match="8 bytes are announced and 4 came"):
        peer.ask(c.SYNCHRONIZE, r.Empty())


def test_content_by_hash_is_declined(peer):
    handle = peer.alloc(NBYTES)
    assert not peer.ask(c.SET_TENSOR_HASH, r.TensorHash(leaf(handle), 0, 4, bytes(16))).result


# Graphs


def compute(peer: Peer, record: r.Record) -> None:
    peer.say(c.GRAPH_COMPUTE, r.GraphCompute(0, record))
    peer.ask(c.SYNCHRONIZE, r.Empty())


def again(peer: Peer, record: r.Record) -> bool:
    return peer.ask(c.GRAPH_RECOMPUTE, r.GraphRecompute(0, graph_digest(record))).result


def test_a_graph_is_compiled_once_and_run_as_often_as_asked(devices, peer):
    record = doubling(peer.alloc(2 * NBYTES))
    assert not again(peer, record)
    compute(peer, record)
    compute(peer, record)
    assert again(peer, record)
    assert [plan.n_runs for plan in devices[0].plans] == [3]


def test_a_graph_over_a_freed_buffer_is_stale(devices, peer):
    handle = peer.alloc(2 * NBYTES)
    record = doubling(handle)
    compute(peer, record)
    peer.say(c.FREE_BUFFER, r.BufferRef(handle))
    peer.alloc(2 * NBYTES)
    assert not again(peer, record)
    assert devices[0].plans[0].n_runs == 1
    assert devices[0].plans[0].closed
    with pytest.raises(errors.HandleError, match="was freed"):
        compute(peer, record)


def test_sessions_do_not_share_graphs(worker, peer):
    record = doubling(peer.alloc(2 * NBYTES))
    compute(peer, record)
    assert not again(Peer(worker), record)


def test_only_the_last_graphs_are_kept(devices):
    peer = Peer(InlineWorker(devices, WorkerConfig((), graphs_per_stream=2)))
    records = [doubling(peer.alloc(2 * NBYTES), name) for name in "abc"]
    for record in records:
        compute(peer, record)
    assert [again(peer, record) for record in records] == [False, True, True]


def test_an_operation_that_the_device_lacks_is_named():
    peer = Peer(InlineWorker([NullDevice("zero", refused_ops=["ADD"])]))
    with pytest.raises(errors.UnsupportedOpError, match="device zero does not run") as caught:
        compute(peer, doubling(peer.alloc(2 * NBYTES)))
    assert caught.value.context.op == "ADD"
    assert caught.value.context.device == "zero"


def test_a_graph_that_breaks_a_rule_is_refused(devices, peer):
    record = doubling(peer.alloc(2 * NBYTES))
    record[0][1][1] = [8, 1, 1, 1]
    with pytest.raises(errors.GraphError, match="ADD"):
        compute(peer, record)
    assert devices[0].plans == []


# Errors of streams


def test_an_error_without_an_answer_is_pushed_kept_and_told_once():
    device = FailingDevice(NullDevice("zero"), {3})
    peer = Peer(InlineWorker([device]))
    record = doubling(peer.alloc(2 * NBYTES))
    for _ in range(3):
        peer.say(c.GRAPH_COMPUTE, r.GraphCompute(0, record))
    assert [notice.code for notice in peer.notices()] == [c.GRAPH_COMPUTE.code]
    peer.say(c.GRAPH_COMPUTE, r.GraphCompute(0, record))
    assert device.n_runs == 3
    with pytest.raises(errors.ComputeError, match="graph 3 fails") as caught:
        peer.ask(c.SYNCHRONIZE, r.Empty())
    context = caught.value.context
    assert (context.worker, context.device) == ("memory://listener", "zero")
    assert (context.command, context.op) == ("GRAPH_COMPUTE", "MUL_MAT")
    assert "Traceback" in context.traceback
    compute(peer, record)
    assert device.n_runs == 4


def test_an_error_of_a_replay_comes_after_its_answer():
    device = FailingDevice(NullDevice("zero"), {2})
    peer = Peer(InlineWorker([device]))
    record = doubling(peer.alloc(2 * NBYTES))
    compute(peer, record)
    assert again(peer, record)
    with pytest.raises(errors.ComputeError, match="graph 2 fails"):
        peer.ask(c.SYNCHRONIZE, r.Empty())
    assert again(peer, record)


def test_a_foreign_exception_of_a_graph_is_a_compute_error():
    device = FailingDevice(NullDevice("zero"), {1}, error=lambda number: ZeroDivisionError(f"run {number}"))
    peer = Peer(InlineWorker([device]))
    with pytest.raises(errors.ComputeError, match="ZeroDivisionError: run 1"):
        compute(peer, doubling(peer.alloc(2 * NBYTES)))


def test_buffers_can_be_freed_and_allocated_on_a_failed_stream(devices, peer):
    handle = peer.alloc(100)
    peer.say(c.BUFFER_CLEAR, r.BufferClear(999, 0))
    peer.say(c.FREE_BUFFER, r.BufferRef(handle))
    assert devices[0].used_nbytes == 0
    peer.alloc(50)
    with pytest.raises(errors.HandleError, match="999"):
        peer.ask(c.SYNCHRONIZE, r.Empty())


def test_streams_fail_apart(peer):
    handle = peer.alloc(NBYTES, 1)
    peer.say(c.BUFFER_CLEAR, r.BufferClear(999, 0), stream=0)
    peer.say(c.BUFFER_CLEAR, r.BufferClear(handle, 3), stream=1)
    assert peer.read(handle, stream=1) == b"\3" * NBYTES
    with pytest.raises(errors.HandleError):
        peer.ask(c.SYNCHRONIZE, r.Empty(), stream=0)


def test_a_command_with_a_wrong_body_fails_its_stream(peer):
    _, frames = peer.conversation.request(c.BUFFER_CLEAR, r.BufferClear(1, 0))
    peer.channel.send([bytes(frames[0]).replace(bytes([0x92, 1, 0]), bytes([0x92, 1, 0xC0]))])
    with pytest.raises(errors.RemoteProtocolError, match=r"BufferClear\.value"):
        peer.ask(c.SYNCHRONIZE, r.Empty())


# Flow


def test_a_session_that_queues_too_much_is_closed(devices):
    worker = InlineWorker(devices, WorkerConfig((), max_queued_nbytes=4096))
    peer, other = Peer(worker), Peer(worker)
    handle = peer.alloc(2048)
    worker.lanes[0].held = True
    peer.say(c.SYNCHRONIZE, r.Empty())
    for _ in range(3):
        peer.say(c.SET_TENSOR, r.TensorRange(leaf(handle, 2048), 0, 2048), payload=bytes(2048))
    assert isinstance(peer.notices()[0].error, errors.LimitError)
    assert isinstance(peer.answers()[-1], ErrorEvent)
    worker.lanes[0].release()
    assert devices[0].used_nbytes == 0
    with pytest.raises(errors.SessionError, match="bytes waiting"):
        peer.ask(c.PING, r.Empty())
    other.ask(c.PING, r.Empty())


def test_open_requests_of_a_closed_session_are_answered(devices):
    worker = InlineWorker(devices)
    peer = Peer(worker)
    worker.lanes[0].held = True
    peer.say(c.SYNCHRONIZE, r.Empty())
    peer.say(c.GOODBYE, r.Empty())
    assert isinstance(peer.events[-1], ErrorEvent)
    assert isinstance(peer.events[-1].error, errors.SessionError)


def test_sessions_take_turns_on_a_device(worker):
    peers = [Peer(worker), Peer(worker)]
    order: list[int] = []
    worker.lanes[0].held = True
    for number, peer in enumerate(peers):
        for _ in range(2):
            peer.say(c.SYNCHRONIZE, r.Empty())
        peer.channel.on_message = lambda frames, number=number: order.append(number)
    worker.lanes[0].release()
    assert order == [0, 1, 0, 1]


def test_an_unknown_command_is_answered(worker, peer):
    frames = [bytes([0x96, 0, 99, peer.conversation._next_out, 0, 0x90, 0x90])]
    peer.channel.send(frames)
    peer.conversation._next_out += 1
    assert len(worker.network.sent.to_client) == 2
    assert b"no command with code 99" in worker.network.sent.to_client[-1][0]


# Configuration


def test_what_does_not_fit_is_refused_at_the_start(devices):
    for config, text in (
        (WorkerConfig((), {0: 10_001}), "does not fit device zero"),
        (WorkerConfig((), {2: 1}), "a memory cap for device 2"),
    ):
        with pytest.raises(errors.ConfigError, match=text):
            InlineWorker(devices, config)
    with pytest.raises(errors.ConfigError, match="at least one device"):
        InlineWorker([])
    with pytest.raises(errors.ConfigError, match="two devices are named zero"):
        InlineWorker([NullDevice("zero"), NullDevice("zero")])
    with pytest.raises(errors.SettingError, match="minor 9"):
        InlineWorker(devices, WorkerConfig((), proto_minor=9))
