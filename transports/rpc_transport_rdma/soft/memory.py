"""Registered memory: regions with their keys, the limit on locked pages, and memory that a peer may map.

Belongs here: whether a piece of memory may be touched, and the touching of it. Must not be here: queues, sockets.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import itertools
import mmap
import os
import random
import select
import weakref

import numpy as np

from rpc_transport_rdma.soft.values import SGE, VerbsError
from rpc_transport_rdma.verbs import AccessFlags

_PAGE = mmap.PAGESIZE
_SEALS = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW
_numbers = itertools.count(1)
copy_bytes = ctypes.memmove  # (destination address, source address, nbytes), without the interpreter's lock


class SharedMemory(mmap.mmap):
    """Anonymous memory of which peers may map the same pages; it goes with the last process that holds it."""

    fd: int
    number: int
    address: int

    def __new__(cls, nbytes: int) -> SharedMemory:
        """Make `nbytes` bytes of zeros."""
        fd = os.memfd_create("rpc-soft-verbs", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        try:
            os.ftruncate(fd, nbytes)
            fcntl.fcntl(fd, fcntl.F_ADD_SEALS, _SEALS)
            made = super().__new__(cls, fd, nbytes)
        except BaseException:
            os.close(fd)
            raise
        made.fd, made.number, made.address = fd, next(_numbers), address_of(made)
        weakref.finalize(made, os.close, fd)
        return made


class MappedMemory:
    """Memory of a peer, mapped to be read."""

    def __init__(self, fd: int, nbytes: int) -> None:
        """Map the memory behind `fd`, which stays the caller's.

        Raises:
            ValueError: its owner could still shrink it, or it is smaller than `nbytes`.
        """
        if fcntl.fcntl(fd, fcntl.F_GET_SEALS) & _SEALS != _SEALS or os.fstat(fd).st_size < nbytes or nbytes <= 0:
            raise ValueError("a peer passed memory that may not be mapped")
        self.nbytes = nbytes
        self._map = mmap.mmap(fd, nbytes, mmap.MAP_SHARED, mmap.PROT_READ)
        self.address = address_of(self._map)


def address_of(memory: mmap.mmap) -> int:
    """Return where a map lies. It must not be closed while the address is used."""
    return int(np.frombuffer(memory, np.uint8).ctypes.data)


def pages_nbytes(addr: int, nbytes: int) -> int:
    """Return the bytes of all pages that a piece of memory touches."""
    first, last = addr // _PAGE, (addr + nbytes - 1) // _PAGE
    return (last - first + 1) * _PAGE


class LockedPages:
    """Counts locked pages against a limit, as the kernel does for RLIMIT_MEMLOCK."""

    def __init__(self, most_nbytes: int | None) -> None:
        self._most, self._regions = most_nbytes, dict[int, int]()

    def take(self, lkey: int, nbytes: int) -> None:
        """Count a region, or raise ENOMEM."""
        if self._most is not None and sum(self._regions.values()) + nbytes > self._most:
            raise VerbsError("ibv_reg_mr", errno.ENOMEM)
        self._regions[lkey] = nbytes

    def give_back(self, lkey: int) -> None:
        """Forget a region."""
        self._regions.pop(lkey, None)


class Region:
    """A registered piece of memory, as the device sees it."""

    __slots__ = ("addr", "alive", "busy", "lkey", "nbytes", "owner_pd", "shared", "writable")

    def __init__(self, addr: int, nbytes: int, lkey: int, owner_pd: int, writable: bool) -> None:
        self.addr, self.nbytes, self.lkey, self.owner_pd, self.writable = addr, nbytes, lkey, owner_pd, writable
        self.shared: SharedMemory | None = None
        self.alive, self.busy = True, False


class RegionTable:
    """All regions of one device context, by key. Only the device's thread copies."""

    def __init__(self, locked: LockedPages) -> None:
        self._locked, self._regions = locked, dict[int, Region]()

    def add(self, addr: int, nbytes: int, owner_pd: int, access: int, shared: SharedMemory | None) -> Region:
        """Register memory under a new random key, or raise ENOMEM."""
        lkey = random.randrange(1, 1 << 32)
        while lkey in self._regions:
            lkey = random.randrange(1, 1 << 32)
        self._locked.take(lkey, pages_nbytes(addr, nbytes))
        region = Region(addr, nbytes, lkey, owner_pd, bool(access & AccessFlags.LOCAL_WRITE))
        region.shared = shared
        self._regions[lkey] = region
        return region

    def remove(self, region: Region) -> None:
        """Forget a region and wait until the device has its hands off it. Takes no lock: finalizers call it."""
        region.alive = False
        self._regions.pop(region.lkey, None)
        self._locked.give_back(region.lkey)
        while region.busy:
            select.select((), (), (), 0)  # lets the device's thread run

    def find(self, piece: SGE, owner_pd: int, writing: bool) -> Region | None:
        """Return the region that permits the access, if any."""
        region = self._regions.get(piece.lkey)
        if region is None or region.owner_pd != owner_pd or (writing and not region.writable):
            return None
        inside = region.addr <= piece.addr and piece.addr + piece.length <= region.addr + region.nbytes
        return region if inside else None


def copy_in(region: Region, addr: int, source: int, nbytes: int) -> bool:
    """Write into a region; False when it was deregistered meanwhile."""
    return _copy(region, addr, source, nbytes)


def copy_out(region: Region, addr: int, destination: int, nbytes: int) -> bool:
    """Read from a region; False when it was deregistered meanwhile."""
    return _copy(region, destination, addr, nbytes)


def _copy(region: Region, target: int, source: int, nbytes: int) -> bool:
    region.busy = True
    try:
        if region.alive:
            copy_bytes(target, source, nbytes)
        return region.alive
    finally:
        region.busy = False


def view(addr: int, nbytes: int) -> memoryview:
    """Return memory at an address as bytes that can be sent or received into."""
    return memoryview((ctypes.c_char * nbytes).from_address(addr)).cast("B")
