"""Work that threads claim bit by bit, so that a slow or late one does not keep the others waiting.

Belongs here: the counters of a row and how they are used. Must not be here: what the work is.

Every thread has a share of the work, in order, as it would have without claims; it takes it unit by unit and then helps
the others with theirs. A counter lies on a cache line of its own and is 0 between runs.
"""

from __future__ import annotations

from numba import types

from rpc_backend_numba.atomics import atomic_add, atomic_store
from rpc_backend_numba.layout import CACHE_LINE
from rpc_backend_numba.simd import helper

_I64 = types.int64


@helper
def claim(counters, owner, n_units, nth):
    """Return the next unit of a thread's share that nobody has, `n_units` if there is none.

    Each of the `nth` threads must ask for the units of each owner until there is none: the last one that is told so
    makes the counter ready for the next run.
    """
    place = counters + owner * CACHE_LINE
    unit = atomic_add(place, _I64(1))
    if unit == n_units + nth - 1:
        atomic_store(place, _I64(0))
    return min(unit, n_units)
