"""Memory for payloads that come over a link, used again once nobody holds the payload any more.

Belongs here: handing out and taking back. Must not be here: what is written there.

The kernel clears each page of fresh memory before its first use: for payloads of many megabytes that costs as much as
two copies.
"""

from __future__ import annotations

import weakref
from collections import deque

import numpy as np
from numpy.typing import NDArray

from rpc_backend.errors import ChannelError

POOLED_FROM_NBYTES = 256 * 1024
MOST_IDLE_NBYTES = 64 << 20
_MOST_WASTE = 2


class PayloadMemory:
    """`take` is for one thread; what it gave may be dropped by any. At most `MOST_IDLE_NBYTES` are kept unused."""

    def __init__(self) -> None:
        self._returned: deque[NDArray[np.uint8]] = deque()  # appended to by whichever thread drops a payload
        self._idle: deque[NDArray[np.uint8]] = deque()  # the longest unused first

    def take(self, nbytes: int) -> memoryview:
        """Return memory that is not cleared.

        Raises:
            ChannelError: there is not enough.
        """
        try:
            if nbytes < POOLED_FROM_NBYTES:
                return np.empty(nbytes, np.uint8).data
            block = self._reuse(nbytes)
            lent = (np.empty(nbytes, np.uint8) if block is None else block)[:nbytes]
        except MemoryError as error:
            raise ChannelError(f"no memory for a payload of {nbytes} bytes") from error
        assert isinstance(lent.base, np.ndarray), "a slice has the block as its base"
        weakref.finalize(lent, self._returned.append, lent.base).atexit = False
        return lent.data

    def _reuse(self, nbytes: int) -> NDArray[np.uint8] | None:
        while self._returned:
            self._idle.append(self._returned.popleft())
        fitting = [block for block in self._idle if nbytes <= block.nbytes <= _MOST_WASTE * nbytes]
        best = min(fitting, key=lambda block: block.nbytes, default=None)
        self._idle = deque(block for block in self._idle if block is not best)
        while sum(block.nbytes for block in self._idle) > MOST_IDLE_NBYTES:
            self._idle.popleft()
        return best
