"""States, depths and completions of a queue pair of the software model, without a device."""

from __future__ import annotations

import errno
from collections.abc import Callable
from typing import Any

import pytest

from rpc_transport_rdma.soft import SGE, QPCap, RecvWR, SendWR, SoftOptions, VerbsError
from rpc_transport_rdma.soft.completions import CQ
from rpc_transport_rdma.soft.frames import Flags
from rpc_transport_rdma.soft.memory import LockedPages, RegionTable
from rpc_transport_rdma.soft.queues import Queues, piece_bounds
from rpc_transport_rdma.verbs import QPState, SendFlags, WCFlags, WCStatus, WROpcode


class Context:
    """What a completion queue asks of its device."""

    def __init__(self) -> None:
        self.users: set[int] = set()

    def poll_limit(self, asked: int) -> int:
        return asked

    def count_polled(self, count: int) -> None:
        pass


class Bell:
    """A device that does nothing."""

    def __init__(self) -> None:
        self.rung = 0

    def ring(self, queues: Queues) -> None:
        self.rung += 1

    attend_now = ring


def build(state: QPState = QPState.RTS, cqe: int = 32, signal_all: bool = False, **options: Any) -> Queues:
    context: Any = Context()
    cap = QPCap(max_send_wr=2, max_recv_wr=2, max_send_sge=2, max_recv_sge=2, max_inline_data=0)
    cqs = CQ(context, cqe, None), CQ(context, cqe, None)
    made = Queues(9, cap, cqs, signal_all, 1, RegionTable(LockedPages(None)), SoftOptions(**options), Bell())
    made.state = state
    return made


def send(wr_id: int = 0, flags: int = SendFlags.SIGNALED, opcode: int = WROpcode.SEND, pieces: int = 1) -> SendWR:
    return SendWR(wr_id, [SGE(64, 1)] * pieces, opcode=opcode, send_flags=flags)


def receive(wr_id: int = 0, pieces: int = 1) -> RecvWR:
    return RecvWR(wr_id, [SGE(64, 8)] * pieces)


def transmit(queues: Queues) -> None:
    while queues.posted:
        queues.in_flight.append(queues.posted.popleft())


def names(cq: CQ) -> list[tuple[int, str]]:
    return [(wc.wr_id, WCStatus(wc.status).name) for wc in cq.poll(32)]


def refused(post: Callable[[], None]) -> int | None:
    with pytest.raises(VerbsError) as error:
        post()
    return error.value.errno


@pytest.mark.parametrize("state", [QPState.RESET, QPState.INIT, QPState.RTR])
def test_sends_are_refused_before_rts(state: QPState) -> None:
    assert refused(lambda: build(state).post_send([send()])) == errno.EINVAL


def test_receives_are_refused_in_reset_only() -> None:
    assert refused(lambda: build(QPState.RESET).post_recv([receive()])) == errno.EINVAL
    for state in (QPState.INIT, QPState.RTR, QPState.RTS):
        build(state).post_recv([receive()])


@pytest.mark.parametrize(
    ("request_", "code"),
    [
        (send(opcode=WROpcode.SEND - 2), errno.EOPNOTSUPP),
        (send(pieces=3), errno.EINVAL),
        (send(flags=SendFlags.INLINE), errno.EINVAL),
    ],
)
def test_requests_that_do_not_fit_are_refused(request_: SendWR, code: int) -> None:
    queues = build()
    assert refused(lambda: queues.post_send([request_])) == code
    queues.post_send([send(), send()])
    assert refused(lambda: queues.post_recv([receive(pieces=3)])) == errno.EINVAL


def test_those_before_a_refused_one_stay_posted() -> None:
    queues = build()
    assert refused(lambda: queues.post_send([send(1), send(2), send(3)])) == errno.ENOMEM
    assert [record.wr_id for record in queues.posted] == [1, 2]
    assert refused(lambda: queues.post_recv([receive(1), receive(2), receive(3)])) == errno.ENOMEM
    assert [record.wr_id for record in queues.receives] == [1, 2]


def test_a_slot_comes_back_with_the_poll_and_not_before() -> None:
    queues = build()
    queues.post_send([send(1), send(2)])
    transmit(queues)
    queues.complete_sends(2)
    assert refused(lambda: queues.post_send([send(3)])) == errno.ENOMEM
    assert [wc.wr_id for wc in queues.send_cq.poll(1)] == [1]
    queues.post_send([send(3)])
    assert refused(lambda: queues.post_send([send(4)])) == errno.ENOMEM


def test_an_unsignaled_slot_comes_back_with_a_later_signaled_one() -> None:
    queues = build()
    queues.post_send([send(1, flags=0), send(2)])
    transmit(queues)
    queues.complete_sends(1)
    assert names(queues.send_cq) == []
    assert refused(lambda: queues.post_send([send(3)])) == errno.ENOMEM
    queues.complete_sends(1)
    assert names(queues.send_cq) == [(2, "SUCCESS")]
    queues.post_send([send(3), send(4)])


def test_a_queue_pair_can_signal_all() -> None:
    queues = build(signal_all=True)
    queues.post_send([send(1, flags=0)])
    transmit(queues)
    queues.complete_sends(1)
    assert names(queues.send_cq) == [(1, "SUCCESS")]


def test_receives_complete_with_length_and_immediate_data() -> None:
    queues = build()
    queues.post_recv([receive(1), receive(2)])
    for flags, imm in ((Flags.WITH_IMM, 77), (0, 77)):
        record = queues.next_receive()
        assert record is not None
        queues.complete_receive(record, 5, imm, flags)
    first, second = queues.recv_cq.poll(8)
    assert (first.byte_len, first.imm_data, first.wc_flags) == (5, 77, WCFlags.WITH_IMM)
    assert (second.imm_data, second.wc_flags) == (0, 0)
    assert queues.next_receive() is None


def test_an_error_fails_the_oldest_and_flushes_the_rest_signaled_or_not() -> None:
    queues = build()
    queues.post_send([send(1, flags=0), send(2, flags=0)])
    queues.post_recv([receive(3), receive(4)])
    taken = queues.next_receive()
    assert taken is not None
    queues.fail(send=WCStatus.RETRY_EXC_ERR, receive=(taken, WCStatus.LOC_LEN_ERR))
    assert queues.state == QPState.ERR
    assert names(queues.send_cq) == [(1, "RETRY_EXC_ERR"), (2, "WR_FLUSH_ERR")]
    assert names(queues.recv_cq) == [(3, "LOC_LEN_ERR"), (4, "WR_FLUSH_ERR")]
    queues.fail(send=WCStatus.FATAL_ERR)
    queues.post_send([send(5)])
    queues.post_recv([receive(6)])
    assert names(queues.send_cq) == [(5, "WR_FLUSH_ERR")]
    assert names(queues.recv_cq) == [(6, "WR_FLUSH_ERR")]


def test_a_receive_taken_when_the_error_came_is_flushed() -> None:
    queues = build()
    queues.post_recv([receive(1), receive(2)])
    first, second = queues.next_receive(), queues.next_receive()
    assert first is not None
    assert second is not None
    queues.fail()
    queues.complete_receive(first, 1, 0, 0)
    queues.flush_taken(second)
    assert names(queues.recv_cq) == [(1, "WR_FLUSH_ERR"), (2, "WR_FLUSH_ERR")]


def test_a_closed_queue_pair_takes_its_completions_with_it() -> None:
    queues = build()
    queues.post_send([send(1), send(2)])
    transmit(queues)
    queues.complete_sends(1)
    queues.close()
    queues.complete_sends(1)
    queues.fail()
    assert names(queues.send_cq) == []


def test_a_completion_too_many_breaks_the_queue() -> None:
    queues = build(cqe=1)
    queues.post_send([send(1), send(2)])
    transmit(queues)
    queues.complete_sends(2)
    for _ in range(2):
        with pytest.raises(VerbsError) as broken:
            queues.send_cq.poll(1)
        assert broken.value.errno == errno.EIO


def test_states_follow_each_other() -> None:
    queues = build(QPState.RESET)
    assert refused(lambda: queues.move(QPState.INIT, QPState.RTR, "modify")) == errno.EINVAL
    queues.move(QPState.RESET, QPState.INIT, "modify")
    assert refused(lambda: queues.move(QPState.RESET, QPState.INIT, "modify")) == errno.EINVAL
    assert not queues.is_alive
    queues.move(QPState.INIT, QPState.RTR, "modify")
    assert queues.is_alive


def test_late_receives_and_sends_carry_their_time() -> None:
    queues = build(receive_delay_s=60.0, transmit_delay_s=60.0)
    queues.post_recv([receive(1)])
    assert queues.next_receive() is None
    queues.post_send([send(1), send(2)])
    assert queues.posted[0].ready_at != queues.posted[1].ready_at


def test_a_posted_receive_rings_only_for_a_message_that_waits() -> None:
    queues = build()
    bell: Any = queues._doorbell
    queues.post_recv([receive(1)])
    assert bell.rung == 0
    assert queues.next_receive() is not None
    assert queues.next_receive() is None
    queues.post_recv([receive(2)])
    assert bell.rung == 1


def test_pieces_are_cut_at_the_length_of_the_message() -> None:
    pieces = [SGE(100, 5), SGE(200, 0), SGE(300, 10)]
    assert piece_bounds(pieces, 15) == [(100, 5), (300, 10)]
    assert piece_bounds(pieces, 7) == [(100, 5), (300, 2)]
    assert piece_bounds(pieces, 3) == [(100, 3)]
    assert piece_bounds(pieces, 0) == []
