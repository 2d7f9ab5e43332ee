"""The memory that plans and kernels share: where each number lies.

Belongs here: positions in the blocks of int64 words that both sides read. Must not be here: numba, or the code
that fills (`arguments`) or reads (`kernels.access`) the blocks.
"""

from __future__ import annotations

WORD = 8
CACHE_LINE = 64

# An argument block: what one row of a plan's table gives its kernel.
NODE = 0
"""Position of the node in its graph, for error reports."""
ERROR = 1
"""Address of the plan's error block."""
TENSORS = 2
"""First word of the first tensor: the result, then up to four sources."""
TENSOR_WORDS = 10
"""Of each tensor: address, four extents, four strides in bytes, element type."""
ADDRESS, EXTENT, STRIDE, TYPE = 0, 1, 5, 9
MAX_TENSORS = 5
PARAMS = TENSORS + MAX_TENSORS * TENSOR_WORDS
"""First word of the kernel's own parameters: int64, or a float64's bits."""
MAX_PARAMS = 24
ARGUMENT_WORDS = PARAMS + MAX_PARAMS

# A row of a plan's table.
ROW_KERNEL, ROW_ARGUMENTS, ROW_WAITS, ROW_WORDS = 0, 1, 2, 3

# A plan's error block; the first word is 0 while all is well, else the failing node plus 1.
ERROR_NODE, ERROR_INDEX, ERROR_LIMIT, ERROR_WORDS = 0, 1, 2, 4

# The state of a set of compute threads, each counter on a cache line of its own.
ARRIVED, GENERATION, JOB = 0, 8, 16
JOB_TABLE, JOB_ROWS, JOB_STOP = JOB, JOB + 1, JOB + 2
CALLS = 24
CALL_WAIT, CALL_POST = CALLS, CALLS + 1
SEMAPHORES = 32
SEMAPHORE_WORDS = 8
ASLEEP, NAPS = 6, 7
"""Words of a thread behind its semaphore: 1 while it sleeps until others come; how many waits ended so in a row."""


def state_words(n_threads: int) -> int:
    """Return the words of the state of `n_threads` compute threads."""
    return SEMAPHORES + SEMAPHORE_WORDS * n_threads
