"""The gateway: where ggml-rpc clients connect.

Belongs here: listening, and the threads of connections. Must not be here: what a client says (`connection`).
"""

from __future__ import annotations

import errno
import logging
import selectors
import socket
import threading
import time

from rpc_backend.plugin_api import ConfigError, EndpointError, EndpointParts, Gateway, LocalDial
from rpc_transport_ggml.connection import Connection

MAX_CONNECTIONS = 64
_BACKLOG = 16
_CLOSE_LIMIT_S = 5.0
_ANY_HOST = "*"
_LOG = logging.getLogger(__name__)


class GgmlGateway(Gateway):
    """Listens on TCP; each client has a thread and a session of its own."""

    def __init__(self, endpoint: EndpointParts, dial: LocalDial) -> None:
        """Check the endpoint. Raises EndpointError: it is no TCP endpoint."""
        if endpoint.scheme != "tcp":
            raise EndpointError(f"a ggml-rpc gateway listens on tcp://host:port, not on {endpoint}")
        self._endpoint = endpoint
        self._dial = dial
        self._listening: socket.socket | None = None
        self._waker, self._wakeup = socket.socketpair()
        self._lock = threading.Lock()
        self._connections: dict[Connection, threading.Thread] = {}
        self._is_closed = False
        self._thread = threading.Thread(target=self._accept, name="ggml-gateway", daemon=True)

    @property
    def name(self) -> str:
        if self._listening is None:
            return str(self._endpoint)
        host, port = self._listening.getsockname()[:2]
        return f"tcp://[{host}]:{port}" if ":" in host else f"tcp://{host}:{port}"

    def start(self) -> None:
        host = "" if self._endpoint.host == _ANY_HOST else self._endpoint.host
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        try:
            self._listening = socket.create_server((host, self._endpoint.port), family=family, backlog=_BACKLOG)
        except OSError as error:
            if error.errno == errno.EADDRINUSE:
                raise ConfigError(f"{self._endpoint} is already in use; choose another port") from error
            raise EndpointError(f"cannot listen on {self._endpoint}: {error.strerror or error}") from error
        self._listening.setblocking(False)
        self._thread.start()

    def close(self) -> None:
        with self._lock:
            if self._is_closed:
                return
            self._is_closed = True
            running = dict(self._connections)
        self._wakeup.close()
        for connection in running:
            connection.abort()
        deadline_s = time.monotonic() + _CLOSE_LIMIT_S
        for thread in (*running.values(), *((self._thread,) if self._listening else ())):
            thread.join(max(0.0, deadline_s - time.monotonic()))
        if self._listening is not None:
            self._listening.close()
        self._waker.close()

    def _accept(self) -> None:
        assert self._listening is not None, "the thread is started when listening began"
        with selectors.DefaultSelector() as selector:
            selector.register(self._listening, selectors.EVENT_READ)
            selector.register(self._waker, selectors.EVENT_READ)
            while not self._is_closed:
                selector.select()
                try:
                    connected, address = self._listening.accept()
                except OSError:
                    continue  # it went before it was accepted, or this gateway closes
                self._begin(connected, address)

    def _begin(self, connected: socket.socket, address: tuple[str, int]) -> None:
        name = f"{address[0]}:{address[1]}"
        try:
            connection = Connection(connected, name, self._dial)
        except OSError:  # gone already
            connected.close()
            return
        thread = threading.Thread(target=self._serve, args=(connection,), name=f"ggml-{name}", daemon=True)
        with self._lock:
            is_welcome = not self._is_closed and len(self._connections) < MAX_CONNECTIONS
            if is_welcome:
                self._connections[connection] = thread
        if is_welcome:
            thread.start()
        else:
            _LOG.warning("refused the ggml-rpc client %s: %d are connected", name, MAX_CONNECTIONS)
            connected.close()

    def _serve(self, connection: Connection) -> None:
        try:
            connection.serve()
        finally:
            with self._lock:
                self._connections.pop(connection, None)
