"""Records of the software model of verbs."""

from __future__ import annotations

import errno

import pytest

import rpc_transport_rdma.soft as soft
from rpc_transport_rdma.soft import SGE, WC, CompletionError, Gid, PortAttr, QPInfo, RecvWR, SendWR, local_qp_info
from rpc_transport_rdma.soft.frames import (
    FRAME,
    HELLO,
    RNR_TIMER_S,
    Frame,
    Hello,
    HelloFlags,
    Kind,
    retry_budget_s,
)
from rpc_transport_rdma.verbs import Verbs, WCOpcode, WCStatus


class Region:
    addr, length, lkey = 4096, 100, 7


def test_the_module_and_its_provider_have_every_name_of_the_seam() -> None:
    wanted = {name for name in vars(Verbs) if not name.startswith("_")}
    assert len(wanted) == 8
    for provider in (soft, soft.SoftVerbs()):
        assert [name for name in wanted if not hasattr(provider, name)] == []


def test_a_peer_is_described_in_28_bytes() -> None:
    class Pair:
        qp_num = 0x123456

    info = local_qp_info(Pair(), PortAttr(80), Gid(bytes(range(16))), port=1, psn=9)
    assert info == QPInfo(0x123456, 9, 80, bytes(range(16)), 1, 5)
    data = info.to_bytes()
    assert data.hex() == "00123456000000090050" + bytes(range(16)).hex() + "0105"
    assert QPInfo.from_bytes(data) == info


@pytest.mark.parametrize(
    "fields", [(1 << 24, 0, 0, 16, 1, 1), (0, 1 << 24, 0, 16, 1, 1), (0, 0, 1 << 16, 16, 1, 1), (0, 0, 0, 15, 1, 1),
               (0, 0, 0, 16, 0, 1), (0, 0, 0, 16, 1, 6), (-1, 0, 0, 16, 1, 1)],
)  # fmt: skip
def test_bad_descriptions_are_refused(fields: tuple[int, ...]) -> None:
    qp_num, psn, lid, gid, port, mtu = fields
    with pytest.raises(ValueError, match=r"gid|qp_num|psn|lid|port|mtu"):
        QPInfo(qp_num, psn, lid, bytes(gid), port, mtu)


@pytest.mark.parametrize("nbytes", [0, 27, 29])
def test_a_description_of_another_length_is_refused(nbytes: int) -> None:
    with pytest.raises(ValueError, match="28 bytes"):
        QPInfo.from_bytes(bytes(nbytes))


def test_pieces_lie_inside_their_region() -> None:
    whole = SGE(Region(), 100)
    assert (whole.addr, whole.length, whole.lkey) == (4096, 100, 7)
    assert SGE(Region(), 1, offset=99).addr == 4195
    assert (SGE(5000, 8, lkey=3, offset=8).addr, SGE(5000, 8, lkey=3).lkey) == (5008, 3)
    for nbytes, offset in ((101, 0), (1, 100), (0, 101)):
        with pytest.raises(ValueError, match="exceeds the memory region"):
            SGE(Region(), nbytes, offset=offset)
    for values in ({"length": -1}, {"length": 1 << 32}, {"length": 1, "offset": -1}, {"length": 1, "lkey": 1 << 32}):
        with pytest.raises(ValueError, match="SGE"):
            SGE(Region(), **values)
    with pytest.raises(ValueError, match="address"):
        SGE(-1, 1)


def test_work_requests_copy_their_lists() -> None:
    pieces = [SGE(1, 1)]
    send, receive = SendWR(1, pieces, opcode=2, imm_data=9), RecvWR(2, pieces)
    pieces.clear()
    assert len(send.sg_list) == len(receive.sg_list) == 1
    assert SendWR().sg_list == RecvWR().sg_list == []
    with pytest.raises(OverflowError, match="32 bits"):
        SendWR(imm_data=1 << 32)


def test_completions_raise_what_went_wrong() -> None:
    WC(1, WCStatus.SUCCESS, WCOpcode.SEND, 2).raise_for_status()
    failed = WC(1, WCStatus.RETRY_EXC_ERR, WCOpcode.SEND, 2)
    assert not failed.is_success
    with pytest.raises(CompletionError, match="RETRY_EXC_ERR") as raised:
        failed.raise_for_status()
    assert raised.value.errno == errno.EIO
    assert raised.value.wc is failed


def test_frames_keep_their_fields() -> None:
    frame = Frame(Kind.SEND, 3, 0xFFFF, 0xFFFFFFFF, 1 << 30, 5, 1 << 40)
    assert len(frame.pack()) == FRAME.size == 24
    assert Frame._make(FRAME.unpack(frame.pack())) == frame
    hello = Hello(HelloFlags.SHARED, 1, 2, 3, b"a" * 16, b"b" * 16)
    assert len(hello.pack()) == HELLO.size
    assert Hello.unpack(hello.pack()) == hello
    assert Hello.unpack(b"no!!" + hello.pack()[4:]) is None


def test_times_are_those_of_the_specification() -> None:
    assert RNR_TIMER_S[12] == pytest.approx(0.64e-3)
    assert RNR_TIMER_S[0] == pytest.approx(0.65536)
    assert retry_budget_s(14, 7) == pytest.approx(0.537, abs=0.001)
    assert retry_budget_s(0, 7) is None
