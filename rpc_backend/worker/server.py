"""A worker process: a service, its sockets, and its life from start to end.

Belongs here: listening, waiting, stopping. Must not be here: options (`cli`), or what messages mean (`service`).
"""

from __future__ import annotations

import math
import queue
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from types import TracebackType

from rpc_backend.fabric import FabricOptions, connect, listen
from rpc_backend.interfaces import (
    Channel,
    Device,
    Listener,
    OnLost,
    OnMessage,
    PayloadTransport,
    Transport,
)
from rpc_backend.protocol import Endpoint, check_bind
from rpc_backend.worker.config import WorkerConfig
from rpc_backend.worker.dial_rules import DIAL_TIMEOUT_MS, DialRules, dial_checked
from rpc_backend.worker.service import Service

# A signal's handler runs in the main thread once that wakes; a signal that another thread took does not wake it.
_SIGNAL_POLL_S = 0.25


class Worker:
    """Serves devices to clients from `start` to `close`; as a context manager it does both."""

    def __init__(
        self,
        config: WorkerConfig,
        devices: Sequence[Device],
        transport_for: Callable[[str], Transport],
        *,
        build: str = "",
        payloads: Sequence[PayloadTransport] = (),
    ) -> None:
        """Check all that can be checked before the start. The devices are the worker's from now on.

        `transport_for` gives the transport of a scheme, `build` is the text that HELLO gives, `payloads` may carry
        payloads beside the fabric, from and to clients and other workers.

        Raises:
            ConfigError: the configuration does not fit the devices, or an endpoint is open without keys.
            SettingError: no such protocol minor.
        """
        for endpoint in config.listen:
            check_bind(endpoint, insecure=config.insecure)
        self._config = config
        self._transport_for = transport_for
        self._payloads = payloads
        self._service = Service(config, devices, build, dial=self._dial)
        self._listener: Listener | None = None
        self._is_stopping = False
        self._wakeups: queue.SimpleQueue[None] = queue.SimpleQueue()
        self._closing = threading.Lock()
        self._closed = False

    @property
    def endpoints(self) -> list[str]:
        """The endpoints that it serves, with the ports that were picked."""
        return self._listener.names if self._listener is not None else []

    @property
    def received_nbytes(self) -> int:
        """All bytes that came with commands so far."""
        return self._service.state.counters.received_nbytes()

    def start(self) -> None:
        """Listen, and serve from now on.

        Raises:
            ConfigError: an endpoint is in use.
            EndpointError: an endpoint cannot be bound.
        """
        service = self._service
        service.prepare()
        self._listener = listen(
            self._config.listen,
            self._transport_for,
            on_message=service.on_message,
            on_peer_lost=service.on_peer_lost,
            options=self._fabric_options(),
            payloads=self._payloads,
        )
        service.start()
        service.attach(self._listener)

    def stop(self) -> None:
        """Ask `serve_forever` to end. Any thread, and a signal handler, may call it."""
        # A SimpleQueue may be used by a signal handler that interrupts its use; an Event may not.
        self._is_stopping = True
        self._wakeups.put(None)

    def wait(self, timeout_s: float | None = None) -> bool:
        """Return True once `stop` or `close` was called, False after `timeout_s`."""
        deadline_s = math.inf if timeout_s is None else time.monotonic() + timeout_s
        while not self._is_stopping:
            left_s = deadline_s - time.monotonic()
            if left_s <= 0:
                return False
            with suppress(queue.Empty):
                self._wakeups.get(timeout=min(left_s, _SIGNAL_POLL_S))
        return True

    def serve_forever(self) -> None:
        """Serve until `stop` is called, then close."""
        try:
            self.wait()
        finally:
            self.close()

    def close(self) -> None:
        """Send what is ready, end what runs or give up on it, close the devices. A second call does nothing."""
        self.stop()
        with self._closing:
            if self._closed:
                return
            self._closed = True
            if self._listener is not None:
                self._listener.close()
            self._service.close()

    def connect_local(self, on_message: OnMessage, on_lost: OnLost) -> Channel:
        """Open a channel within this process, for a gateway; as `LocalDial`."""
        return self._service.connect_local(on_message, on_lost)

    def _dial(self, endpoint: Endpoint, on_message: OnMessage, on_lost: OnLost) -> Channel:
        """Connect to another worker, as a client of it."""
        transport = self._transport_for(endpoint.scheme)
        options = replace(self._fabric_options(), connect_timeout_ms=DIAL_TIMEOUT_MS)
        return dial_checked(
            endpoint,
            transport,
            DialRules(self._config),
            lambda place: connect(
                place, transport, on_message=on_message, on_lost=on_lost, options=options, payloads=self._payloads
            ),
        )

    def _fabric_options(self) -> FabricOptions:
        return FabricOptions(
            heartbeat_timeout_ms=self._config.heartbeat_ms, max_frame_nbytes=self._service.limits.max_frame_nbytes
        )

    def __enter__(self) -> Worker:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
