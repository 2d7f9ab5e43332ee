"""Foreign errors become ours, with a remedy; a descriptor is cut only while it is the same connection."""

import errno
import os
import socket

import pytest
import zmq

from rpc_backend.errors import ChannelError, ConfigError, EndpointError
from rpc_backend.fabric.options import FabricOptions
from rpc_backend.fabric.sockets import bind_error, cut, inode_of
from rpc_backend.protocol import Limits
from rpc_backend.settings import Settings


@pytest.mark.parametrize(
    ("number", "expected", "says"),
    [
        (errno.EADDRINUSE, ConfigError, "another worker"),
        (errno.EACCES, ConfigError, "above 1023"),
        (errno.EADDRNOTAVAIL, EndpointError, "no address of this machine"),
        (errno.ENODEV, EndpointError, "no address of this machine"),
        (errno.ENOMEM, ChannelError, "cannot listen"),
    ],
)
def test_a_failed_bind_names_the_endpoint_and_what_to_do(number, expected, says):
    error = bind_error("tcp://127.0.0.1:5", zmq.ZMQError(number))
    assert type(error) is expected
    assert says in str(error)
    assert "tcp://127.0.0.1:5" in str(error)


def test_a_connection_is_cut_only_if_the_descriptor_still_means_it():
    here, there = socket.socketpair()
    with here, there:
        there.setblocking(False)
        cut(here.fileno(), inode_of(here.fileno()) + 1)
        with pytest.raises(BlockingIOError):
            there.recv(1)
        cut(here.fileno(), inode_of(here.fileno()))
        assert there.recv(1) == b""


def test_cutting_what_is_gone_or_no_socket_is_harmless(tmp_path):
    assert inode_of(-1) == 0
    cut(-1, 0)
    with open(tmp_path / "file", "wb") as file:
        cut(file.fileno(), inode_of(file.fileno()))
        file.write(b"still open")
    assert os.path.getsize(tmp_path / "file") == 10


def test_options_follow_settings_and_limits():
    options = FabricOptions.of(
        Settings(heartbeat_timeout_ms=700, connect_timeout_ms=300),
        Limits(max_header_nbytes=10, max_payload_nbytes=20, max_payloads=3),
    )
    assert (options.heartbeat_timeout_ms, options.connect_timeout_ms) == (700, 300)
    assert (options.max_frame_nbytes, options.max_frames) == (20, 4)
