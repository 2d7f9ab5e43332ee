"""The suite that every transport passes: what the layers above rely on, message by message.

Run it on a plugin with `python -m rpc_backend.testing.transport_suite NAME`, or from a test::

    for check in CHECKS.values():
        check(Way("mine", "tcp://127.0.0.1:0", "mine:key=value"))

Belongs here: the checks; each takes a `Way`, ends by itself and raises AssertionError. Must not be here: their two ends
(`transport_arena`), transports.
"""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor

import click
import numpy as np

from rpc_backend.errors import ChannelError, ConnectError, DeadlineError, WorkerLostError
from rpc_backend.interfaces import PayloadLink, PayloadTransport, PeerId
from rpc_backend.protocol import ClientConversation, Limits, WorkerConversation
from rpc_backend.protocol.commands import GET_TENSORS
from rpc_backend.protocol.records import Empty, TensorRanges
from rpc_backend.registry import load_registry
from rpc_backend.testing.transport_arena import MIB, WAIT_S, Client, Server, Way, wait_until
from rpc_backend.testing.transport_peer import GIFT, GIVE, PeerProcess

Check = Callable[[Way], None]

KIB = 1024
SIZES = (0, 1, 4 * KIB - 1, 4 * KIB, 256 * KIB - 1, 256 * KIB, 256 * KIB + 1, 3 * MIB + 7, 64 * MIB)
_LOST_WITHIN_S = 20.0


def inline_ways(folder: str) -> list[Way]:
    """Return the ways without a payload transport; sockets of `ipc` lie in `folder`."""
    return [Way("tcp", "tcp://127.0.0.1:0"), Way("ipc", f"ipc://{folder}/suite")]


def sizes(way: Way) -> None:
    """Payloads of every size come back as they were, in memory of their own, over the link if the way has one."""
    with Server(way) as server, Client(server.endpoint, way.transport) as client:
        if _has_link(way):
            _wait_for_link(client)
        before = client.channel.carrier.carried
        for nbytes in SIZES:
            sent = _bytes(nbytes, nbytes)
            head, *came = client.ask(b"sized", sent)
            assert (head, came) == (b"sized", [sent]), f"a payload of {nbytes} bytes came back changed"
        assert client.ask(b"alone") == [b"alone"]
        carried = client.channel.carrier.carried
        found = (carried.nbytes_out - before.nbytes_out, carried.nbytes_in - before.nbytes_in)
        beside = sum(nbytes for nbytes in SIZES if nbytes >= 4 * KIB) if _has_link(way) else 0
        assert found == (beside, beside), f"beside the fabric went {carried}, and {before} of that beforehand"


def order(way: Way) -> None:
    """Messages of all sizes, mixed and many at once, keep their order in both directions."""
    n, rng = 400, random.Random(1)
    lengths = [rng.choice((0, 100, 5000, 100_000, 300_000)) for _ in range(n)]
    with Server(way) as server, Client(server.endpoint, way.transport) as client:
        for number, length in enumerate(lengths):
            client.send(b"%d" % number, _bytes(length, number))
        came = client.came.wait(n)
    heads = [message[0] for message in came if isinstance(message, list)]
    assert heads == [b"%d" % number for number in range(n)], "messages changed places"
    wrong = [i for i, message in enumerate(came) if message != [b"%d" % i, _bytes(lengths[i], i)]]
    assert not wrong, f"payloads of messages {wrong[:5]} changed"


def both_directions_full(way: Way) -> None:
    """Both sides send far more than is under way at once, before either has received anything."""
    n, nbytes = 24, 4 * MIB
    came, peers = threading.Semaphore(0), list[PeerId]()

    def handle(server: Server, peer: PeerId, frames: list[memoryview]) -> None:
        if len(frames) == 1:
            peers.append(peer)
            for _ in range(n):
                server.listener.send(peer, [b"down", bytes(nbytes)])
        else:
            assert frames[1].nbytes == nbytes
            came.release()

    with Server(way, handle) as server, Client(server.endpoint, way.transport) as client:
        payload = bytes(nbytes)
        client.send(b"go")
        for _ in range(n):
            client.send(b"up", payload)
        down = client.came.wait(n)
        assert all(message == [b"down", payload] for message in down)
        for i in range(n):
            assert came.acquire(timeout=WAIT_S), f"{i} of {n} messages came up"


def one_send_one_receive(way: Way) -> None:
    """A reply scattered over several sends, one for each entry, is refused at once; gathered into one it is taken."""
    entries = [_bytes(64 * KIB, i) for i in range(3)]

    def handle(server: Server, peer: PeerId, frames: list[memoryview]) -> None:
        worker = WorkerConversation(Limits())
        worker.agree(GET_TENSORS.since)
        event = worker.receive(frames[1:])
        reply = worker.reply(event.sequence, Empty(), b"".join(entries))
        if bytes(frames[0]) == b"gathered":
            server.listener.send(peer, reply)
            return
        server.listener.send(peer, reply[:1])
        for entry in entries:
            server.listener.send(peer, [entry])

    with Server(way, handle) as server:
        for how in (b"gathered", b"scattered"):
            with Client(server.endpoint, way.transport) as client:
                conversation = ClientConversation(Limits())
                conversation.agree(GET_TENSORS.since)
                events = client.came
                client.on_message = lambda frames, talk=conversation, events=events: events.put(talk.receive(frames))
                request = conversation.request(GET_TENSORS, TensorRanges([]))[1]
                client.send(how, *request)
                if how == b"gathered":
                    (event,) = events.wait()
                    assert getattr(event, "payload", None) == b"".join(entries)
                else:
                    (error,) = client.lost.wait(timeout_s=_LOST_WITHIN_S)
                    assert "sent and received whole" in str(error)
                    assert not events.items


def memory_of_a_sent_message(way: Way) -> None:
    """Once its ticket is done, the memory of a message may change, and the receiver has the bytes of before."""
    with Server(way) as server, Client(server.endpoint, way.transport) as client:
        memory = np.zeros(8 * MIB, np.uint8)
        for value in range(1, 6):
            memory[:] = value
            client.send(b"turn", memory.data).wait(WAIT_S)
            memory[:] = 255
        for value, message in enumerate(client.came.wait(5), 1):
            assert message == [b"turn", bytes([value]) * (8 * MIB)], "its bytes changed"


def many_clients(way: Way) -> None:
    """Clients side by side each get their own messages, and the end of one is no matter for the others."""
    with Server(way) as server:

        def talk(number: int) -> bool:
            with Client(server.endpoint, way.transport) as client:
                return all(
                    client.ask(b"%d" % number, payload) == [b"%d" % number, payload]
                    for payload in (_bytes(700 * KIB + number, number + turn) for turn in range(6))
                )

        with ThreadPoolExecutor(6) as pool:
            assert all(pool.map(talk, range(12)))
        server.lost.wait(12, _LOST_WITHIN_S)


def close_sends_what_is_queued(way: Way) -> None:
    """Closing lets what was queued arrive; sending later is an error."""
    n, came = 10, threading.Semaphore(0)
    with Server(way, lambda *_: came.release()) as server:
        client = Client(server.endpoint, way.transport)
        for _ in range(n):
            client.send(b"last words", bytes(MIB))
        client.channel.close(linger_s=WAIT_S)
        for i in range(n):
            assert came.acquire(timeout=_LOST_WITHIN_S), f"{i} of {n} messages arrived"
        _assert_closed(client)


def server_close_sends_what_is_queued(way: Way) -> None:
    """The same of a listener, which then lets its clients know that it is gone."""

    def handle(server: Server, peer: PeerId, frames: list[memoryview]) -> None:
        for _ in range(10):
            server.listener.send(peer, [b"last words", bytes(MIB)])
        may_close.set()

    may_close = threading.Event()
    with Server(way, handle) as server, Client(server.endpoint, way.transport) as client:
        client.send(b"speak")
        assert may_close.wait(WAIT_S)
        server.listener.close(linger_s=WAIT_S)
        client.came.wait(10)
        client.lost.wait(timeout_s=_LOST_WITHIN_S)


def abort_while_sending(way: Way) -> None:
    """Aborting in the middle of a message ends at once, without an error, and lets go of its memory."""
    with Server(way) as server:
        client = Client(server.endpoint, way.transport)
        tickets = [client.send(b"long", bytes(32 * MIB)) for _ in range(4)]
        client.channel.abort()
        for ticket in tickets:
            ticket.wait(WAIT_S)
        client.channel.abort()
        _assert_closed(client)
        server.lost.wait(timeout_s=_LOST_WITHIN_S)
        with Client(server.endpoint, way.transport) as other:
            assert other.ask(b"still there", bytes(MIB)) == [b"still there", bytes(MIB)]


def death_of_the_server(way: Way) -> None:
    """A server that is killed in the middle of a message to a client is noticed there; nothing of the message comes."""
    with PeerProcess("serve", way.listen, way.transport) as process, Client(process.endpoint, way.transport) as client:
        client.ask(GIVE + b"%d" % MIB)
        asked = GIVE + b"%d" % (60 * MIB)
        for _ in range(4):
            client.send(asked)
        process.kill()
        (error,) = client.lost.wait(timeout_s=_LOST_WITHIN_S)
        assert isinstance(error, ChannelError)
        for message in client.came.items[1:]:
            assert message == [asked, GIFT[: 60 * MIB]], "a part of a message came"
        _assert_closed(client)


def death_of_a_client(way: Way) -> None:
    """A client that is killed in the middle of a message is noticed; only whole messages came, others are served."""
    came = threading.Semaphore(0)
    odd: list[int] = []

    def handle(server: Server, peer: PeerId, frames: list[memoryview]) -> None:
        if len(frames) > 1 and frames[1].nbytes != 8 * MIB:
            odd.append(frames[1].nbytes)
        came.release()
        server.listener.send(peer, frames[:1])

    with Server(way, handle) as server, PeerProcess("flood", server.endpoint, way.transport) as process:
        for _ in range(3):
            assert came.acquire(timeout=WAIT_S)
        process.kill()
        server.lost.wait(timeout_s=_LOST_WITHIN_S)
        assert not odd, f"parts of a message came: {odd}"
        with Client(server.endpoint, way.transport) as client:
            assert client.ask(b"still there") == [b"still there"]


def registration_failure(way: Way) -> None:
    """Where one side cannot have a link, or cannot connect it, messages travel inside the fabric."""
    if not _has_link(way):
        return
    good = load_registry().payload_transports(way.transport)
    refusing, dangling, cut_off = _Refusing(good[0]), _Dangling(good[0]), _CutOff(good[0])
    for here, there in (([refusing], good), (good, [refusing]), ([dangling], good), ([cut_off], good)):
        _talk_inside(way, client_has=here, server_has=there)
    _talk_inside(way, client_has=good, server_has=[])
    _talk_inside(way, client_has=[], server_has=good)


CHECKS: dict[str, Check] = {
    check.__name__: check
    for check in (
        sizes, order, both_directions_full, one_send_one_receive, memory_of_a_sent_message, many_clients,
        close_sends_what_is_queued, server_close_sends_what_is_queued, abort_while_sending, death_of_the_server,
        death_of_a_client, registration_failure,
    )
}  # fmt: skip


class _Refusing(PayloadTransport):
    """A transport whose memory cannot be registered."""

    def __init__(self, inner: PayloadTransport) -> None:
        super().__init__()
        self.name = inner.name
        self.inner = inner

    def open_link(self) -> PayloadLink:
        raise ConnectError("locking memory was refused")


class _Dangling(_Refusing):
    """A transport whose links cannot be connected."""

    def open_link(self) -> PayloadLink:
        link = self.inner.open_link()

        def refuse(offer: bytes) -> None:
            raise ConnectError("the other side cannot be reached")

        link.connect = refuse  # pyright: ignore[reportAttributeAccessIssue]
        return link


class _CutOff(_Refusing):
    """A transport whose links connect, and reach nobody."""

    def open_link(self) -> PayloadLink:
        link = self.inner.open_link()

        def fail() -> None:
            raise ChannelError("the other side does not answer")

        link.advance = fail  # pyright: ignore[reportAttributeAccessIssue]
        return link


def _talk_inside(
    way: Way, client_has: Sequence[PayloadTransport], server_has: Sequence[PayloadTransport]
) -> None:  # fmt: skip
    with Server(way, payloads=server_has) as server, Client(server.endpoint, payloads=client_has) as client:
        for nbytes in (0, 5000, 3 * MIB):
            assert client.ask(b"inside", bytes(nbytes)) == [b"inside", bytes(nbytes)]
        assert client.channel.carrier.name == ""
        assert client.channel.carrier.carried.payloads_out == 0


def _has_link(way: Way) -> bool:
    return bool(load_registry().payload_transports(way.transport))


def _wait_for_link(client: Client) -> None:
    """Return when payloads go over the link in both directions; until then either side may send them inside."""

    def is_up() -> bool:
        client.ask(b"up?", bytes(4 * KIB))
        carried = client.channel.carrier.carried
        return bool(carried.payloads_out and carried.payloads_in)

    wait_until(is_up, "no payload goes beside the fabric")


def _bytes(nbytes: int, seed: int) -> bytes:
    return np.random.default_rng(seed).integers(0, 256, nbytes, np.uint8).tobytes()


def _assert_closed(client: Client) -> None:
    wait_until(lambda: not client.channel.is_open, "the channel is still open")
    try:
        client.send(b"too late")
    except WorkerLostError:
        return
    raise AssertionError("a channel that is gone took a message")


@click.command()
@click.argument("transport")
@click.option("--listen", default="tcp://127.0.0.1:0")
def main(transport: str, listen: str) -> None:
    """Run every check on a transport, as --transport names it."""
    failed = 0
    for name, check in CHECKS.items():
        try:
            check(Way(transport, listen, transport))
        except (AssertionError, ChannelError, DeadlineError) as error:
            failed += 1
            click.echo(f"failed  {name}: {error}")
        else:
            click.echo(f"passed  {name}")
    raise SystemExit(min(failed, 1))


if __name__ == "__main__":
    main()
