"""A TCP connection as a stream of requests.

Belongs here: reading and writing bytes, and how long that may take. Must not be here: what the bytes mean.
"""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Sequence

STALL_LIMIT_S = 60.0
"""How long a client may leave a message unfinished, or its answers unread."""

_BUFFER_NBYTES = 1 << 16
_KEEPALIVE = {"TCP_KEEPIDLE": 10, "TCP_KEEPINTVL": 5, "TCP_KEEPCNT": 3}


class Stopped(Exception):
    """The other side stopped in the middle of a message."""


class SocketStream:
    """Buffered reads and whole writes. Used by one thread, but for `abort`."""

    def __init__(self, connection: socket.socket, stall_limit_s: float) -> None:
        """Take over a connected socket; `stall_limit_s` is how long one read or write may wait."""
        self._socket = connection
        self._buffer = memoryview(bytearray(_BUFFER_NBYTES))
        self._start = self._end = 0
        connection.settimeout(stall_limit_s)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for name, value in _KEEPALIVE.items():
            if hasattr(socket, name):  # not on every system
                connection.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)

    def wait_message(self) -> bool:
        """Return True when a message begins, however long that takes, and False when the other side is done."""
        while self._end == self._start:
            try:
                return self._fill() > 0
            except TimeoutError:
                continue
        return True

    def read(self, nbytes: int) -> memoryview:
        """Return the next bytes, at most 64 KiB, valid until the next call. Raises Stopped: there are fewer."""
        if self._end - self._start < nbytes:
            self._compact()
            while self._end - self._start < nbytes:
                self._must_fill()
        start, self._start = self._start, self._start + nbytes
        return self._buffer[start : self._start]

    def read_into(self, out: memoryview) -> None:
        """Fill `out`. Raises Stopped: there are fewer bytes."""
        taken = min(self._end - self._start, out.nbytes)
        out[:taken] = self._buffer[self._start : self._start + taken]
        self._start += taken
        while taken < out.nbytes:
            try:
                received = self._socket.recv_into(out[taken:])
            except TimeoutError as error:
                raise Stopped from error
            if not received:
                raise Stopped
            taken += received

    def write(self, parts: Sequence[bytes | memoryview]) -> None:
        """Send all bytes. Raises OSError, and TimeoutError if nobody reads them."""
        nbytes = sum(len(part) for part in parts)
        if nbytes <= _BUFFER_NBYTES:
            self._socket.sendall(b"".join(parts))
            return
        for part in parts:
            self._socket.sendall(part)

    def limit(self, stall_limit_s: float) -> None:
        """Set how long one read or write may wait from now on."""
        self._socket.settimeout(stall_limit_s)

    def abort(self) -> None:
        """End all reads and writes. Any thread may call it; never raises."""
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Close the socket. Never raises."""
        with contextlib.suppress(OSError):
            self._socket.close()

    def _compact(self) -> None:
        kept = self._end - self._start
        self._buffer[:kept] = self._buffer[self._start : self._end]
        self._start, self._end = 0, kept

    def _must_fill(self) -> None:
        try:
            if not self._fill():
                raise Stopped
        except TimeoutError as error:
            raise Stopped from error

    def _fill(self) -> int:
        if self._start == self._end:
            self._start = self._end = 0
        received = self._socket.recv_into(self._buffer[self._end :])
        self._end += received
        return received
