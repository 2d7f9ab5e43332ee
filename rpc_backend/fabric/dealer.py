"""Opening the socket of a client's channel.

Belongs here: which address answers, and why none does. Must not be here: messages (`client_channel`).
"""

from __future__ import annotations

import time

import zmq

from rpc_backend.errors import ConnectError, EndpointError
from rpc_backend.fabric.monitor import Happened, Monitor
from rpc_backend.fabric.options import FabricOptions
from rpc_backend.fabric.sockets import make_socket
from rpc_backend.interfaces import Transport
from rpc_backend.protocol.endpoint import Endpoint


class Dealer:
    """A connected socket with its monitor."""

    def __init__(self, context: zmq.Context[zmq.Socket[bytes]], address: str, options: FabricOptions) -> None:
        self.sock = make_socket(context, zmq.DEALER, options)
        self.monitor = Monitor(context, self.sock)
        self._address = address

    def greet(self, timeout_s: float) -> str:
        """Connect and return "" when both sides have greeted, else why not."""
        try:
            self.sock.connect(self._address)
        except zmq.ZMQError as error:
            return f"{error.strerror} ({self._address})"
        deadline = time.monotonic() + timeout_s
        reached = False
        while (left_s := deadline - time.monotonic()) > 0:
            self.monitor.socket.poll(max(1, int(left_s * 1000)))
            for event in self.monitor.events():
                if event.happened is Happened.GREETED:
                    return ""
                if event.happened is Happened.CONNECT_FAILED:
                    return "nobody listens there (connection refused or host unreachable)"
                if event.happened in (Happened.GREETING_FAILED, Happened.CLOSED):
                    return "what listens there does not speak the language of a worker (ZeroMQ greeting failed)"
                reached = reached or event.happened is Happened.OPENED
        if reached:
            return f"something accepts connections there but did not greet as a worker within {timeout_s:g} s"
        return f"no answer within {timeout_s:g} s"

    def close(self, linger_s: float) -> None:
        self.monitor.close()
        self.sock.close(int(linger_s * 1000))


def open_dealer(
    context: zmq.Context[zmq.Socket[bytes]], endpoint: Endpoint, transport: Transport, options: FabricOptions
) -> Dealer:
    """Try each address of the endpoint in turn; they share the connect timeout."""
    addresses = list(transport.connect_addresses(endpoint))
    if not addresses:
        raise EndpointError(f"transport {transport.name!r} has no address for {endpoint}")
    deadline = time.monotonic() + options.connect_timeout_ms / 1000
    reasons: list[str] = []
    for index, address in enumerate(addresses):
        share_s = (deadline - time.monotonic()) / (len(addresses) - index)
        link = Dealer(context, address, options)
        reason = link.greet(share_s)
        if not reason:
            return link
        link.close(0.0)
        reasons.append(reason)
    raise ConnectError(f"cannot connect to {endpoint}: {'; '.join(dict.fromkeys(reasons))}")
