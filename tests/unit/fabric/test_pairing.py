"""Headers and payloads of one connection come together again, in order, whatever comes first and however it is cut."""

import pytest

from rpc_backend.errors import ChannelError, LimitError, RemoteProtocolError
from rpc_backend.fabric import pairing as module
from rpc_backend.fabric.envelope import Envelope, Say
from rpc_backend.fabric.options import FabricOptions
from rpc_backend.fabric.pairing import Pairing
from rpc_backend.fabric.payload_memory import PayloadMemory
from rpc_backend.interfaces import Tally
from rpc_backend.testing.memory_links import MemoryLink

OPTIONS = FabricOptions(max_frame_nbytes=1 << 20, max_frames=3)


class Ends:
    """A pairing under test, the bare link of the other side, and what was delivered."""

    def __init__(self, room_nbytes=1 << 20):
        self.there, self.link = MemoryLink(room_nbytes), MemoryLink(room_nbytes)
        self.link.connect(self.there.offer)
        self.there.connect(self.link.offer)
        self.came, self.tally = [], Tally()
        self.pairing = Pairing(self.link, self.deliver, OPTIONS, PayloadMemory(), (self.tally,))
        self.pairing.open()

    def deliver(self, frames):
        self.came.append([bytes(frame) for frame in frames])

    def fabric(self, *frames):
        self.pairing.arrived([memoryview(frame) for frame in frames])

    def header(self, header, *sizes):
        self.fabric(Envelope(Say.PAYLOADS, sizes).encode(), header)

    def payload(self, data):
        assert self.there.send(memoryview(data)) == len(data)

    def advance(self):
        turns = 0
        while self.pairing.advance():
            turns += 1
            assert turns < 10_000
        return turns


@pytest.fixture
def ends():
    return Ends()


def test_a_message_without_envelope_passes_at_once(ends):
    ends.fabric(b"header", b"small")
    assert ends.came == [[b"header", b"small"]]


def test_bytes_before_their_header_and_after_it(ends):
    ends.payload(b"a" * 5000)
    ends.advance()
    assert ends.came == []
    ends.header(b"one", 5000)
    assert ends.came == []
    ends.advance()
    ends.header(b"two", 6000)
    ends.advance()
    ends.payload(b"b" * 6000)
    ends.advance()
    assert ends.came == [[b"one", b"a" * 5000], [b"two", b"b" * 6000]]


def test_what_comes_meanwhile_waits_its_turn(ends):
    ends.header(b"one", 5000)
    ends.fabric(b"two")
    ends.header(b"three", 4500)
    ends.fabric(b"four")
    ends.payload(b"a" * 4999)
    ends.advance()
    assert ends.came == []
    ends.payload(b"ab" + b"c" * 4498)
    ends.advance()
    assert [message[0] for message in ends.came] == [b"one", b"two"]
    ends.payload(b"c")
    ends.advance()
    assert [message[0] for message in ends.came] == [b"one", b"two", b"three", b"four"]
    assert ends.came[2][1] == b"b" + b"c" * 4499


def test_several_payloads_of_one_message_and_an_empty_one(ends):
    ends.header(b"head", 5000, 0)
    ends.payload(b"x" * 5000)
    ends.advance()
    assert ends.came == [[b"head", b"x" * 5000, b""]]


def test_a_receiver_may_answer_from_within_its_callback(ends):
    ends.deliver = lambda frames: ends.came.append(frames[0].tobytes())
    ends.pairing = Pairing(ends.link, ends.deliver, OPTIONS, PayloadMemory())
    ends.pairing.open()
    ends.header(b"one", 5000)
    ends.fabric(b"two")
    ends.payload(bytes(5000))
    ends.advance()
    assert ends.came == [b"one", b"two"]


def test_sending_takes_turns_with_the_room_there_is():
    ends = Ends(room_nbytes=1000)
    data = bytes(range(250)) * 20
    ends.pairing.begin([memoryview(data)])
    received = bytearray()
    while ends.pairing.is_sending:
        ends.pairing.advance()
        part = bytearray(700)
        received += part[: ends.there.receive_into(memoryview(part))]
    assert not ends.pairing.is_idle
    part = bytearray(5000)
    received += part[: ends.there.receive_into(memoryview(part))]
    assert received == data
    assert ends.pairing.is_idle


def test_only_large_payloads_go_beside_and_only_once_the_other_side_is_ready(ends):
    waiting = Pairing(ends.link, ends.deliver, OPTIONS, PayloadMemory())
    assert not waiting.carries([1 << 20])
    ends.link.is_probed = False
    waiting.open()
    assert not waiting.carries([1 << 20])
    waiting = Pairing(ends.link, ends.deliver, OPTIONS, PayloadMemory())
    waiting.arrived([memoryview(Envelope(Say.READY).encode())])
    assert ends.link.is_probed
    assert waiting.carries([module.BESIDE_FROM_NBYTES])
    assert waiting.carries([module.BESIDE_FROM_NBYTES - 1, 1])
    assert not waiting.carries([module.BESIDE_FROM_NBYTES - 1])
    assert not waiting.carries([])


def test_counts(ends):
    ends.pairing.begin([memoryview(bytes(5000))])
    ends.header(b"head", 7000)
    ends.payload(bytes(6999))
    ends.advance()
    assert ends.tally.snapshot().payloads_in == 0
    ends.payload(b"x")
    ends.advance()
    carried = ends.tally.snapshot()
    assert (carried.links, carried.nbytes_out, carried.payloads_in, carried.nbytes_in) == (1, 5000, 1, 7000)


def test_a_side_that_declines_is_told_apart(ends):
    waiting = Pairing(ends.link, ends.deliver, OPTIONS, PayloadMemory())
    waiting.arrived([memoryview(Envelope(Say.DECLINED).encode())])
    assert waiting.is_declined
    with pytest.raises(RemoteProtocolError, match="settled"):
        waiting.arrived([memoryview(Envelope(Say.READY).encode())])


def test_payloads_on_a_link_that_is_not_ready_are_refused(ends):
    waiting = Pairing(ends.link, ends.deliver, OPTIONS, PayloadMemory())
    with pytest.raises(RemoteProtocolError, match="not ready"):
        waiting.arrived([memoryview(Envelope(Say.PAYLOADS, (5000,)).encode()), memoryview(b"head")])


def test_sizes_are_checked_before_memory_is_made(ends):
    with pytest.raises(LimitError, match="above the limit"):
        ends.header(b"head", OPTIONS.max_frame_nbytes + 1)
    with pytest.raises(LimitError, match="frames"):
        ends.header(b"head", 1, 2, 3)
    with pytest.raises(RemoteProtocolError, match="settled"):
        ends.fabric(Envelope(Say.READY).encode())


def test_what_waits_is_bounded(ends, monkeypatch):
    monkeypatch.setattr(module, "MAX_HELD", 3)
    ends.header(b"head", 5000)
    ends.fabric(b"two")
    ends.fabric(b"three")
    with pytest.raises(RemoteProtocolError, match="does not come"):
        ends.fabric(b"four")


def test_a_broken_link_is_an_error_and_closing_lets_go(ends):
    ends.pairing.begin([memoryview(bytes(5000))])
    ends.link.broken = "RETRY_EXC_ERR"
    with pytest.raises(ChannelError, match="RETRY_EXC_ERR"):
        ends.pairing.advance()
    ends.pairing.close()
    assert ends.link.is_closed
    assert not ends.pairing.is_sending


def test_a_payload_that_stalls_while_the_fabric_lives_breaks_the_link(ends):
    now = [0.0]
    pairing = Pairing(ends.link, ends.deliver, OPTIONS, PayloadMemory(), clock=lambda: now[0])
    pairing.open()
    limit_s = module.STALLED_AFTER_TIMEOUTS * OPTIONS.heartbeat_timeout_ms / 1000
    now[0] = 10 * limit_s
    assert not pairing.advance()  # nothing is expected
    pairing.arrived([memoryview(Envelope(Say.PAYLOADS, (5000,)).encode()), memoryview(b"head")])
    assert pairing.is_waiting
    ends.payload(bytes(100))
    assert pairing.advance()
    now[0] += limit_s
    assert not pairing.advance()
    now[0] += 1
    with pytest.raises(ChannelError, match="nothing of a payload moved"):
        pairing.advance()


def test_an_exception_of_the_receiver_is_passed_on(ends):
    def refuse(frames):
        raise RemoteProtocolError("not now")

    pairing = Pairing(ends.link, refuse, OPTIONS, PayloadMemory())
    pairing.open()
    pairing.arrived([memoryview(Envelope(Say.PAYLOADS, (5000,)).encode()), memoryview(b"head")])
    ends.payload(bytes(5000))
    with pytest.raises(RemoteProtocolError, match="not now"):
        pairing.advance()
