"""A link over a fake of the verbs seam: what it posts, when, and what it makes of completions."""

import errno
import os
from types import SimpleNamespace

import pytest

from rpc_backend.plugin_api import ChannelError, ConnectError
from rpc_transport_rdma.device import Adapter
from rpc_transport_rdma.link import RdmaLink
from rpc_transport_rdma.slots import CHUNK_NBYTES, RECEIVE_SLOTS
from rpc_transport_rdma.verbs import MTU, SendFlags, WCFlags, WCStatus, WROpcode
from rpc_transport_rdma.window import CREDIT_PLACES, RETURN_AFTER

PLACES = RECEIVE_SLOTS - CREDIT_PLACES
SENDS = 8
CREDIT = 1 << 32


class VerbsError(OSError):
    pass


class Queue:
    def __init__(self, world, cqe):
        self.world, self.cqe, self.entries, self.n_armed, self.n_acked = world, cqe, [], 0, 0

    def poll(self, n):
        taken, self.entries = self.entries[:n], self.entries[n:]
        return taken

    def req_notify(self):
        self.n_armed += 1
        self.world.on_armed()

    def ack_events(self, n):
        self.n_acked += n

    def close(self):
        self.world.closed.append("queue")


class World:
    """The fake provider, device and queue pair of one link. `limit_nbytes` is the memory that may be registered."""

    VerbsError = VerbsError
    QPInitAttr = SimpleNamespace
    SGE = staticmethod(lambda region, nbytes, offset=0: SimpleNamespace(region=region, nbytes=nbytes, offset=offset))
    SendWR = SimpleNamespace
    RecvWR = SimpleNamespace

    class QPInfo(SimpleNamespace):
        @classmethod
        def from_bytes(cls, data):
            if data != b"address":
                raise ValueError("not an address")
            return cls(mtu=MTU.MTU_1024)

    def __init__(self, limit_nbytes=1 << 40):
        self.limit_nbytes, self.locked_nbytes = limit_nbytes, 0
        self.closed, self.sent, self.posted, self.calls = [], [], [], []
        self.fail_with, self.on_armed = None, lambda: None
        self.reader, self.writer = os.pipe()
        self.qp_num = 5

    def adapter(self):
        attr = SimpleNamespace(active_mtu=MTU.MTU_4096)
        return Adapter(self, "fake0", self, self, 1, attr, 3, SimpleNamespace(raw=bytes(16)))

    # provider and context
    def local_qp_info(self, qp, attr, gid, *, port, psn):
        self.psn = psn
        return SimpleNamespace(to_bytes=lambda: b"address")

    def create_comp_channel(self):
        world = self

        def get_cq_event():
            os.read(world.reader, 1)
            return world.queues[0]

        return SimpleNamespace(fd=self.reader, get_cq_event=get_cq_event, close=lambda: world.closed.append("channel"))

    def create_cq(self, cqe, channel):
        assert channel.fd == self.reader
        self.queues = [*getattr(self, "queues", []), Queue(self, cqe)]
        return self.queues[-1]

    # domain
    def reg_mr(self, address, nbytes, access):
        if self.locked_nbytes + nbytes > self.limit_nbytes:
            raise VerbsError(errno.ENOMEM, "refused")
        self.locked_nbytes += nbytes

        def close():
            self.locked_nbytes -= nbytes
            self.closed.append("region")

        return SimpleNamespace(nbytes=nbytes, close=close)

    def create_qp(self, attributes):
        self.attributes = attributes
        return self

    # queue pair
    def to_init(self, port, access):
        self.calls.append(("init", port))

    def to_rtr(self, peer, *, sgid_index, mtu, min_rnr_timer):
        self.calls.append(("rtr", sgid_index, mtu))

    def to_rts(self, psn, *, timeout, retry_cnt, rnr_retry):
        self.calls.append(("rts", psn, rnr_retry))

    def post_send(self, request):
        if self.fail_with:
            raise self.fail_with
        assert request.opcode == WROpcode.SEND_WITH_IMM
        assert request.send_flags == SendFlags.SIGNALED
        self.sent.append(request)

    def post_recv(self, requests):
        self.posted += [request.wr_id for request in requests]

    def close(self):
        self.closed.append("pair")

    # what the device does
    @property
    def data_sends(self):
        return [request for request in self.sent if request.sg_list]

    @property
    def credits(self):
        return [request.imm_data for request in self.sent if not request.sg_list]

    def complete(self, number, status=WCStatus.SUCCESS):
        self.queues[0].entries.append(SimpleNamespace(wr_id=number, status=status))

    def bring(self, link, data, consumed=0, flags=WCFlags.WITH_IMM):
        slot = self.posted.pop(0)
        link._receives.bytes_of(slot)[: len(data)] = list(data) if len(data) < 100 else 7
        self.queues[1].entries.append(
            SimpleNamespace(wr_id=slot, status=WCStatus.SUCCESS, byte_len=len(data), imm_data=consumed, wc_flags=flags)
        )


@pytest.fixture
def world():
    return World()


@pytest.fixture
def link(world):
    made = RdmaLink(world.adapter())
    made.connect(made.offer)
    yield made
    made.close()
    os.close(world.reader)
    os.close(world.writer)


def read(link, nbytes):
    target = bytearray(nbytes)
    return bytes(target[: link.receive_into(memoryview(target))])


def test_all_receives_are_posted_before_the_other_side_is_told_anything(world):
    RdmaLink(world.adapter())
    assert world.posted == list(range(RECEIVE_SLOTS))
    assert world.calls == [("init", 1)]
    assert (world.attributes.max_send_wr, world.attributes.max_recv_wr) == (SENDS + CREDIT_PLACES, RECEIVE_SLOTS)
    assert [queue.cqe for queue in world.queues] == [SENDS + CREDIT_PLACES, RECEIVE_SLOTS]


def test_connecting_uses_the_smaller_mtu_the_chosen_gid_and_waits_without_end_for_receives(world, link):
    assert world.calls[1:] == [("rtr", 3, MTU.MTU_1024), ("rts", world.psn, 7)]
    assert 0 <= world.psn < 1 << 24


def test_first_numbers_differ_between_links(world):
    assert len({RdmaLink(world.adapter())._first_number for _ in range(4)}) > 1


@pytest.mark.parametrize("offer", [b"", b"\2" + bytes(40), b"\1" + bytes(8) + b"address"])
def test_offers_of_other_kinds_are_refused(world, offer):
    with pytest.raises(ConnectError, match="rdma"):
        RdmaLink(world.adapter()).connect(offer)


def test_an_address_that_the_provider_cannot_read_is_refused(world):
    made = RdmaLink(world.adapter())
    with pytest.raises(ConnectError, match="not an address"):
        made.connect(made.offer.replace(b"address", b"nowhere"))


def test_a_payload_is_cut_into_chunks_and_only_so_many_are_under_way(world, link):
    data = memoryview(bytes(10 * CHUNK_NBYTES))
    assert link.send(data) == SENDS * CHUNK_NBYTES
    assert [request.sg_list[0].nbytes for request in world.sent] == [CHUNK_NBYTES] * SENDS
    assert len({request.sg_list[0].offset for request in world.sent}) == SENDS
    assert link.send(data) == 0
    assert not link.is_idle
    world.complete(world.sent[0].wr_id)
    link.advance()
    assert link.send(data[:100]) == 100
    assert world.sent[-1].wr_id == world.sent[0].wr_id


@pytest.mark.parametrize("nbytes", [1, CHUNK_NBYTES - 1, CHUNK_NBYTES, CHUNK_NBYTES + 1])
def test_sizes_around_a_chunk(world, link, nbytes):
    assert link.send(memoryview(bytes(nbytes))) == nbytes
    assert [request.sg_list[0].nbytes for request in world.sent] == [
        part for part in (min(nbytes, CHUNK_NBYTES), nbytes - CHUNK_NBYTES) if part > 0
    ]


def test_a_sender_never_outruns_the_ring_of_the_other_side(world, link):
    sent = 0
    for _ in range(100):
        if not link.send(memoryview(bytes(10))):
            break
        sent += 1
        world.complete(world.sent[-1].wr_id)
        link.advance()
    assert sent == PLACES
    world.bring(link, b"", consumed=3)
    link.advance()
    for _ in range(3):
        assert link.send(memoryview(bytes(10))) == 10
        world.complete(world.sent[-1].wr_id)
        link.advance()
    assert link.send(memoryview(bytes(10))) == 0


def test_a_completion_is_consumed_across_as_many_reads_as_it_takes(world, link):
    world.bring(link, b"abcdefgh")
    world.bring(link, b"ij")
    link.advance()
    assert [read(link, n) for n in (1, 3, 0, 5, 4)] == [b"a", b"bcd", b"", b"efghi", b"j"]


def test_a_place_is_free_again_only_when_all_of_it_was_read(world, link):
    world.posted.clear()
    world.posted.append(9)
    world.bring(link, b"abcd")
    link.advance()
    read(link, 3)
    assert world.posted == []
    read(link, 3)
    assert world.posted == [9]


def test_credits_go_back_beside_chunks_or_alone_after_some(world, link):
    for number in range(RETURN_AFTER - 1):
        world.bring(link, b"x")
        link.advance()
        read(link, 1)
        assert world.sent == [], number
    link.send(memoryview(b"y"))
    assert world.sent[-1].imm_data == RETURN_AFTER - 1
    for _ in range(RETURN_AFTER):
        world.bring(link, b"x")
    link.advance()
    read(link, 100)
    assert world.credits == [2 * RETURN_AFTER - 1]
    assert world.sent[-1].wr_id == CREDIT


def test_no_more_bare_credits_are_under_way_than_the_other_side_has_places_for(world, link):
    for _ in range(2 * CREDIT_PLACES):
        for _ in range(RETURN_AFTER):
            world.bring(link, b"x")
        link.advance()
        read(link, RETURN_AFTER)
    assert len(world.credits) == CREDIT_PLACES
    world.complete(CREDIT)
    link.advance()
    assert world.credits[-1] == 2 * CREDIT_PLACES * RETURN_AFTER


def test_a_bare_credit_takes_a_place_and_gives_it_back_at_once(world, link):
    slot = world.posted[0]
    world.bring(link, b"")
    link.advance()
    assert world.posted[-1] == slot
    assert world.credits == []


def test_a_full_ring_of_unread_chunks_still_hears_of_credits(world, link):
    for _ in range(PLACES):
        link.send(memoryview(b"x"))
        world.complete(world.sent[-1].wr_id)
        link.advance()
        world.bring(link, b"full")
    link.advance()
    assert link.send(memoryview(b"y")) == 0
    world.bring(link, b"", consumed=RETURN_AFTER)
    link.advance()
    assert link.send(memoryview(b"y")) == 1


def test_a_probe_is_a_message_without_bytes_whose_completion_proves_the_link(world, link):
    link.probe()
    assert world.credits == [0]
    link.advance()
    assert not link.is_proven
    world.complete(CREDIT)
    link.advance()
    assert link.is_proven
    assert link.is_idle


def test_a_probe_that_reaches_nobody_breaks_the_link_unproven(world, link):
    link.probe()
    world.complete(CREDIT, WCStatus.RETRY_EXC_ERR)
    with pytest.raises(ChannelError, match="does not answer"):
        link.advance()
    assert not link.is_proven


def test_credits_that_cannot_be_break_the_link(world, link):
    link.send(memoryview(b"x"))
    world.bring(link, b"", consumed=2)
    with pytest.raises(ChannelError, match="took 2 chunks"):
        link.advance()


def test_a_message_without_its_count_breaks_the_link(world, link):
    world.bring(link, b"x", flags=0)
    with pytest.raises(ChannelError, match="without its count"):
        link.advance()


@pytest.mark.parametrize(
    ("status", "words"),
    [
        (WCStatus.RETRY_EXC_ERR, "RETRY_EXC_ERR: the other side does not answer"),
        (WCStatus.LOC_LEN_ERR, "LOC_LEN_ERR: a message was larger"),
        (WCStatus.REM_ACCESS_ERR, "REM_ACCESS_ERR"),
        (99, "status 99"),
    ],
)
def test_a_completion_with_an_error_breaks_the_link_for_good_and_names_it(world, link, status, words):
    link.send(memoryview(b"x"))
    world.complete(0, status)
    with pytest.raises(ChannelError, match=words):
        link.advance()
    for later in (link.advance, lambda: link.send(memoryview(b"x")), lambda: read(link, 1), lambda: link.arm(True)):
        with pytest.raises(ChannelError, match=words):
            later()
    assert link.is_idle


def test_what_came_before_the_link_broke_can_still_be_read_and_then_it_is_broken(world, link):
    link.send(memoryview(b"x"))
    world.bring(link, b"last ")
    world.bring(link, b"words")
    world.complete(0, WCStatus.RETRY_EXC_ERR)
    link.advance()
    assert link.send(memoryview(b"more")) == 0
    assert (link.arm(True), link.arm(False)) == (False, True)
    posted = list(world.posted)
    assert read(link, 7) == b"last wo"
    assert read(link, 7) == b"rds"
    assert world.posted == posted, "nothing is posted on a broken link"
    for later in (link.advance, lambda: link.send(memoryview(b"x")), lambda: link.arm(False)):
        with pytest.raises(ChannelError, match="RETRY_EXC_ERR"):
            later()


def test_an_error_of_the_device_breaks_the_link(world, link):
    world.fail_with = VerbsError(errno.ENOMEM, "the queue is full")
    with pytest.raises(ChannelError, match="queue is full"):
        link.send(memoryview(b"x"))
    with pytest.raises(ChannelError, match="queue is full"):
        link.advance()


def test_arming_takes_the_events_that_came_and_looks_once_more(world, link):
    os.write(world.writer, b"..")
    assert link.arm(False)
    assert world.queues[0].n_acked == 2
    assert [queue.n_armed for queue in world.queues] == [1, 1]
    world.on_armed = lambda: world.bring(link, b"x") if not world.queues[1].entries else None
    assert not link.arm(False)
    assert read(link, 5) == b"x"


def test_while_something_is_expected_it_looks_for_a_moment_before_it_arms(world, link):
    world.bring(link, b"x")
    assert not link.arm(True)
    assert [queue.n_armed for queue in world.queues] == [0, 0]


@pytest.mark.parametrize(
    ("limit_slots", "sends"), [(RECEIVE_SLOTS + 8, 8), (RECEIVE_SLOTS + 7, 4), (RECEIVE_SLOTS + 3, 2), (25, 1)]
)
def test_fewer_sends_where_memory_may_not_be_locked(limit_slots, sends):
    world = World(limit_slots * CHUNK_NBYTES)
    made = RdmaLink(world.adapter())
    made.connect(made.offer)
    assert made.send(memoryview(bytes(10 * CHUNK_NBYTES))) == sends * CHUNK_NBYTES


@pytest.mark.parametrize("limit_slots", [RECEIVE_SLOTS, 1])
def test_no_link_where_not_one_send_can_be_registered(limit_slots):
    world = World(limit_slots * CHUNK_NBYTES)
    with pytest.raises(ConnectError, match="memlock limit"):
        RdmaLink(world.adapter())
    assert world.locked_nbytes == 0


def test_all_is_given_back_in_the_opposite_order(world):
    made = RdmaLink(world.adapter())
    made.close()
    made.close()
    assert world.closed == ["pair", "queue", "queue", "channel", "region", "region"]
    with pytest.raises(ChannelError, match="was closed"):
        made.advance()


def test_a_device_that_refuses_leaves_nothing_behind(world):
    world.create_qp = lambda attributes: (_ for _ in ()).throw(VerbsError(errno.EMFILE, "no more pairs"))
    with pytest.raises(ConnectError, match="no more pairs"):
        RdmaLink(world.adapter())
    assert world.locked_nbytes == 0
