"""Registered memory, cut into slots of one chunk each.

Belongs here: allocation, registration, doing with less where it is refused. Must not be here: what is in a slot.
"""

from __future__ import annotations

import errno
import logging
import mmap
import resource
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rpc_backend.plugin_api import ConnectError
from rpc_transport_rdma.device import Adapter
from rpc_transport_rdma.verbs import AccessFlags

CHUNK_NBYTES = 256 * 1024
SEND_SLOTS = (8, 4, 2, 1)
RECEIVE_SLOTS = 24

_log = logging.getLogger(__name__)


class Slots:
    """`n` slots in one registered region; `bytes_of(i)` is the memory of one."""

    def __init__(self, adapter: Adapter, n: int, *, receives: bool) -> None:
        """Allocate and register.

        Raises:
            OSError: the provider's error; ENOMEM where the memory may not be locked.
        """
        self.n = n
        self._adapter = adapter
        # A provider that can only reach memory of its own making offers to make it.
        allocate: Callable[[int], Any] | None = getattr(adapter.verbs, "alloc", None)
        nbytes = n * CHUNK_NBYTES
        self._memory: Any = mmap.mmap(-1, nbytes) if allocate is None else allocate(nbytes)
        self._array: NDArray[np.uint8] = np.frombuffer(self._memory, np.uint8)[:nbytes]
        access = AccessFlags.LOCAL_WRITE if receives else AccessFlags.LOCAL_READ
        self.region: Any = adapter.domain.reg_mr(self._array.ctypes.data, nbytes, int(access))

    def bytes_of(self, index: int) -> NDArray[np.uint8]:
        """Return the memory of a slot."""
        return self._array[index * CHUNK_NBYTES : (index + 1) * CHUNK_NBYTES]

    def piece(self, index: int, nbytes: int = CHUNK_NBYTES) -> Any:
        """Return the first bytes of a slot as work requests name them."""
        return self._adapter.verbs.SGE(self.region, nbytes, offset=index * CHUNK_NBYTES)

    def close(self) -> None:
        """Take the registration back and let go of the memory. Raises OSError as the provider does."""
        self.region.close()
        self._array, self._memory, self.region = np.empty(0, np.uint8), None, None


def register_slots(adapter: Adapter) -> tuple[Slots, Slots]:
    """Return slots for receives, and for sends as many as are allowed.

    Raises:
        ConnectError: not even the least can be registered; the message has the limit and the remedy.
    """
    receives = _register(adapter, RECEIVE_SLOTS, receives=True)
    if receives is None:
        raise ConnectError(_too_little(RECEIVE_SLOTS + 1))
    for n in SEND_SLOTS:
        try:
            sends = _register(adapter, n, receives=False)
        except ConnectError:
            receives.close()
            raise
        if sends is not None:
            if n < SEND_SLOTS[0]:
                _log.info("rdma: the memlock limit allows %d of %d chunks under way", n, SEND_SLOTS[0])
            return receives, sends
    receives.close()
    raise ConnectError(_too_little(RECEIVE_SLOTS + 1))


def _register(adapter: Adapter, n: int, *, receives: bool) -> Slots | None:
    try:
        return Slots(adapter, n, receives=receives)
    except OSError as error:
        if error.errno == errno.ENOMEM:
            return None
        raise ConnectError(f"rdma: {adapter.name} cannot register memory: {error}") from error


def _too_little(n_slots: int) -> str:
    limit = resource.getrlimit(resource.RLIMIT_MEMLOCK)[0]
    shown = "without limit" if limit == resource.RLIM_INFINITY else f"{limit // 1024} KiB"
    return (
        f"rdma: locking {n_slots * CHUNK_NBYTES // 1024} KiB of memory for a connection was refused; the memlock limit "
        f"is {shown}, raise it (ulimit -l)"
    )
