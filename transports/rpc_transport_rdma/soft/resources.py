"""The objects of the verbs API: device, context, protection domain, region, queue pair.

Belongs here: what a program calls. Must not be here: how it is carried out.
"""

from __future__ import annotations

import errno
import itertools
from collections.abc import Callable, Iterable
from typing import Any

from rpc_transport_rdma.soft.completions import CQ, CompChannel, Resource
from rpc_transport_rdma.soft.device import OpenDevice
from rpc_transport_rdma.soft.memory import LockedPages, Region, SharedMemory
from rpc_transport_rdma.soft.options import SoftOptions
from rpc_transport_rdma.soft.queues import Path
from rpc_transport_rdma.soft.values import SGE, Gid, PortAttr, QPCap, QPInfo, QPInitAttr, RecvWR, SendWR, VerbsError
from rpc_transport_rdma.verbs import QPAttrMask, QPState, QPType

_PORT, _GID_INDEX = 1, 0
_MOST_WR, _MOST_CQE, _MOST_SGE = 1 << 14, 1 << 20, 32
_numbers = itertools.count(1)
FindShared = Callable[[int, int], SharedMemory | None]


class Device:
    """A software device that can be opened."""

    def __init__(self, name: str, options: SoftOptions, locked: LockedPages, find_shared: FindShared) -> None:
        self.name, self.guid = name, 0
        self._options, self._locked, self._find_shared = options, locked, find_shared

    def open(self) -> Context:
        """Open it.

        Raises:
            VerbsError: its address is none of this machine.
        """
        try:
            opened = OpenDevice(self._options, self._locked)
        except OSError as error:
            raise VerbsError(f"ibv_open_device({self.name})", error.errno or errno.EIO) from error
        return Context(self.name, opened, self._find_shared)


class Context(Resource):
    """An open device."""

    kind = "context"

    def __init__(self, name: str, opened: OpenDevice, find_shared: FindShared) -> None:
        super().__init__()
        self.name, self.opened, self.find_shared = name, opened, find_shared
        self.poll_limit, self.count_polled = opened.poll_limit, opened.count_polled

    def query_port(self, port_num: int) -> PortAttr:
        self._ensure_port("ibv_query_port", port_num)
        return PortAttr(self.opened.lid)

    def query_gid(self, port_num: int, index: int) -> Gid:
        self._ensure_port("ibv_query_gid", port_num)
        if index != _GID_INDEX:
            raise VerbsError("ibv_query_gid", errno.EINVAL)
        return Gid(self.opened.gid)

    def _ensure_port(self, verb: str, port_num: int) -> None:
        self.ensure()
        if port_num != _PORT:
            raise VerbsError(verb, errno.EINVAL)

    def alloc_pd(self) -> PD:
        self.ensure()
        return PD(self)

    def create_comp_channel(self) -> CompChannel:
        self.ensure()
        return CompChannel(self)

    def create_cq(self, cqe: int, channel: CompChannel | None = None, comp_vector: int = 0) -> CQ:
        """Make a completion queue of exactly `cqe` entries."""
        self.ensure()
        if cqe <= 0 or comp_vector != 0:
            raise ValueError("cqe must be positive" if cqe <= 0 else "comp_vector is outside the context's range")
        if cqe > _MOST_CQE:
            raise VerbsError("ibv_create_cq", errno.EINVAL)
        if channel is not None:
            channel.ensure()
            if channel.context is not self:
                raise ValueError("completion channel must belong to this context")
        return CQ(self, cqe, channel)

    def close(self) -> None:
        """Close the device once all its resources are closed."""
        if self.closed:
            return
        self.ensure_unused()
        self.closed = True
        self.opened.stop(wait=True)

    def __del__(self) -> None:
        if not getattr(self, "closed", True):
            self.closed = True
            self.opened.stop(wait=False)


class PD(Resource):
    """A protection domain."""

    kind = "protection domain"

    def __init__(self, context: Context) -> None:
        super().__init__()
        self.context, self.number = context, next(_numbers)
        context.users.add(id(self))

    def reg_mr(self, addr: int, length: int, access: int) -> MR:
        """Register memory, which must live until the region is closed; ENOMEM when it may not be locked."""
        self.ensure()
        if not 0 <= addr < 1 << 64:
            raise ValueError("addr must be between 0 and 2**64 - 1")
        if not 0 < length < 1 << 64:
            raise ValueError("length must be between 1 and 2**64 - 1")
        if addr + length > 1 << 64:
            raise ValueError("memory region address range exceeds 2**64")
        return MR(self, addr, length, int(access))

    def create_qp(self, init_attr: QPInitAttr) -> QP:
        """Make a queue pair of exactly the depths asked for."""
        self.ensure()
        for queue in (init_attr.send_cq, init_attr.recv_cq):
            queue.ensure()
            if queue.context is not self.context:
                raise ValueError("queue-pair CQs must belong to the PD's context")
        cap = init_attr.cap
        depths, pieces = (cap.max_send_wr, cap.max_recv_wr), (cap.max_send_sge, cap.max_recv_sge)
        fits = all(0 <= depth <= _MOST_WR for depth in depths) and all(0 <= count <= _MOST_SGE for count in pieces)
        if init_attr.qp_type != QPType.RC or init_attr.srq is not None or not fits:
            raise VerbsError("ibv_create_qp", errno.EINVAL)
        return QP(self, init_attr)

    def _shut(self) -> None:
        self.closed = True
        self.context.users.discard(id(self))


class MR(Resource):
    """A registered memory region."""

    kind = "memory region"

    def __init__(self, pd: PD, addr: int, length: int, access: int) -> None:
        super().__init__()
        self.closed = True  # until it is registered
        self.pd, self._owner = pd, None
        shared = pd.context.find_shared(addr, length)
        self._region: Region = pd.context.opened.regions.add(addr, length, pd.number, access, shared)
        self.closed = False
        pd.users.add(id(self))

    @property
    def addr(self) -> int:
        self.ensure()
        return self._region.addr

    @property
    def length(self) -> int:
        self.ensure()
        return self._region.nbytes

    @property
    def lkey(self) -> int:
        self.ensure()
        return self._region.lkey

    def sge(self, length: int | None = None, offset: int = 0) -> SGE:
        """Return a piece of this region."""
        return SGE(self, self.length - offset if length is None else length, offset=offset)

    def _shut(self) -> None:
        """Deregister; the device has its hands off the memory when this returns."""
        self.closed = True
        self.pd.context.opened.regions.remove(self._region)
        self.pd.users.discard(id(self))


class QP(Resource):
    """A reliable connection."""

    kind = "queue pair"

    def __init__(self, pd: PD, init: QPInitAttr) -> None:
        super().__init__()
        self.pd, self.send_cq, self.recv_cq, self._cap = pd, init.send_cq, init.recv_cq, init.cap
        self._queues = pd.context.opened.add(init.cap, (init.send_cq, init.recv_cq), init.sq_sig_all, pd.number)
        self.qp_num, self.qp_type = self._queues.qp_num, QPType.RC
        for used in (pd, init.send_cq, init.recv_cq):
            used.users.add(id(self))

    @property
    def state(self) -> int:
        self.ensure()
        return int(self._queues.state)

    def query(self) -> tuple[dict[str, int], QPCap]:
        """Return attributes and depths."""
        path = self._queues.path
        attributes = {
            "qp_state": self.state, "dest_qp_num": path.qp_num, "rq_psn": path.receive_psn, "sq_psn": path.send_psn,
            "timeout": path.timeout, "retry_cnt": path.retry_cnt, "rnr_retry": path.rnr_retry,
            "min_rnr_timer": path.rnr_timer,
        }  # fmt: skip
        return attributes, self._cap

    def to_init(self, port: int, access: int = 0, pkey_index: int = 0, qkey: int = 0) -> None:
        """RESET to INIT: from here on receives may be posted."""
        self._ensure_valid("ibv_modify_qp(->INIT)", port == _PORT and pkey_index == 0)
        self._queues.move(QPState.RESET, QPState.INIT, "ibv_modify_qp(->INIT)")

    def to_rtr(
        self, remote: QPInfo, sgid_index: int, mtu: int | None = None, hop_limit: int = 1, min_rnr_timer: int = 12,
        max_dest_rd_atomic: int = 1, sl: int = 0, traffic_class: int = 0,
    ) -> None:  # fmt: skip
        """INIT to RTR: from here on the peer's sends are received."""
        verb = "ibv_modify_qp(->RTR)"
        mtu = remote.mtu if mtu is None else int(mtu)
        valid = sgid_index == _GID_INDEX and 1 <= mtu <= 5 and 0 <= min_rnr_timer < 32
        self._ensure_valid(verb, valid and self._queues.state == QPState.INIT)
        gid = bytes(remote.gid)
        self._queues.path = Path(remote.qp_num, gid, remote.lid, remote.psn, rnr_timer=min_rnr_timer)
        self._queues.move(QPState.INIT, QPState.RTR, verb)

    def to_rts(
        self, psn: int, timeout: int = 14, retry_cnt: int = 7, rnr_retry: int = 7, max_rd_atomic: int = 1
    ) -> None:
        """RTR to RTS: from here on sends may be posted."""
        verb = "ibv_modify_qp(->RTS)"
        valid = 0 <= psn < 1 << 24 and 0 <= timeout < 32 and 0 <= retry_cnt <= 7 and 0 <= rnr_retry <= 7
        self._ensure_valid(verb, valid and self._queues.state == QPState.RTR)
        path = self._queues.path
        path.send_psn, path.timeout, path.retry_cnt, path.rnr_retry = psn, timeout, retry_cnt, rnr_retry
        self._queues.move(QPState.RTR, QPState.RTS, verb)

    def _ensure_valid(self, verb: str, valid: bool) -> None:
        self.ensure()
        if not valid:
            raise VerbsError(verb, errno.EINVAL)

    def modify(self, attr_mask: int, ah_attr: Any = None, **fields: int) -> None:
        """Enter the error state, the one change that the `to_…` methods do not make."""
        wanted = int(attr_mask) == QPAttrMask.STATE and ah_attr is None and fields == {"qp_state": QPState.ERR}
        self._ensure_valid("ibv_modify_qp", wanted and self._queues.state != QPState.RESET)
        self._queues.fail()

    def post_send(self, wrs: SendWR | Iterable[SendWR]) -> None:
        """Queue sends."""
        self.ensure()
        self._queues.post_send([wrs] if isinstance(wrs, SendWR) else list(wrs))

    def post_recv(self, wrs: RecvWR | Iterable[RecvWR]) -> None:
        """Queue receives."""
        self.ensure()
        self._queues.post_recv([wrs] if isinstance(wrs, RecvWR) else list(wrs))

    def _shut(self) -> None:
        """Destroy it, with its completions that were not polled; the peer is not told."""
        self.closed = True
        self._queues.close()
        for used in (self.pd, self.send_cq, self.recv_cq):
            used.users.discard(id(self))
