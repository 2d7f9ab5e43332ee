"""Messages over real sockets: whole, in order, none lost, nobody blocked by another."""

import queue
import socket
import threading
import time
from collections import Counter

import pytest

from rpc_backend.errors import WorkerLostError
from rpc_backend.fabric import FabricOptions, connect, listen
from rpc_backend.protocol import parse_endpoint
from rpc_backend.registry import load_registry

WAIT_S = 20
MIB = 1 << 20


class Inbox:
    """Collects what callbacks bring, as bytes, and waits for it."""

    def __init__(self):
        self.items, self.changed = [], threading.Condition()

    def put(self, *item):
        with self.changed:
            self.items.append(item)
            self.changed.notify_all()

    def message(self, frames):
        self.put(*map(bytes, frames))

    def wait(self, n=1, timeout_s=WAIT_S):
        with self.changed:
            assert self.changed.wait_for(lambda: len(self.items) >= n, timeout_s), f"{len(self.items)} of {n} came"
            return list(self.items)


class Fabric:
    """A listener that echoes unless told otherwise, and its clients."""

    def __init__(self):
        self.transport_for = load_registry().transport_for
        self.lost, self.seen, self.ends = Inbox(), Inbox(), []
        self.handle = self.echo
        self.listener = None

    def echo(self, peer, frames):
        self.listener.send(peer, frames)

    def listen(self, text="127.0.0.1:0", **options):
        def on_message(peer, frames):
            self.seen.put(peer, frames)
            self.handle(peer, frames)

        self.listener = listen(
            [parse_endpoint(text, listen=True)], self.transport_for,
            on_message=on_message, on_peer_lost=self.lost.put, options=FabricOptions(**options),
        )  # fmt: skip
        self.ends.append(self.listener)
        return self.listener

    def connect(self, on_message=None, on_lost=None, text=None, **options):
        inbox = Inbox()
        endpoint = parse_endpoint(text) if text else self.listener.bound_endpoints[0]
        channel = connect(
            endpoint, self.transport_for(endpoint.scheme), on_message=on_message or inbox.message,
            on_lost=on_lost or inbox.put, options=FabricOptions(**options),
        )  # fmt: skip
        self.ends.append(channel)
        return channel, inbox


@pytest.fixture
def fabric():
    made = Fabric()
    yield made
    for end in reversed(made.ends):
        end.abort()


def has_ipv6():
    try:
        with socket.socket(socket.AF_INET6) as probe:
            probe.bind(("::1", 0))
    except OSError:
        return False
    return True


@pytest.mark.parametrize(
    "text",
    [
        "127.0.0.1:0",
        "localhost:0",
        pytest.param("[::1]:0", marks=pytest.mark.skipif(not has_ipv6(), reason="this machine has no IPv6 loopback")),
        "*:0",
        "ipc",
        "ipc://@zmq-rpc-fabric-test",
    ],
)
def test_a_message_there_and_back(fabric, tmp_path, text):
    listener = fabric.listen(f"ipc://{tmp_path}/socket" if text == "ipc" else text)
    port = listener.bound_endpoints[0].port
    channel, inbox = fabric.connect(text=f"127.0.0.1:{port}" if text == "*:0" else None)
    payload = bytes(range(256)) * 4096
    channel.send([b"header", payload, b""])
    assert inbox.wait() == [(b"header", payload, b"")]
    assert "://" in listener.names[0]
    assert listener.names[0].endswith(str(port) if port else "")


def test_localhost_reaches_a_worker_on_either_loopback_address(fabric):
    port = fabric.listen("127.0.0.1:0").bound_endpoints[0].port
    channel, inbox = fabric.connect(text=f"localhost:{port}")
    channel.send([b"x"])
    assert inbox.wait() == [(b"x",)]


def test_received_views_outlive_later_messages(fabric):
    fabric.listen()
    channel, inbox = fabric.connect()
    for index in range(20):
        channel.send([b"h", bytes([index]) * 100_000])
    inbox.wait(20)
    for index, (_, frames) in enumerate(fabric.seen.items):
        assert frames[1] == bytes([index]) * 100_000


def test_messages_of_several_threads_keep_the_order_of_each(fabric):
    fabric.listen()
    channel, inbox = fabric.connect()

    def send(name):
        for index in range(500):
            channel.send([name, str(index).encode()])

    threads = [threading.Thread(target=send, args=(name,)) for name in (b"a", b"b", b"c")]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(WAIT_S)
    echoed = inbox.wait(1500)
    for name in (b"a", b"b", b"c"):
        assert [int(number) for who, number in echoed if who == name] == list(range(500))


def test_no_message_lies_unseen_while_other_threads_send(fabric):
    """Each send can take news off the descriptor that the I/O thread waits for: it must be woken then."""
    n_rounds, chains = 1500, (b"a", b"b", b"c")
    theirs, ours = queue.SimpleQueue(), queue.SimpleQueue()
    fabric.handle = lambda peer, frames: theirs.put((peer, bytes(frames[0])))
    fabric.listen(heartbeat_timeout_ms=120_000)
    channel, _ = fabric.connect(on_message=lambda frames: ours.put(bytes(frames[0])), heartbeat_timeout_ms=120_000)

    def answer():
        for _ in range(n_rounds * len(chains)):
            peer, message = theirs.get(timeout=WAIT_S)
            fabric.listener.send(peer, [message])

    answering = threading.Thread(target=answer, daemon=True)
    answering.start()
    counts = Counter()
    for chain in chains:
        channel.send([chain])
    while sum(counts.values()) < n_rounds * len(chains):
        chain = ours.get(timeout=WAIT_S)  # a message that nobody sees comes with the next heartbeat, too late
        counts[chain] += 1
        if counts[chain] < n_rounds:
            channel.send([chain])
    answering.join(WAIT_S)
    assert counts == dict.fromkeys(chains, n_rounds)


def test_memory_may_be_reused_once_the_ticket_is_done(fabric):
    fabric.handle = lambda peer, frames: None
    fabric.listen()
    channel, _ = fabric.connect()
    data = bytearray(48 * MIB)
    for value in (1, 2):
        data[-1] = value
        channel.send([b"h", data]).wait(WAIT_S)
        data[-1] = 99  # at once, and where the bytes leave last
    fabric.seen.wait(2)
    assert [frames[1][-1] for _, frames in fabric.seen.items] == [1, 2], "the ticket was done before the bytes had left"


def test_a_full_queue_drops_nothing(fabric):
    """Without ROUTER_MANDATORY, libzmq would silently drop what a slow reader has no room for."""
    may_read, got = threading.Event(), Inbox()

    def read_slowly(frames):
        may_read.wait(WAIT_S)
        got.message(frames)

    fabric.handle = lambda peer, frames: [fabric.listener.send(peer, [b"%d" % i, bytes(20_000)]) for i in range(3000)]
    fabric.listen()
    channel, _ = fabric.connect(on_message=read_slowly)
    channel.send([b"go"])
    fabric.seen.wait()
    time.sleep(0.3)
    may_read.set()
    assert [int(number) for number, _ in got.wait(3000)] == list(range(3000))


def test_a_client_that_does_not_read_blocks_nobody_and_is_cut(fabric):
    may_read = threading.Event()
    fabric.handle = lambda peer, frames: (
        [fabric.listener.send(peer, [bytes(MIB)]) for _ in range(200)] if frames[0] == b"flood" else
        fabric.listener.send(peer, frames)
    )  # fmt: skip
    fabric.listen(max_queued_nbytes=64 * MIB)
    lost = Inbox()
    slow, _ = fabric.connect(on_message=lambda frames: may_read.wait(WAIT_S) and None, on_lost=lost.put)
    quick, inbox = fabric.connect()
    slow.send([b"flood"])
    fabric.seen.wait()
    quick.send([b"hello"])
    assert inbox.wait(timeout_s=5) == [(b"hello",)]
    assert fabric.lost.wait() == [(fabric.seen.items[0][0],)]
    may_read.set()
    assert isinstance(lost.wait()[0][0], WorkerLostError)
    quick.send([b"still there"])
    assert inbox.wait(2)[1] == (b"still there",)


def test_a_slow_client_within_the_bound_gets_everything(fabric):
    fabric.handle = lambda peer, frames: [fabric.listener.send(peer, [b"%d" % i, bytes(MIB)]) for i in range(60)]
    fabric.listen(max_in_flight_nbytes=2 * MIB)
    got = Inbox()
    channel, _ = fabric.connect(on_message=lambda frames: (time.sleep(0.002), got.put(int(bytes(frames[0])))))
    channel.send([b"go"])
    assert [number for (number,) in got.wait(60)] == list(range(60))


def test_an_exception_of_a_handler_closes_that_peer_only(fabric, caplog):
    fabric.handle = lambda peer, frames: 1 / 0 if frames[0] == b"bad" else fabric.listener.send(peer, frames)
    fabric.listen()
    bad, bad_inbox = fabric.connect()
    good, good_inbox = fabric.connect()
    good.send([b"first"])
    good_inbox.wait()
    bad.send([b"bad"])
    assert isinstance(bad_inbox.wait()[0][0], WorkerLostError)
    good.send([b"second"])
    assert good_inbox.wait(2) == [(b"first",), (b"second",)]
    assert len(fabric.lost.wait()) == 1
    assert "ZeroDivisionError" in caplog.text


def test_an_exception_of_the_client_s_handler_ends_the_channel_with_it(fabric):
    fabric.listen()
    lost = Inbox()
    channel, _ = fabric.connect(on_message=lambda frames: 1 / 0, on_lost=lost.put)
    channel.send([b"x"])
    assert isinstance(lost.wait()[0][0], ZeroDivisionError)
    with pytest.raises(WorkerLostError, match="division by zero"):
        channel.send([b"y"])


def test_closing_a_peer_with_grace_lets_the_last_message_through(fabric):
    def refuse(peer, frames):
        fabric.listener.send(peer, [b"the reason"])
        fabric.listener.close_peer(peer, grace_s=0.3)

    fabric.handle = refuse
    fabric.listen()
    channel, inbox = fabric.connect()
    channel.send([b"x"])
    inbox.wait()
    channel.send([b"ignored"])
    items = inbox.wait(2)
    assert items[0] == (b"the reason",)
    assert isinstance(items[1][0], WorkerLostError)
    assert len(fabric.lost.wait()) == 1
    assert len(fabric.seen.items) == 1
    assert not channel.is_open
    fabric.listener.close_peer(b"unknown")


def test_close_flushes_and_abort_does_not_wait(fabric):
    fabric.handle = lambda peer, frames: None
    fabric.listen()
    channel, inbox = fabric.connect()
    for index in range(40):
        channel.send([b"%d" % index, bytes(MIB)])
    channel.close(linger_s=WAIT_S)
    fabric.seen.wait(40)
    assert fabric.lost.wait()
    channel, _ = fabric.connect()
    for _ in range(40):
        channel.send([bytes(MIB)])
    start = time.monotonic()
    channel.abort()
    channel.abort()
    channel.close()
    assert time.monotonic() - start < 1.5
    with pytest.raises(WorkerLostError, match="closed"):
        channel.send([b"x"])
    assert inbox.items == [], "our own close is no loss"


def test_tickets_end_when_the_channel_does(fabric):
    fabric.handle = lambda peer, frames: time.sleep(0.05)
    fabric.listen()
    channel, _ = fabric.connect()
    tickets = [channel.send([bytes(8 * MIB)]) for _ in range(30)]
    assert channel.queued_nbytes >= 0
    channel.abort()
    for ticket in tickets:
        ticket.wait(WAIT_S)


def test_the_listener_flushes_on_close(fabric):
    fabric.handle = lambda peer, frames: [fabric.listener.send(peer, [bytes(MIB)]) for _ in range(30)]
    fabric.listen()
    channel, inbox = fabric.connect()
    channel.send([b"go"])
    fabric.seen.wait()
    fabric.listener.close(linger_s=WAIT_S)
    items = inbox.wait(31)
    assert [len(item[0]) for item in items[:30]] == [MIB] * 30
    assert isinstance(items[30][0], WorkerLostError)
    fabric.listener.send(b"peer", [bytes(MIB)]).wait(1)
    fabric.listener.close()
    fabric.listener.abort()


def test_both_ends_can_be_closed_from_their_own_callbacks(fabric):
    closed = Inbox()
    fabric.handle = lambda peer, frames: (fabric.listener.close(linger_s=0.5), closed.put("listener"))
    fabric.listen()
    channel, _ = fabric.connect(on_lost=lambda error: (channel.close(), closed.put("channel")))
    channel.send([b"x"])
    assert sorted(closed.wait(2)) == [("channel",), ("listener",)]
