"""Buffers by handle, and whose they are.

Belongs here: the table of live buffers. Must not be here: memory counts (`memory`), or what commands do
to a buffer.

A handle is a number that the worker gives once and never again, so it is its own generation: a freed
handle can never come to mean a newer buffer.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass

from rpc_backend.errors import HandleError
from rpc_backend.interfaces import Buffer


@dataclass(frozen=True, slots=True)
class HeldBuffer:
    """A live buffer. `base` is its first address in the flat space of its session."""

    handle: int
    session: bytes
    device: int
    buffer: Buffer
    base: int


class HandleTable:
    """All live buffers of a worker. Any thread may call it."""

    _BASE_STEP = 1 << 16  # a gap between neighbours, so that an overrun is never another buffer's address

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._held: dict[int, HeldBuffer] = {}
        self._next_handle = 1
        self._next_base = self._BASE_STEP

    def __len__(self) -> int:
        return len(self._held)

    def add(self, session: bytes, device: int, buffer: Buffer) -> HeldBuffer:
        """Enter a buffer under a new handle."""
        with self._lock:
            held = HeldBuffer(self._next_handle, session, device, buffer, self._next_base)
            self._held[held.handle] = held
            self._next_handle += 1
            self._next_base += (buffer.nbytes // self._BASE_STEP + 2) * self._BASE_STEP
        return held

    def find(self, session: bytes, handle: int) -> HeldBuffer:
        """Return a buffer of `session`.

        Raises:
            HandleError: it was freed, was never given, or belongs to another session.
        """
        with self._lock:
            held = self._held.get(handle)
            if held is None:
                raise HandleError(f"buffer {handle} {self._why_missing(handle)}")
        if held.session != session:
            raise HandleError(f"buffer {handle} belongs to another session; a session may use its own buffers only")
        return held

    def remove(self, held: HeldBuffer) -> None:
        """Take a buffer out of the table."""
        with self._lock:
            del self._held[held.handle]

    def of_session(self, session: bytes, device: int) -> list[HeldBuffer]:
        """Return what a session holds on a device."""
        with self._lock:
            return [held for held in self._held.values() if held.session == session and held.device == device]

    def _why_missing(self, handle: int) -> str:
        return "was freed" if 0 < handle < self._next_handle else "is not known here; it was never allocated"
