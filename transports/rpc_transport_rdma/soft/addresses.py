"""Where the devices of this model listen and how a global address leads there.

Belongs here: listeners, connecting, and who may. Must not be here: what they say to each other.

A device without an IP address listens on an abstract Unix socket named after its random GID, which only processes of
the same user may use. One with an address listens on TCP: its GID is the address, its LID the port.
"""

from __future__ import annotations

import os
import secrets
import socket
import struct
from ipaddress import IPv6Address, ip_address

LOCAL_PREFIX = b"\xfd" + b"softverb"  # of the addresses that are private to an organisation
_MAPPED_PREFIX = b"\0" * 10 + b"\xff\xff"
_BACKLOG = 64
_BUFFER_NBYTES = 1 << 20
_CREDENTIALS = struct.Struct("3i")


def listen(address: str) -> tuple[socket.socket, bytes, int]:
    """Return a listener, its GID and its LID.

    Raises:
        OSError: the address is none of this machine.
    """
    if address:
        family = socket.AF_INET6 if ip_address(address).version == 6 else socket.AF_INET
        listener = socket.create_server((address, 0), family=family, backlog=_BACKLOG)
        gid, lid = gid_of(address), int(listener.getsockname()[1])
    else:
        gid, lid = LOCAL_PREFIX + secrets.token_bytes(16 - len(LOCAL_PREFIX)), 0
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            listener.bind(_unix_name(gid))
            listener.listen(_BACKLOG)
        except OSError:
            listener.close()
            raise
    listener.setblocking(False)
    return listener, gid, lid


def start_connecting(gid: bytes, lid: int) -> socket.socket | None:
    """Return a socket that is, or will be, connected to a device; None when there is nobody or nobody we may trust."""
    local = is_local(gid)
    mapped = gid.startswith(_MAPPED_PREFIX)
    family = socket.AF_UNIX if local else socket.AF_INET if mapped else socket.AF_INET6
    made = socket.socket(family, socket.SOCK_STREAM)
    made.setblocking(False)
    host = str(ip_address(gid[-4:] if mapped else gid))
    try:
        _tune(made)
        made.connect(_unix_name(gid) if local else (host, lid))
    except BlockingIOError:
        if local:  # the listener's backlog is full
            made.close()
            return None
    except OSError:
        made.close()
        return None
    if local and not is_same_user(made):
        made.close()
        return None
    return made


def accept(listener: socket.socket) -> socket.socket | None:
    """Return the next connection, or None when there is none that may be used."""
    try:
        made, _ = listener.accept()
    except OSError:
        return None
    made.setblocking(False)
    _tune(made)
    if made.family == socket.AF_UNIX and not is_same_user(made):
        made.close()
        return None
    return made


def is_same_user(connection: socket.socket) -> bool:
    """Whether the process at the other end of a Unix socket is of our user."""
    data = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    return _CREDENTIALS.unpack(data)[1] == os.geteuid()


def is_local(gid: bytes) -> bool:
    """Whether the device of this address is reached through a Unix socket."""
    return gid.startswith(LOCAL_PREFIX)


def gid_of(address: str) -> bytes:
    """Return the GID that stands for an IP address."""
    found = ip_address(address)
    return found.packed if isinstance(found, IPv6Address) else _MAPPED_PREFIX + found.packed


def _unix_name(gid: bytes) -> bytes:
    return b"\0rpc-soft-verbs-" + gid.hex().encode()


def _tune(connection: socket.socket) -> None:
    for option in (socket.SO_SNDBUF, socket.SO_RCVBUF):
        connection.setsockopt(socket.SOL_SOCKET, option, _BUFFER_NBYTES)
    if connection.family != socket.AF_UNIX:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
