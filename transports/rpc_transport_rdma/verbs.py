"""The seam to RDMA verbs: the names of the PyPI package `ibverbs` that this transport uses, and no others.

Belongs here: what a provider must offer, as types, with the constants of the verbs interface. Must not be here: a
provider, or the transport. The module `ibverbs` satisfies `Verbs`, and so does `rpc_transport_rdma.soft`.

What a caller may rely on, whichever provider it is:

- Constants are integers of the verbs interface; the enumerations below name them and compare equal to a provider's.
- A call that fails raises the provider's `VerbsError`, an `OSError` with `errno` set: ENOMEM for a full queue and for
  memory that may not be locked, EINVAL for a call that the state of the queue pair forbids, EBUSY for closing what
  something still uses, EBADF for using what is closed.
- Only the sending and receiving of work requests, `poll`, `req_notify` and `get_cq_event` belong into a running
  transfer. Any thread may call them; two threads must not poll one completion queue at the same time.
- Registered memory stays the caller's: it must live until `MR.close()` returned, and a posted buffer may not be
  changed (send) or read (receive) before its completion was polled.
- One receive is consumed by one send, never more, never less; a send larger than the receive kills both queue pairs.
- A queue slot comes back when its completion was polled (an unsignaled send's: when a later signaled one was).
- After one completion with an error, all further ones of that queue pair are `WR_FLUSH_ERR`.
- A peer that has gone is told to the sender alone, as `RETRY_EXC_ERR`; who only waits to receive is never told.
- `req_notify` arms one event for the next *new* completion: poll once more after it, then wait for the channel's `fd`.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterable, Mapping
from enum import IntEnum, IntFlag
from typing import Any, Protocol, cast


class AccessFlags(IntFlag):
    """What may be done to a registered region. A region that receives needs `LOCAL_WRITE`."""

    LOCAL_READ = 0
    LOCAL_WRITE = 1


class QPType(IntEnum):
    """Kinds of queue pairs; only the reliable connection is used."""

    RC = 2


class QPState(IntEnum):
    """States of a queue pair."""

    RESET = 0
    INIT = 1
    RTR = 2
    RTS = 3
    SQD = 4
    SQE = 5
    ERR = 6
    UNKNOWN = 7


class QPAttrMask(IntFlag):
    """Which attribute `QP.modify` applies; only the state is used."""

    STATE = 1


class WROpcode(IntEnum):
    """What a send work request asks for."""

    SEND = 2
    SEND_WITH_IMM = 3


class SendFlags(IntFlag):
    """How a send work request behaves."""

    FENCE = 1
    SIGNALED = 2
    SOLICITED = 4
    INLINE = 8


class WCStatus(IntEnum):
    """How a work request ended."""

    SUCCESS = 0
    LOC_LEN_ERR = 1
    LOC_QP_OP_ERR = 2
    LOC_EEC_OP_ERR = 3
    LOC_PROT_ERR = 4
    WR_FLUSH_ERR = 5
    MW_BIND_ERR = 6
    BAD_RESP_ERR = 7
    LOC_ACCESS_ERR = 8
    REM_INV_REQ_ERR = 9
    REM_ACCESS_ERR = 10
    REM_OP_ERR = 11
    RETRY_EXC_ERR = 12
    RNR_RETRY_EXC_ERR = 13
    LOC_RDD_VIOL_ERR = 14
    REM_INV_RD_REQ_ERR = 15
    REM_ABORT_ERR = 16
    INV_EECN_ERR = 17
    INV_EEC_STATE_ERR = 18
    FATAL_ERR = 19
    RESP_TIMEOUT_ERR = 20
    GENERAL_ERR = 21
    TM_ERR = 22
    TM_RNDV_INCOMPLETE = 23


class WCOpcode(IntEnum):
    """What kind of work request ended. Undefined in a completion with an error."""

    SEND = 0
    RECV = 128


class WCFlags(IntFlag):
    """What a completion carries."""

    WITH_IMM = 2


class MTU(IntEnum):
    """Sizes of a path's packets."""

    MTU_256 = 1
    MTU_512 = 2
    MTU_1024 = 3
    MTU_2048 = 4
    MTU_4096 = 5


class PortState(IntEnum):
    """States of a port; only an active one carries anything."""

    NOP = 0
    DOWN = 1
    INIT = 2
    ARMED = 3
    ACTIVE = 4
    ACTIVE_DEFER = 5


class Gid(Protocol):
    """A global address: 16 bytes."""

    @property
    def raw(self) -> bytes: ...


class PortAttr(Protocol):
    """What a port says of itself."""

    @property
    def state(self) -> int: ...
    @property
    def active_mtu(self) -> int: ...
    @property
    def gid_tbl_len(self) -> int: ...
    @property
    def max_msg_sz(self) -> int: ...
    @property
    def lid(self) -> int: ...


class Resource(Protocol):
    """Something of the device. Close in the opposite order of creation; dropping the last reference closes too."""

    def close(self) -> None: ...


class CompletionChannel(Resource, Protocol):
    """Tells of completions. `fd` is readable while events wait; made non-blocking, it gives EAGAIN, not a wait."""

    @property
    def fd(self) -> int: ...
    def get_cq_event(self) -> CompletionQueue: ...


class WorkCompletion(Protocol):
    """The end of one work request. Beside `wr_id`, `status` and `qp_num`, nothing is defined when it failed."""

    @property
    def wr_id(self) -> int: ...
    @property
    def status(self) -> int: ...
    @property
    def opcode(self) -> int: ...
    @property
    def byte_len(self) -> int: ...
    @property
    def imm_data(self) -> int: ...
    @property
    def qp_num(self) -> int: ...
    @property
    def wc_flags(self) -> int: ...
    @property
    def vendor_err(self) -> int: ...


class CompletionQueue(Resource, Protocol):
    """Where completions are polled."""

    @property
    def cqe(self) -> int: ...
    def poll(self, num_entries: int) -> list[Any]: ...
    def req_notify(self, solicited_only: bool = False) -> None: ...
    def ack_events(self, nevents: int = 1) -> None: ...


class MemoryRegion(Resource, Protocol):
    """Registered memory."""

    @property
    def addr(self) -> int: ...
    @property
    def length(self) -> int: ...
    @property
    def lkey(self) -> int: ...


class QueuePair(Resource, Protocol):
    """A reliable connection. RESET, `to_init`, post receives, `to_rtr`, `to_rts`, post sends."""

    @property
    def qp_num(self) -> int: ...
    @property
    def state(self) -> int: ...
    def to_init(self, port: int, access: int = 0) -> None: ...
    def to_rtr(self, remote: Any, sgid_index: int, mtu: int | None = None, *, min_rnr_timer: int = 12) -> None: ...
    def to_rts(self, psn: int, timeout: int = 14, retry_cnt: int = 7, rnr_retry: int = 7) -> None: ...
    def modify(self, attr_mask: int, ah_attr: Any = None, **fields: int) -> None: ...
    def post_send(self, wrs: Any) -> None: ...
    def post_recv(self, wrs: Any) -> None: ...


class ProtectionDomain(Resource, Protocol):
    """Holds regions and queue pairs that may work with each other."""

    def reg_mr(self, addr: int, length: int, access: int) -> MemoryRegion: ...
    def create_qp(self, init_attr: Any) -> QueuePair: ...


class Context(Resource, Protocol):
    """An open device."""

    def query_port(self, port_num: int) -> PortAttr: ...
    def query_gid(self, port_num: int, index: int) -> Gid: ...
    def alloc_pd(self) -> ProtectionDomain: ...
    def create_comp_channel(self) -> CompletionChannel: ...
    def create_cq(self, cqe: int, channel: Any = None) -> CompletionQueue: ...


class Device(Protocol):
    """A device that can be opened."""

    @property
    def name(self) -> str: ...
    def open(self) -> Context: ...


class PeerInfo(Protocol):
    """What a peer needs in order to connect to a queue pair; 28 bytes as text of the wire."""

    @property
    def qp_num(self) -> int: ...
    @property
    def psn(self) -> int: ...
    @property
    def lid(self) -> int: ...
    @property
    def gid(self) -> bytes: ...
    @property
    def port(self) -> int: ...
    @property
    def mtu(self) -> int: ...
    def to_bytes(self) -> bytes: ...


class PeerInfoType(Protocol):
    """The class of `PeerInfo`. Both methods raise ValueError for values out of range."""

    def __call__(self, qp_num: int, psn: int, lid: int, gid: bytes, port: int, mtu: int) -> PeerInfo: ...
    def from_bytes(self, data: bytes) -> PeerInfo: ...


class QPInitAttrType(Protocol):
    """Makes the parameters of `create_qp`. Depths are what was asked for, or more."""

    def __call__(
        self,
        send_cq: Any,
        recv_cq: Any,
        qp_type: int = 2,
        max_send_wr: int = 128,
        max_recv_wr: int = 128,
        max_send_sge: int = 1,
        max_recv_sge: int = 1,
        max_inline_data: int = 0,
        srq: None = None,
        sq_sig_all: bool = False,
    ) -> Any: ...


class SGEType(Protocol):
    """Makes a piece of registered memory: of a region at an offset, or an address with its region's key.

    Raises ValueError when the piece does not lie inside the region.
    """

    def __call__(self, target: Any, length: int, lkey: int = 0, offset: int = 0) -> Any: ...


class SendWRType(Protocol):
    """Makes a send work request. The package's own default of `opcode` is not SEND: always name it."""

    def __call__(
        self,
        wr_id: int = 0,
        sg_list: Iterable[Any] | None = None,
        opcode: int = 0,
        send_flags: int = 0,
        *,
        imm_data: int = 0,
    ) -> Any: ...


class RecvWRType(Protocol):
    """Makes a receive work request."""

    def __call__(self, wr_id: int = 0, sg_list: Iterable[Any] | None = None) -> Any: ...


class LocalInfo(Protocol):
    """Describes a queue pair for its peer. `psn` is what `to_rts` will be given; choose it at random (24 bits)."""

    def __call__(self, qp: Any, port_attr: Any, gid: Any, *, port: int, psn: int = 0) -> PeerInfo: ...


class ListDevices(Protocol):
    """Lists the devices: none is an empty list, or a VerbsError (ENOSYS) where the kernel has no RDMA at all."""

    def __call__(self) -> list[Any]: ...


class Verbs(Protocol):
    """A provider: a module or an object with these names."""

    @property
    def get_device_list(self) -> ListDevices: ...
    @property
    def local_qp_info(self) -> LocalInfo: ...
    @property
    def QPInfo(self) -> PeerInfoType: ...
    @property
    def QPInitAttr(self) -> QPInitAttrType: ...
    @property
    def SGE(self) -> SGEType: ...
    @property
    def SendWR(self) -> SendWRType: ...
    @property
    def RecvWR(self) -> RecvWRType: ...
    @property
    def VerbsError(self) -> type[OSError]: ...


def load_provider(name: str, options: Mapping[str, str] | None = None) -> Verbs:
    """Return a provider: "verbs", the package `ibverbs`, or "soft", the software model with these options.

    Raises:
        ImportError: the package, or the system's libibverbs that it needs, is missing.
        ValueError: no such provider, or an option that it does not have.
    """
    if name == "soft":
        from rpc_transport_rdma.soft import SoftOptions, SoftVerbs

        return SoftVerbs(SoftOptions.parse(options or {}))
    if name != "verbs":
        raise ValueError(f"unknown provider {name!r}; known: verbs, soft")
    if options:
        raise ValueError(f"the provider 'verbs' has no option {next(iter(options))!r}")
    return cast("Verbs", importlib.import_module("ibverbs"))
