"""The connection to a ggml-rpc server, of which this side is the client.

Belongs here: requests and their answers, in order, and the end of the connection. Must not be here: what is asked
for (`device`).
"""

from __future__ import annotations

import socket
import struct
import threading
import time
from collections.abc import Sequence
from typing import NoReturn

from rpc_backend.plugin_api import (
    ConnectError,
    DeadlineError,
    EndpointParts,
    ProviderOptions,
    RpcBackendError,
    WorkerLostError,
)
from rpc_transport_ggml.stream import SocketStream, Stopped
from rpc_transport_ggml.wire import CAPABILITIES_NBYTES, HEAD, SIZE, VERSION, Code

_COUNT = struct.Struct("<I")


class ServerConnection:
    """One server, and its devices' only way to it. Any thread may call any method; they take turns.

    A server that meets something it dislikes hangs up without a word, so the error of a lost connection names what was
    asked of it last. `lock` is for those who must ask several things in a row.
    """

    def __init__(self, endpoint: EndpointParts, options: ProviderOptions) -> None:
        """Connect and greet.

        Raises:
            ConnectError: nobody is there, or it speaks something else or another version.
        """
        self.name = str(endpoint)
        self.lock = threading.RLock()
        self.n_frees = 0
        self._last = Code.HELLO
        self._is_settled = True
        self._lost: RpcBackendError | None = None
        try:
            connected = socket.create_connection((endpoint.host, endpoint.port), options.connect_timeout_s)
        except OSError as error:
            raise ConnectError(f"no ggml-rpc server answers at {self.name}: {error.strerror or error}") from error
        self._stream = SocketStream(connected, options.connect_timeout_s)
        try:
            self._greet(options.connect_timeout_s)
            self.n_devices: int = _COUNT.unpack(self.ask(Code.DEVICE_COUNT, (), _COUNT.size))[0]
        except RpcBackendError as error:
            self.close()
            raise ConnectError(f"{self.name} is no ggml-rpc server that can be used: {error.message}") from error
        self._stream.limit(options.command_timeout_s)

    def tell(self, code: Code, parts: Sequence[bytes | memoryview]) -> None:
        """Send a request that has no answer. Raises WorkerLostError: the server hung up."""
        with self.lock:
            self._send(code, parts)
            self._is_settled = False

    def ask(self, code: Code, parts: Sequence[bytes | memoryview], nbytes: int) -> bytes:
        """Send a request and return its answer of `nbytes`. Raises as `ask_into`."""
        out = bytearray(nbytes)
        self.ask_into(code, parts, memoryview(out))
        return bytes(out)

    def ask_into(self, code: Code, parts: Sequence[bytes | memoryview], out: memoryview) -> None:
        """Send a request and fill `out` with its answer.

        Raises:
            WorkerLostError: the server hung up, or answered something else.
            DeadlineError: it did not answer in time; the connection is of no more use.
        """
        with self.lock:
            self._send(code, parts)
            try:
                (nbytes,) = SIZE.unpack(self._stream.read(SIZE.size))
                if nbytes != out.nbytes:
                    answered = f"{self.name} answered {code.name} with {nbytes} bytes, not {out.nbytes}"
                    self._lose(WorkerLostError(answered))
                self._stream.read_into(out)
            except (Stopped, OSError) as error:
                self._fail(error)
            self._is_settled = True

    def free(self, handle: int) -> None:
        """Free a buffer, with which the server forgets its graphs; nothing where the connection is lost."""
        with self.lock:
            self.n_frees += 1
            if self._lost is None:
                self.tell(Code.FREE_BUFFER, [SIZE.pack(handle)])

    def synchronize(self) -> None:
        """Return when the server has done all that was asked. Raises as `ask_into`."""
        with self.lock:
            if not self._is_settled:  # it serves in order: any answer says that all before is done
                self.ask(Code.DEVICE_COUNT, (), _COUNT.size)

    def close(self) -> None:
        """Hang up. A second call does nothing."""
        if self._lost is None:
            self._lost = WorkerLostError(f"the connection to {self.name} is closed")
        self._stream.abort()
        self._stream.close()

    def _greet(self, limit_s: float) -> None:
        started = time.monotonic()
        try:
            answer = self.ask(Code.HELLO, [bytes(CAPABILITIES_NBYTES)], 4 + CAPABILITIES_NBYTES)
        except DeadlineError as error:
            waited = time.monotonic() - started
            raise ConnectError(
                f"no answer to HELLO within {waited:.0f} s; llama.cpp's server serves one client at a time, perhaps it "
                "has one"
            ) from error
        major, minor, patch = answer[:3]
        if major != VERSION[0] or minor > VERSION[1]:
            ours = ".".join(map(str, VERSION))
            raise ConnectError(f"it speaks version {major}.{minor}.{patch}, this side {ours}; update the older one")

    def _send(self, code: Code, parts: Sequence[bytes | memoryview]) -> None:
        if self._lost is not None:
            raise self._lost
        head = HEAD.pack(code, sum(len(part) for part in parts))
        try:
            self._stream.write([head, *parts])
        except OSError as error:
            self._fail(error)
        self._last = code

    def _fail(self, error: Exception) -> NoReturn:
        is_late = isinstance(error, TimeoutError) or isinstance(error.__cause__, TimeoutError)
        if is_late:
            self._lose(DeadlineError(f"{self.name} did not answer {self._last.name} in time"), error)
        reason = f" ({error.strerror})" if isinstance(error, OSError) and error.strerror else ""
        text = f"the ggml-rpc server {self.name} hung up at {self._last.name}{reason}; its own output may say why"
        self._lose(WorkerLostError(text), error)

    def _lose(self, lost: RpcBackendError, cause: Exception | None = None) -> NoReturn:
        self._lost = lost
        self._stream.close()
        raise lost from cause
