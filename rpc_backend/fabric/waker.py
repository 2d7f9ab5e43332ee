"""Wakes an I/O thread out of its poll, from any thread.

Belongs here: the pair of sockets and the flag that saves writes. Must not be here: what the thread does then.
"""

from __future__ import annotations

import contextlib
import socket


class Waker:
    """`wake` after putting work where the I/O thread looks; the thread calls `clear` before it looks.

    Nothing is lost: work that was put before a `wake` is seen by the look after the next `clear`.
    """

    def __init__(self) -> None:
        self._reader, self._writer = socket.socketpair()
        self._reader.setblocking(False)
        self._writer.setblocking(False)
        self._is_set = False

    def fileno(self) -> int:
        """The descriptor that turns readable."""
        return self._reader.fileno()

    def wake(self) -> None:
        """Make the descriptor readable. Never raises, also after `close`."""
        if self._is_set:
            return
        self._is_set = True
        with contextlib.suppress(OSError):  # full: it is readable already; closed: nobody to wake
            self._writer.send(b"\0")

    def clear(self) -> None:
        """Make the descriptor unreadable again."""
        with contextlib.suppress(BlockingIOError):
            self._reader.recv(4096)
        # Only now: the other order can take the byte of a wake that came between and leave the flag set for ever.
        self._is_set = False

    def close(self) -> None:
        """Close both ends."""
        self._reader.close()
        self._writer.close()
