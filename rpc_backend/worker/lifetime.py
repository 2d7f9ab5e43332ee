"""The end of a worker whose parent is gone.

Belongs here: what watches the parent. Must not be here: what happens then.
"""

from __future__ import annotations

import contextlib
import os
import sys
import threading
from collections.abc import Callable

_CHUNK_NBYTES = 4096


def watch_stdin(callback: Callable[[], None]) -> threading.Thread:
    """Call `callback` once, from a thread of its own, when standard input closes.

    A parent keeps a pipe to the standard input of its child; the pipe closes when the parent ends in any
    way, kill -9 included.
    """
    descriptor = sys.stdin.fileno()
    thread = threading.Thread(target=_wait_for_end, args=(descriptor, callback), name="stdin-watch", daemon=True)
    thread.start()
    return thread


def _wait_for_end(descriptor: int, callback: Callable[[], None]) -> None:
    # A descriptor that cannot be read any more has ended as well.
    with contextlib.suppress(OSError):
        while os.read(descriptor, _CHUNK_NBYTES):
            continue
    callback()
