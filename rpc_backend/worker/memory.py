"""How much memory of a device sessions may take, and have taken.

Belongs here: the count and the cap. Must not be here: buffers (`handles`), or who owns them.
"""

from __future__ import annotations

import threading

from rpc_backend.errors import ConfigError, LimitError, OutOfMemoryError
from rpc_backend.interfaces import Device, Memory


class MemoryAccount:
    """The memory of one device that all sessions together may use, in bytes. Any thread may call it."""

    def __init__(self, device: Device, cap_nbytes: int | None) -> None:
        """Open the account.

        Raises:
            ConfigError: the cap is negative or above what the device has.
        """
        physical = device.memory().total_nbytes
        if cap_nbytes is not None and not 0 <= cap_nbytes <= physical:
            raise ConfigError(
                f"a memory cap of {cap_nbytes} bytes does not fit device {device.info.name} of {physical} bytes; "
                f"choose one from 0 to {physical}"
            )
        self._device = device
        self._cap_nbytes = cap_nbytes
        self._used_nbytes = 0
        self._retained_nbytes = 0
        self._lock = threading.Lock()

    @property
    def used_nbytes(self) -> int:
        return self._used_nbytes

    def memory(self) -> Memory:
        """Return free and total memory: the total is the cap if there is one.

        Memory that a session allocated counts as used even where the device has not touched it yet; what is only
        retained counts as free.
        """
        free_nbytes, total_nbytes = self._available()
        return Memory(free_nbytes + self._retained_nbytes, total_nbytes)

    def _available(self) -> Memory:
        physical = self._device.memory()
        total = physical.total_nbytes if self._cap_nbytes is None else self._cap_nbytes
        return Memory(max(0, min(total - self._used_nbytes, physical.free_nbytes)), total)

    def reserve(self, nbytes: int) -> None:
        """Take `nbytes` out of the account; 0 is allowed.

        Raises:
            LimitError: a negative size, or one above the largest buffer of the device.
            OutOfMemoryError: more than is free without what is retained, with both figures.
        """
        name, largest = self._device.info.name, self._device.info.max_buffer_nbytes
        if nbytes < 0:
            raise LimitError(f"a buffer cannot have {nbytes} bytes; ask for 0 or more")
        if nbytes > largest:
            raise LimitError(f"a buffer of {nbytes} bytes is above the {largest} that device {name} can address")
        with self._lock:
            free_nbytes, total_nbytes = self._available()
            if nbytes > free_nbytes:
                raise OutOfMemoryError(
                    f"a buffer of {nbytes} bytes does not fit device {name}: {free_nbytes} of {total_nbytes} are free"
                )
            self._used_nbytes += nbytes

    def retain(self, nbytes: int) -> None:
        """Note that nobody needs a part of what `reserve` took; it is released when it must be."""
        with self._lock:
            self._retained_nbytes += nbytes

    def release(self, nbytes: int, *, retained: bool = False) -> None:
        """Put back what `reserve` took, and, with `retained`, what `retain` noted."""
        with self._lock:
            self._used_nbytes -= nbytes
            self._retained_nbytes -= nbytes if retained else 0
