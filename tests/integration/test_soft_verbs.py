"""What only the software model promises: exact depths and limits, its test modes, its carriers, and clean ends."""

from __future__ import annotations

import errno
import gc
import mmap
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rpc_transport_rdma.soft import SoftOptions, SoftVerbs, VerbsError
from rpc_transport_rdma.soft.addresses import gid_of, is_same_user, listen, start_connecting
from rpc_transport_rdma.soft.frames import Flags, Frame, Hello, HelloFlags, Kind
from rpc_transport_rdma.verbs import AccessFlags, SendFlags, WCStatus, WROpcode

KIB, MIB = 1 << 10, 1 << 20
WAIT_S = 20.0
CARRIERS = {"ring": {}, "stream": {"carrier": "stream"}, "tcp": {"address": "127.0.0.1"}}


@pytest.fixture(params=list(CARRIERS.values()), ids=list(CARRIERS))
def carrier(request: pytest.FixtureRequest) -> dict[str, Any]:
    return request.param


class Side:
    """A queue pair of a device of its own."""

    def __init__(self, verbs: SoftVerbs, nbytes: int = 2 * MIB, shared: bool = False, cqe: int = 64) -> None:
        self.verbs, self.context = verbs, verbs.get_device_list()[0].open()
        self.domain = self.context.alloc_pd()
        self.send_cq, self.recv_cq = self.context.create_cq(cqe), self.context.create_cq(cqe)
        init = verbs.QPInitAttr(
            send_cq=self.send_cq, recv_cq=self.recv_cq, max_send_wr=8, max_recv_wr=24, max_inline_data=128
        )
        self.pair = self.domain.create_qp(init)
        self.memory = np.frombuffer(verbs.alloc(nbytes) if shared else mmap.mmap(-1, nbytes), np.uint8)
        self.region = self.domain.reg_mr(self.address, nbytes, AccessFlags.LOCAL_WRITE)

    @property
    def address(self) -> int:
        return int(self.memory.ctypes.data)

    def info(self, psn: int = 5) -> Any:
        port, gid = self.context.query_port(1), self.context.query_gid(1, 0)
        return self.verbs.local_qp_info(self.pair, port, gid, port=1, psn=psn)

    def open(self, peer: Any, psn: int = 5, **timing: int) -> None:
        self.pair.to_init(1, AccessFlags.LOCAL_WRITE)
        self.pair.to_rtr(peer, sgid_index=0)
        self.pair.to_rts(psn, **{"timeout": 10, "retry_cnt": 3, **timing})

    def send(self, nbytes: int, wr_id: int = 0, offset: int = 0, flags: int = SendFlags.SIGNALED) -> None:
        piece = self.verbs.SGE(self.region, nbytes, offset=offset)
        self.pair.post_send(self.verbs.SendWR(wr_id, [piece], opcode=WROpcode.SEND, send_flags=flags))

    def receive(self, nbytes: int, wr_id: int = 0, offset: int = 0) -> None:
        self.pair.post_recv(self.verbs.RecvWR(wr_id, [self.verbs.SGE(self.region, nbytes, offset=offset)]))

    def close(self) -> None:
        for resource in (self.pair, self.region, self.send_cq, self.recv_cq, self.domain, self.context):
            resource.close()


@contextmanager
def joined(ours: SoftOptions, theirs: SoftOptions | None = None, **options: Any) -> Iterator[tuple[Side, Side]]:
    sides = Side(SoftVerbs(ours), **options), Side(SoftVerbs(theirs or ours), **options)
    sides[0].open(sides[1].info())
    sides[1].open(sides[0].info())
    try:
        yield sides
    finally:
        for side in sides:
            side.close()


def take(queue: Any, count: int) -> list[Any]:
    found: list[Any] = []
    deadline = time.monotonic() + WAIT_S
    while len(found) < count and time.monotonic() < deadline:
        found += queue.poll(16)
        time.sleep(0.0002)
    assert len(found) == count, found
    return found


def names(completions: list[Any]) -> list[tuple[int, str]]:
    return [(wc.wr_id, WCStatus(wc.status).name) for wc in completions]


def test_depths_are_exact(carrier: dict[str, Any]) -> None:
    with joined(SoftOptions(**carrier)) as (ours, _):
        for post, depth in ((ours.send, 8), (ours.receive, 24)):
            for _ in range(depth):
                post(64)
            with pytest.raises(VerbsError) as full:
                post(64)
            assert full.value.errno == errno.ENOMEM


def test_an_overrun_completion_queue_is_broken(carrier: dict[str, Any]) -> None:
    with joined(SoftOptions(**carrier), cqe=2) as (ours, theirs):
        for _ in range(3):
            theirs.receive(64)
            ours.send(64)
        time.sleep(0.3)  # so that the third one comes before the first is polled
        with pytest.raises(VerbsError) as broken:
            theirs.recv_cq.poll(1)
        assert broken.value.errno == errno.EIO


@pytest.mark.parametrize(
    ("limit", "slots"), [(0, None), (6 * MIB, None), (6 * MIB + 256 * KIB, 1), (7 * MIB, 4), (8 * MIB, 8)]
)
def test_memory_above_the_limit_is_not_registered(limit: int, slots: int | None) -> None:
    verbs = SoftVerbs(SoftOptions(memlock_nbytes=limit))
    context = verbs.get_device_list()[0].open()
    domain = context.alloc_pd()
    memory = np.frombuffer(mmap.mmap(-1, 8 * MIB), np.uint8)
    address, got = int(memory.ctypes.data), None
    if limit == 0:
        with pytest.raises(VerbsError) as refused:
            domain.reg_mr(address, 1, AccessFlags.LOCAL_WRITE)
        assert refused.value.errno == errno.ENOMEM
    else:
        ring = domain.reg_mr(address, 6 * MIB, AccessFlags.LOCAL_WRITE)
        for count in (8, 4, 2, 1):
            with suppress(VerbsError):
                domain.reg_mr(address + 6 * MIB, count * 256 * KIB, 0).close()
                got = count
                break
        ring.close()
    assert got == slots
    domain.close()
    context.close()


def test_a_closed_region_gives_its_pages_back() -> None:
    verbs = SoftVerbs(SoftOptions(memlock_nbytes=MIB))
    domain = verbs.get_device_list()[0].open().alloc_pd()
    memory = np.frombuffer(mmap.mmap(-1, MIB), np.uint8)
    for _ in range(3):
        domain.reg_mr(int(memory.ctypes.data), MIB, 0).close()
    domain.reg_mr(int(memory.ctypes.data), MIB, 0)  # dropped
    gc.collect()
    domain.reg_mr(int(memory.ctypes.data), MIB, 0).close()


def test_a_late_transmission_reads_the_buffer_late(carrier: dict[str, Any]) -> None:
    with joined(SoftOptions(**carrier, transmit_delay_s=0.05, seed=3)) as (ours, theirs):
        seen = set()
        for value in range(1, 9):
            theirs.receive(MIB)
            ours.memory[:MIB] = 100 + value
            ours.send(MIB)
            ours.memory[:MIB] = value  # forbidden: its completion was not polled
            take(ours.send_cq, 1)
            take(theirs.recv_cq, 1)
            seen.add(int(theirs.memory[MIB - 1]))
        assert seen & set(range(1, 9)), "the mistake went unnoticed"


def test_late_sends_keep_their_order() -> None:
    with joined(SoftOptions(transmit_delay_s=0.02)) as (ours, theirs):
        for number in range(8):
            theirs.receive(64, number)
            ours.send(number, number)
        assert [(wc.wr_id, wc.byte_len) for wc in take(theirs.recv_cq, 8)] == [(i, i) for i in range(8)]


@pytest.mark.parametrize(("rnr_retry", "outcome"), [(7, "SUCCESS"), (0, "RNR_RETRY_EXC_ERR")])
def test_receives_that_are_seen_late_make_the_sender_wait_or_fail(
    carrier: dict[str, Any], rnr_retry: int, outcome: str
) -> None:
    options = SoftOptions(**carrier)
    late = SoftOptions(**carrier, receive_delay_s=0.2)
    ours, theirs = Side(SoftVerbs(options)), Side(SoftVerbs(late))
    theirs.open(ours.info())
    theirs.receive(64, 1)
    ours.open(theirs.info(), rnr_retry=rnr_retry)
    started = time.monotonic()
    ours.send(64, 2)
    assert names(take(ours.send_cq, 1)) == [(2, outcome)]
    if outcome == "SUCCESS":
        assert time.monotonic() - started >= 0.15
        assert names(take(theirs.recv_cq, 1)) == [(1, "SUCCESS")]
    ours.close()
    theirs.close()


def test_a_refused_send_is_sent_again_until_a_receive_is_there(carrier: dict[str, Any]) -> None:
    options = SoftOptions(**carrier, ring_nbytes=64 * KIB)
    ours, theirs = Side(SoftVerbs(options)), Side(SoftVerbs(options))
    theirs.pair.to_init(1)
    theirs.pair.to_rtr(ours.info(), sgid_index=0, min_rnr_timer=31)  # half a second
    ours.open(theirs.info(), rnr_retry=6)
    ours.memory[:MIB] = 1
    ours.send(MIB, 1)
    ours.send(100, 2)
    time.sleep(0.1)
    ours.memory[:MIB] = 2
    theirs.receive(MIB, 3)
    theirs.receive(MIB, 4)
    assert [wc.byte_len for wc in take(theirs.recv_cq, 2)] == [MIB, 100]
    assert names(take(ours.send_cq, 2)) == [(1, "SUCCESS"), (2, "SUCCESS")]
    assert set(theirs.memory[100:MIB].tolist()) == {2}, "it was read again"
    ours.close()
    theirs.close()


def test_completions_are_handed_out_one_at_a_time() -> None:
    with joined(SoftOptions(one_at_a_time=True)) as (ours, theirs):
        for number in range(4):
            theirs.receive(64, number)
            ours.send(64, number)
        deadline, counts = time.monotonic() + WAIT_S, []
        while sum(counts) < 4 and time.monotonic() < deadline:
            counts.append(len(theirs.recv_cq.poll(16)))
        assert sum(counts) == 4
        assert max(counts) == 1


def test_a_device_that_vanished_is_silent(carrier: dict[str, Any]) -> None:
    """As if its process had been killed between two completions."""
    with joined(SoftOptions(**carrier), SoftOptions(**carrier, vanish_after=2)) as (ours, theirs):
        ours.receive(64, 50)
        for number in range(4):
            theirs.receive(64, number)
        for number in range(3):
            ours.send(64, number)
        take(ours.send_cq, 3)
        assert len(theirs.recv_cq.poll(16)) == 2
        assert theirs.recv_cq.poll(16) == []
        theirs.send(64)
        time.sleep(0.2)
        assert ours.recv_cq.poll(16) == [], "who waits is not told"
        ours.send(64, 9)
        assert names(take(ours.send_cq, 1)) == [(9, "RETRY_EXC_ERR")]
        assert theirs.send_cq.poll(16) == theirs.recv_cq.poll(16) == []


@pytest.mark.parametrize("shared", [False, True])
def test_large_messages_through_little_memory(carrier: dict[str, Any], shared: bool) -> None:
    with joined(SoftOptions(**carrier, ring_nbytes=256 * KIB), nbytes=64 * MIB, shared=shared) as (ours, theirs):
        ours.memory[:] = np.random.default_rng(1).integers(0, 256, 64 * MIB, np.uint8)
        theirs.receive(64 * MIB)
        ours.send(64 * MIB)
        assert take(theirs.recv_cq, 1)[0].byte_len == 64 * MIB
        take(ours.send_cq, 1)
        assert np.array_equal(ours.memory, theirs.memory)


def test_inline_sends_may_be_overwritten_at_once(carrier: dict[str, Any]) -> None:
    with joined(SoftOptions(**carrier, transmit_delay_s=0.05)) as (ours, theirs):
        theirs.receive(256)
        ours.memory[:128] = 3
        ours.send(128, flags=SendFlags.SIGNALED | SendFlags.INLINE)
        ours.memory[:128] = 4
        take(theirs.recv_cq, 1)
        assert set(theirs.memory[:128].tolist()) == {3}
        with pytest.raises(VerbsError) as refused:
            ours.send(129, flags=SendFlags.INLINE)
        assert refused.value.errno == errno.EINVAL


def test_failures_come_in_order(carrier: dict[str, Any]) -> None:
    """What was sent before a bad request completes before it fails, however late."""
    with joined(SoftOptions(**carrier)) as (ours, theirs):
        ours.send(64, 1)
        bad = ours.verbs.SGE(ours.address + 2 * MIB - 1, 64, lkey=ours.region.lkey)
        ours.pair.post_send(ours.verbs.SendWR(2, [bad], opcode=WROpcode.SEND, send_flags=SendFlags.SIGNALED))
        ours.send(64, 3)
        time.sleep(0.1)
        assert ours.send_cq.poll(16) == []
        theirs.receive(64, 4)
        assert names(take(ours.send_cq, 3)) == [(1, "SUCCESS"), (2, "LOC_PROT_ERR"), (3, "WR_FLUSH_ERR")]
        assert names(take(theirs.recv_cq, 1)) == [(4, "SUCCESS")]


def test_a_receive_that_may_not_be_written_ends_both_sides(carrier: dict[str, Any]) -> None:
    with joined(SoftOptions(**carrier)) as (ours, theirs):
        read_only = theirs.domain.reg_mr(theirs.address, 64, AccessFlags.LOCAL_READ)
        theirs.pair.post_recv(theirs.verbs.RecvWR(1, [read_only.sge()]))
        ours.send(64, 2)
        assert names(take(theirs.recv_cq, 1)) == [(1, "LOC_PROT_ERR")]
        assert names(take(ours.send_cq, 1)) == [(2, "REM_OP_ERR")]
        read_only.close()


def test_regions_of_another_domain_are_not_ours(carrier: dict[str, Any]) -> None:
    with joined(SoftOptions(**carrier)) as (ours, theirs):
        theirs.receive(64)
        domain = ours.context.alloc_pd()
        other = domain.reg_mr(ours.address, 64, AccessFlags.LOCAL_WRITE)
        request = ours.verbs.SendWR(1, [other.sge()], opcode=WROpcode.SEND, send_flags=SendFlags.SIGNALED)
        ours.pair.post_send(request)
        assert names(take(ours.send_cq, 1)) == [(1, "LOC_PROT_ERR")]
        other.close()
        domain.close()


def test_a_region_closed_under_a_posted_send_fails_it(carrier: dict[str, Any]) -> None:
    with joined(SoftOptions(**carrier, transmit_delay_s=0.3, seed=1)) as (ours, theirs):
        theirs.receive(64)
        region = ours.domain.reg_mr(ours.address, 64, AccessFlags.LOCAL_WRITE)
        request = ours.verbs.SendWR(1, [region.sge()], opcode=WROpcode.SEND, send_flags=SendFlags.SIGNALED)
        ours.pair.post_send(request)
        region.close()
        assert names(take(ours.send_cq, 1)) == [(1, "LOC_PROT_ERR")]


def test_another_start_of_the_connection_is_silence(carrier: dict[str, Any]) -> None:
    options = SoftOptions(**carrier)
    ours, theirs = Side(SoftVerbs(options)), Side(SoftVerbs(options))
    theirs.open(ours.info(psn=6))
    ours.open(theirs.info(), psn=7)
    theirs.receive(64)
    ours.send(64, 1)
    assert names(take(ours.send_cq, 1)) == [(1, "RETRY_EXC_ERR")]
    ours.close()
    theirs.close()


def test_only_solicited_sends_and_errors_wake_who_asked_for_those() -> None:
    options = SoftOptions()
    ours, theirs = Side(SoftVerbs(options)), Side(SoftVerbs(options))
    channel = theirs.context.create_comp_channel()
    queue = theirs.context.create_cq(16, channel)
    pair = theirs.domain.create_qp(theirs.verbs.QPInitAttr(send_cq=theirs.send_cq, recv_cq=queue))
    theirs.pair.close()
    theirs.pair = pair
    ours.open(theirs.info())
    theirs.open(ours.info())
    os.set_blocking(channel.fd, False)
    queue.req_notify(solicited_only=True)
    for flags, told in ((SendFlags.SIGNALED, False), (SendFlags.SIGNALED | SendFlags.SOLICITED, True)):
        theirs.receive(64)
        ours.send(64, flags=flags)
        take(ours.send_cq, 1)
        if told:
            assert channel.get_cq_event() is queue
        else:
            with pytest.raises(VerbsError):
                channel.get_cq_event()
    pair.close()
    queue.close()
    channel.close()
    ours.close()
    theirs.close()


# Peers that break the rules of the connection


@pytest.fixture
def exposed() -> Iterator[tuple[Side, socket.socket]]:
    """A side that waits to receive 64 bytes, and a connection to its device that has said nothing."""
    side = Side(SoftVerbs(SoftOptions()))
    peer = SoftVerbs().QPInfo(99, 5, 0, gid_of("10.0.0.1"), 1, 5)
    side.open(peer)
    side.receive(64, 1)
    made = start_connecting(side.info().gid, 0)
    assert made is not None
    made.setblocking(True)
    made.settimeout(WAIT_S)
    yield side, made
    made.close()
    side.close()


def wait_until_cut(connection: socket.socket) -> None:
    try:
        while connection.recv(4096):
            pass
    except ConnectionResetError:  # it was cut before it had read everything
        pass


def greeting(side: Side, flags: int = 0) -> bytes:
    return Hello(flags, side.pair.qp_num, 99, 5, gid_of("10.0.0.1"), side.info().gid).pack()


@pytest.mark.parametrize(
    "said",
    [
        [b"x" * 56],
        [Hello(0, 7, 99, 5, gid_of("10.0.0.1"), b"\0" * 16).pack()],
        ["greeting", Frame(77).pack()],
        ["greeting", Frame(Kind.SEND, nbytes=1 << 31).pack()],
        ["greeting", Frame(Kind.SEND, nbytes=10, arena=3).pack()],
        ["greeting", Frame(Kind.DATA, nbytes=10).pack()],
        ["greeting", Frame(Kind.MEMORY, arena=1, position=4096).pack()],
        ["shared", Frame(Kind.SEND, nbytes=10).pack() + Frame(Kind.DATA, nbytes=11, arena=1).pack()],
        ["shared", Frame(Kind.SEND, nbytes=10).pack() + Frame(Kind.SEND, nbytes=10).pack()],
    ],
)
def test_a_peer_that_breaks_the_rules_is_cut_and_nobody_notices(exposed: Any, said: list[Any]) -> None:
    side, connection = exposed
    for part in said:
        flags = HelloFlags.SHARED if part == "shared" else 0
        connection.sendall(greeting(side, flags) if isinstance(part, str) else part)
    wait_until_cut(connection)
    assert side.recv_cq.poll(16) == []
    again = start_connecting(side.info().gid, 0)
    assert again is not None, "the device lives on"
    again.setblocking(True)
    again.settimeout(WAIT_S)
    again.sendall(greeting(side) + Frame(Kind.SEND, Flags.WITH_IMM, value=8, nbytes=3).pack() + b"abc")
    assert [(wc.byte_len, wc.imm_data) for wc in take(side.recv_cq, 1)] == [(3, 8)]
    again.close()


def test_memory_that_its_owner_could_shrink_is_not_mapped(exposed: Any) -> None:
    side, connection = exposed
    descriptor = os.memfd_create("open", os.MFD_ALLOW_SEALING)
    os.ftruncate(descriptor, 4096)
    connection.sendall(greeting(side, HelloFlags.SHARED))
    socket.send_fds(connection, [Frame(Kind.MEMORY, arena=1, position=4096).pack()], [descriptor])
    os.close(descriptor)
    wait_until_cut(connection)


def test_a_message_cut_short_leaves_its_receive_for_the_next(exposed: Any) -> None:
    side, connection = exposed
    connection.sendall(greeting(side) + Frame(Kind.SEND, nbytes=60).pack() + b"half")
    connection.recv(4096)
    connection.close()
    time.sleep(0.1)
    again = start_connecting(side.info().gid, 0)
    assert again is not None
    again.setblocking(True)
    again.sendall(greeting(side) + Frame(Kind.SEND, nbytes=5).pack() + b"whole")
    assert [(wc.wr_id, wc.byte_len) for wc in take(side.recv_cq, 1)] == [(1, 5)]
    assert bytes(side.memory[:5]) == b"whole"
    again.close()


def test_peers_of_another_user_are_told_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    listener, gid, _ = listen("")
    connection = start_connecting(gid, 0)
    assert connection is not None
    assert is_same_user(connection)
    monkeypatch.setattr(os, "geteuid", lambda: os.getuid() + 1)
    assert not is_same_user(connection)
    assert start_connecting(gid, 0) is None
    connection.close()
    listener.close()


# Ends


def open_files() -> dict[str, str]:
    found = {}
    for path in Path("/proc/self/fd").iterdir():
        try:
            found[path.name] = str(path.readlink())
        except FileNotFoundError:  # that of this very listing
            continue
    return found


def test_closing_leaves_no_thread_and_no_file(carrier: dict[str, Any]) -> None:
    gc.collect()
    before, threads = open_files(), threading.active_count()
    for _ in range(3):
        with joined(SoftOptions(**carrier), shared=True) as (ours, theirs):
            theirs.receive(64)
            ours.send(64)
            take(theirs.recv_cq, 1)
    del ours, theirs
    gc.collect()
    assert threading.active_count() == threads
    assert open_files() == before


def test_dropping_everything_closes_it_too() -> None:
    gc.collect()
    before, threads = open_files(), threading.active_count()
    with joined(SoftOptions()) as (ours, theirs):
        theirs.receive(64)
        ours.send(64)
        take(theirs.recv_cq, 1)
        ours.close = theirs.close = lambda: None  # type: ignore[method-assign]
    del ours, theirs
    deadline = time.monotonic() + WAIT_S
    while threading.active_count() > threads and time.monotonic() < deadline:
        gc.collect()
        time.sleep(0.05)
    gc.collect()
    assert threading.active_count() == threads
    assert open_files() == before


def test_a_killed_process_leaves_nothing_behind() -> None:
    program = (
        "import os, signal, sys; from rpc_transport_rdma.soft import *; p = SoftVerbs(); m = p.alloc(1 << 20);"
        "c = p.get_device_list()[0].open(); print(c.query_gid(1, 0).raw.hex(), flush=True); os.kill(os.getpid(), 9)"
    )
    before = {folder: set(os.listdir(folder)) for folder in ("/dev/shm",) if Path(folder).exists()}
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == -9
    gid = bytes.fromhex(done.stdout.strip())
    assert gid.hex() not in Path("/proc/net/unix").read_text()
    assert start_connecting(gid, 0) is None
    assert {folder: set(os.listdir(folder)) for folder in before} == before


def test_an_address_that_is_not_ours_cannot_be_opened() -> None:
    with pytest.raises(VerbsError) as refused:
        SoftVerbs(SoftOptions(address="192.0.2.77")).get_device_list()[0].open()
    assert refused.value.errno == errno.EADDRNOTAVAIL
