"""A provider of the verbs seam whose device is software.

Belongs here: the names of the seam as one object, and memory that peers may map. Must not be here: what they do.
"""

from __future__ import annotations

import weakref

from rpc_transport_rdma.soft.memory import LockedPages, SharedMemory
from rpc_transport_rdma.soft.options import SoftOptions
from rpc_transport_rdma.soft.resources import Device
from rpc_transport_rdma.soft.values import SGE, QPInfo, QPInitAttr, RecvWR, SendWR, VerbsError, local_qp_info

_DEVICE_NAME = "soft0"


class SoftVerbs:
    """The names of `verbs.Verbs`, with one device that `options` describe."""

    QPInfo = QPInfo
    QPInitAttr = QPInitAttr
    SGE = SGE
    SendWR = SendWR
    RecvWR = RecvWR
    VerbsError = VerbsError
    local_qp_info = staticmethod(local_qp_info)

    def __init__(self, options: SoftOptions | None = None) -> None:
        self.options = options or SoftOptions()
        self._locked = LockedPages(self.options.memlock_nbytes)
        self._shared: weakref.WeakSet[SharedMemory] = weakref.WeakSet()

    def get_device_list(self) -> list[Device]:
        """Return the one device."""
        return [Device(_DEVICE_NAME, self.options, self._locked, self._find_shared)]

    def alloc(self, nbytes: int) -> SharedMemory:
        """Return writable memory, zeroed and aligned to pages, that is sent with one copy less between processes."""
        made = SharedMemory(nbytes)
        self._shared.add(made)
        return made

    def _find_shared(self, addr: int, nbytes: int) -> SharedMemory | None:
        """Return the memory of `alloc` in which a region lies, if any."""
        for memory in list(self._shared):
            if not memory.closed and memory.address <= addr and addr + nbytes <= memory.address + len(memory):
                return memory
        return None
