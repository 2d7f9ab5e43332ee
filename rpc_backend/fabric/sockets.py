"""Making sockets, receiving from them, and the one place where foreign errors become ours.

Belongs here: socket options, the mapping of zmq and OS errors. Must not be here: threads and queues.
"""

from __future__ import annotations

import contextlib
import errno
import os
import socket
from dataclasses import replace

import zmq

from rpc_backend.errors import ChannelError, ConfigError, EndpointError, RpcBackendError
from rpc_backend.fabric.options import FabricOptions
from rpc_backend.protocol.endpoint import Endpoint

_NEVER_MS = 24 * 3600 * 1000
_IN_USE = {errno.EADDRINUSE}
_NOT_HERE = {errno.EADDRNOTAVAIL, errno.ENODEV, errno.ENOENT, errno.EINVAL, errno.ENAMETOOLONG, zmq.EPROTONOSUPPORT}


def make_socket(context: zmq.Context[zmq.Socket[bytes]], kind: int, options: FabricOptions) -> zmq.Socket[bytes]:
    """Make a DEALER or ROUTER with heartbeats, limits and queue lengths set, neither bound nor connected."""
    sock = context.socket(kind)
    interval_ms = max(1, options.heartbeat_timeout_ms // 4)
    settings = {
        zmq.LINGER: 0,
        zmq.IPV6: 1,
        zmq.SNDHWM: options.send_queue_messages,
        zmq.RCVHWM: options.receive_queue_messages,
        zmq.MAXMSGSIZE: options.max_frame_nbytes,
        # A ping every interval, an answer due within the rest: silence is noticed within the timeout.
        zmq.HEARTBEAT_IVL: interval_ms,
        zmq.HEARTBEAT_TIMEOUT: options.heartbeat_timeout_ms - interval_ms,
        zmq.HEARTBEAT_TTL: options.heartbeat_timeout_ms,
        # Heartbeats wait behind a message that is half sent; the kernel watches that nothing of it gets through.
        zmq.TCP_MAXRT: options.heartbeat_timeout_ms,
        # A lost connection is an error of ours to report, never something to repair with old messages. Not -1: libzmq
        # then drops what it has received and nobody has read yet.
        zmq.RECONNECT_IVL: _NEVER_MS,
    }
    # Who connects has a deadline of its own; who is connected to must end connections that never greet.
    settings[zmq.HANDSHAKE_IVL] = options.connect_timeout_ms if kind == zmq.ROUTER else 0
    if kind == zmq.ROUTER:
        settings[zmq.ROUTER_MANDATORY] = 1  # without it, messages to a full or vanished peer disappear
    for name, value in settings.items():
        sock.setsockopt(name, value)
    return sock


def receive(sock: zmq.Socket[bytes], max_frames: int) -> list[zmq.Frame] | None:
    """Return one whole message, or None if there is none now.

    All frames are taken from the socket; of a message with more than `max_frames`, one surplus frame is returned.
    """
    try:
        frame = sock.recv(zmq.NOBLOCK, copy=False)
    except zmq.Again:
        return None
    frames = [frame]
    while frame.more:
        frame = sock.recv(zmq.NOBLOCK, copy=False)
        if len(frames) <= max_frames:
            frames.append(frame)
    return frames


def has_message(sock: zmq.Socket[bytes]) -> bool:
    """Whether `receive` would return a message; cheaper than finding out by the exception."""
    events = sock.get(zmq.EVENTS)
    return isinstance(events, int) and bool(events & zmq.POLLIN)


def views(frames: list[zmq.Frame]) -> list[memoryview]:
    """Return the bytes of frames; each view keeps its frame alive."""
    return [frame.buffer for frame in frames]


def source_fd(frames: list[zmq.Frame]) -> int:
    """Return the descriptor of the connection that a message came on, -1 if it is not told."""
    try:
        return int(frames[-1].get(zmq.SRCFD))
    except (zmq.ZMQError, TypeError, ValueError):
        return -1


def is_from_dealer(frames: list[zmq.Frame]) -> bool:
    """Whether the sender greeted as a DEALER; random bytes can pass for a message of a peer older than greetings."""
    try:
        return frames[-1].get("Socket-Type") == "DEALER"
    except zmq.ZMQError:
        return False


def bind_error(where: str, error: zmq.ZMQError) -> RpcBackendError:
    """Return our error for a failed bind."""
    if error.errno in _IN_USE:
        return ConfigError(
            f"{where} is already in use, perhaps by another worker; end that or choose another port (0 is any free one)"
        )
    if error.errno == errno.EACCES:
        return ConfigError(f"no permission to listen on {where}; choose a port above 1023 or a path of yours")
    if error.errno in _NOT_HERE:
        return EndpointError(f"cannot listen on {where}: it is no address of this machine ({error.strerror})")
    return ChannelError(f"cannot listen on {where}: {error.strerror}")


def inode_of(fd: int) -> int:
    """Return the number of the open file behind a descriptor, 0 if it is not open."""
    try:
        return os.fstat(fd).st_ino
    except OSError:
        return 0


def cut(fd: int, inode: int) -> None:
    """Shut down the connection of a descriptor that libzmq owns, if it still is the one with this inode.

    libzmq has no call for it. The copy of the descriptor keeps the file, so that it cannot become another between
    the check and the shutdown; libzmq then sees the end of the stream and closes its own descriptor.
    """
    with contextlib.suppress(OSError):  # it ended by itself meanwhile
        copy = os.dup(fd)
        if os.fstat(copy).st_ino != inode:
            os.close(copy)
            return
        with socket.socket(fileno=copy) as connection:
            connection.shutdown(socket.SHUT_RDWR)


def bind(sock: zmq.Socket[bytes], endpoint: Endpoint, address: str) -> Endpoint:
    """Bind and return the endpoint with the port that was picked."""
    try:
        sock.bind(address)
    except zmq.ZMQError as error:
        raise bind_error(str(endpoint), error) from error
    if endpoint.path:
        return endpoint
    bound = sock.getsockopt_string(zmq.LAST_ENDPOINT)
    return replace(endpoint, port=int(bound.rpartition(":")[2]))
