"""The plain records of the verbs API: work requests, completions, addresses, errors.

Belongs here: what holds values. Must not be here: anything that does something with a device.
"""

from __future__ import annotations

import errno as errno_codes
import os
import struct
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from rpc_transport_rdma.verbs import MTU, PortState, QPType, WCOpcode, WCStatus, WROpcode

if TYPE_CHECKING:
    from rpc_transport_rdma.soft.completions import CQ

_MOST_U16, _MOST_U24, _MOST_U32, _MOST_U64 = (1 << 16) - 1, (1 << 24) - 1, (1 << 32) - 1, (1 << 64) - 1
GID_NBYTES = 16
MAX_MESSAGE_NBYTES = 1 << 30


class VerbsError(OSError):
    """A verb failed; `errno` says how, `operation` which."""

    def __init__(self, operation: str, err: int, detail: str | None = None) -> None:
        self.operation = operation
        super().__init__(err, detail or f"{operation} failed: {os.strerror(err)}")


class CompletionError(VerbsError):
    """A work request failed; raised by `WC.raise_for_status`."""

    def __init__(self, wc: WC) -> None:
        self.wc, self.status, self.vendor_err = wc, wc.status, wc.vendor_err
        super().__init__("work completion", errno_codes.EIO, f"work completion failed: {wc.status_str}")


class Gid:
    """A global address of 16 bytes."""

    __slots__ = ("raw",)

    def __init__(self, raw: bytes) -> None:
        if len(raw) != GID_NBYTES:
            raise ValueError(f"a gid has {GID_NBYTES} bytes, not {len(raw)}")
        self.raw = raw

    def __bytes__(self) -> bytes:
        return self.raw


@dataclass(frozen=True)
class PortAttr:
    """What the one port of a software device says of itself. `lid` is its TCP port, if it has one."""

    lid: int
    state: int = PortState.ACTIVE
    max_mtu: int = MTU.MTU_4096
    active_mtu: int = MTU.MTU_4096
    gid_tbl_len: int = 1
    max_msg_sz: int = MAX_MESSAGE_NBYTES


@dataclass(frozen=True)
class QPInfo:
    """What a peer needs in order to connect to a queue pair: 28 bytes on the wire."""

    qp_num: int
    psn: int
    lid: int
    gid: bytes
    port: int
    mtu: int

    _LAYOUT: ClassVar[struct.Struct] = struct.Struct("!IIH16sBB")

    def __post_init__(self) -> None:
        if len(self.gid) != GID_NBYTES:
            raise ValueError(f"gid has {GID_NBYTES} bytes, not {len(self.gid)}")
        bounds = {
            "qp_num": (0, _MOST_U24),
            "psn": (0, _MOST_U24),
            "lid": (0, _MOST_U16),
            "port": (1, 255),
            "mtu": (1, 5),
        }
        for name, (least, most) in bounds.items():
            if not least <= getattr(self, name) <= most:
                raise ValueError(f"{name} is {least} to {most}, not {getattr(self, name)}")

    def to_bytes(self) -> bytes:
        """Return the wire form."""
        return self._LAYOUT.pack(self.qp_num, self.psn, self.lid, self.gid, self.port, self.mtu)

    @classmethod
    def from_bytes(cls, data: bytes) -> QPInfo:
        """Read the wire form; ValueError when it is none."""
        if len(data) != cls._LAYOUT.size:
            raise ValueError(f"the description of a queue pair has {cls._LAYOUT.size} bytes, not {len(data)}")
        return cls(*cls._LAYOUT.unpack(data))


def local_qp_info(qp: Any, port_attr: Any, gid: Any, *, port: int, psn: int = 0) -> QPInfo:
    """Describe a queue pair of ours for its peer; `psn` is what its `to_rts` will be given."""
    return QPInfo(qp.qp_num, psn, port_attr.lid, bytes(gid), port, int(port_attr.active_mtu))


class WC:
    """The end of one work request."""

    __slots__ = ("byte_len", "imm_data", "opcode", "qp_num", "src_qp", "status", "vendor_err", "wc_flags", "wr_id")

    def __init__(
        self, wr_id: int, status: int, opcode: int, qp_num: int, byte_len: int = 0, imm_data: int = 0, wc_flags: int = 0
    ) -> None:
        self.wr_id, self.status, self.opcode, self.qp_num = wr_id, int(status), int(opcode), qp_num
        self.byte_len, self.imm_data, self.wc_flags = byte_len, imm_data, int(wc_flags)
        self.vendor_err = self.src_qp = 0

    @property
    def is_success(self) -> bool:
        return self.status == WCStatus.SUCCESS

    @property
    def status_str(self) -> str:
        return WCStatus(self.status).name

    def raise_for_status(self) -> None:
        """Raise CompletionError unless it succeeded."""
        if self.status != WCStatus.SUCCESS:
            raise CompletionError(self)

    def __repr__(self) -> str:
        kind = "RECV" if self.opcode == WCOpcode.RECV else "SEND"
        return f"WC({kind} wr_id={self.wr_id} {self.status_str} byte_len={self.byte_len} qp_num={self.qp_num})"


class SGE:
    """A piece of memory: of a region (`target`) at an offset, or an address with the key of its region."""

    __slots__ = ("addr", "length", "lkey", "owner")

    def __init__(self, target: Any, length: int, lkey: int = 0, offset: int = 0) -> None:
        if not 0 <= length <= _MOST_U32:
            raise ValueError("SGE length must be between 0 and 2**32 - 1")
        if offset < 0:
            raise ValueError("SGE offset must be non-negative")
        if not 0 <= lkey <= _MOST_U32:
            raise ValueError("SGE lkey must be between 0 and 2**32 - 1")
        self.length = length
        if isinstance(target, int):
            if not 0 <= target + offset <= _MOST_U64 or target < 0:
                raise ValueError("SGE address must be between 0 and 2**64 - 1")
            self.addr, self.lkey, self.owner = target + offset, lkey, None
            return
        if offset + length > target.length:
            raise ValueError("SGE range exceeds the memory region")
        self.addr, self.lkey, self.owner = target.addr + offset, lkey or target.lkey, target


class SendWR:
    """A send work request. As in the package, the default `opcode` is none that this model carries."""

    __slots__ = ("imm_data", "opcode", "send_flags", "sg_list", "wr_id")

    def __init__(
        self,
        wr_id: int = 0,
        sg_list: Iterable[SGE] | None = None,
        opcode: int = 0,
        send_flags: int = 0,
        *,
        imm_data: int = 0,
    ) -> None:
        if not 0 <= imm_data <= _MOST_U32:
            raise OverflowError(f"imm_data is a number of 32 bits, not {imm_data}")
        self.wr_id, self.sg_list = wr_id, list(sg_list or ())
        self.opcode, self.send_flags, self.imm_data = int(opcode), int(send_flags), imm_data


class RecvWR:
    """A receive work request."""

    __slots__ = ("sg_list", "wr_id")

    def __init__(self, wr_id: int = 0, sg_list: Iterable[SGE] | None = None) -> None:
        self.wr_id, self.sg_list = wr_id, list(sg_list or ())


@dataclass(frozen=True)
class QPCap:
    """Depths and limits of a queue pair: exactly what was asked for."""

    max_send_wr: int
    max_recv_wr: int
    max_send_sge: int
    max_recv_sge: int
    max_inline_data: int


@dataclass(frozen=True)
class QPInitAttr:
    """The parameters of `PD.create_qp`."""

    send_cq: CQ
    recv_cq: CQ
    qp_type: int = QPType.RC
    max_send_wr: int = 128
    max_recv_wr: int = 128
    max_send_sge: int = 1
    max_recv_sge: int = 1
    max_inline_data: int = 0
    srq: None = None
    sq_sig_all: bool = False

    @property
    def cap(self) -> QPCap:
        return QPCap(self.max_send_wr, self.max_recv_wr, self.max_send_sge, self.max_recv_sge, self.max_inline_data)


SENDS = (WROpcode.SEND, WROpcode.SEND_WITH_IMM)
