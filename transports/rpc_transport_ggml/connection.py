"""One client of the gateway, from HELLO to the end.

Belongs here: the order of requests and answers, and how a connection ends. Must not be here: single commands
(`requests`).
"""

from __future__ import annotations

import logging
import socket

from rpc_backend.plugin_api import LocalDial, RemoteProtocolError, RpcBackendError
from rpc_transport_ggml.requests import HANDLERS, Answer, Client, Reply, greeting
from rpc_transport_ggml.stream import STALL_LIMIT_S, SocketStream, Stopped
from rpc_transport_ggml.wire import CAPABILITIES_NBYTES, HEAD, SIZE, Code, check_size, command_of
from rpc_transport_ggml.worker_session import WorkerSession

_LOG = logging.getLogger(__name__)
_HELLO_LIMIT_S = 10.0


class Connection:
    """Serves one client on the caller's thread. There is no error reply: what goes wrong is logged, and ends it."""

    def __init__(self, connected: socket.socket, name: str, dial: LocalDial) -> None:
        """Take over a connected socket; `name` says of whom."""
        self.name = name
        self._stream = SocketStream(connected, _HELLO_LIMIT_S)
        self._dial = dial

    def serve(self) -> None:
        """Serve until the client goes or makes a mistake. Does not raise."""
        session: WorkerSession | None = None
        try:
            self._greet()
            session = WorkerSession(self._dial, self._stream.abort)
            self._answer(greeting())
            self._serve(Client(session))
            if session.failure is not None:
                raise session.failure
        except RpcBackendError as error:
            _LOG.warning("closed the ggml-rpc client %s: %s", self.name, error)
        except (Stopped, OSError) as error:
            failure = None if session is None else session.failure
            if failure is not None:  # it is what cut the connection
                _LOG.warning("closed the ggml-rpc client %s: %s", self.name, failure)
            else:
                _LOG.info("the ggml-rpc client %s is gone: %s", self.name, error or "it stopped in a message")
        except Exception:
            _LOG.exception("closed the ggml-rpc client %s", self.name)
        finally:
            if session is not None:
                session.close()
            self._stream.close()

    def abort(self) -> None:
        """End it soon. Any thread may call it; never raises."""
        self._stream.abort()

    def _greet(self) -> None:
        code, nbytes = HEAD.unpack(self._stream.read(HEAD.size))
        if code != Code.HELLO:
            raise RemoteProtocolError("the first command must be HELLO; this port speaks ggml-rpc")
        check_size(Code.HELLO, nbytes, CAPABILITIES_NBYTES, CAPABILITIES_NBYTES)
        self._stream.read(CAPABILITIES_NBYTES)
        self._stream.limit(STALL_LIMIT_S)

    def _serve(self, client: Client) -> None:
        while self._stream.wait_message():
            code, nbytes = HEAD.unpack(self._stream.read(HEAD.size))
            answer = self._run(client, command_of(code), nbytes)
            if answer is not None:
                self._answer(answer)

    def _run(self, client: Client, code: Code, nbytes: int) -> Answer:
        handler = HANDLERS[code]
        if handler.form is None:
            return handler.run(client, self._stream, nbytes)
        check_size(code, nbytes, handler.form.size, handler.form.size)
        return handler.run(client, *handler.form.unpack(self._stream.read(nbytes)))

    def _answer(self, answer: bytes | Reply) -> None:
        if isinstance(answer, bytes):
            self._stream.write([SIZE.pack(len(answer)), answer])
            return
        head = SIZE.pack(answer.nbytes)
        for part in answer.parts:
            self._stream.write([head, part])
            head = b""
