"""Links to other workers, over which the results of tasks go to where they are needed next.

Belongs here: which links are open, for which sessions, and who is told when a tensor cannot be sent. Must not be here:
one link's talk (`peer_link`), tickets of what comes in (`mailbox`).
"""

from __future__ import annotations

import threading
from collections.abc import Callable

from rpc_backend.errors import ConfigError, LimitError, RpcBackendError, SessionError
from rpc_backend.protocol import Endpoint, Greeting, parse_endpoint
from rpc_backend.protocol.commands import PEER_PUSH
from rpc_backend.protocol.records import Failure, PeerPush
from rpc_backend.worker.config import WorkerConfig
from rpc_backend.worker.mailbox import Mailbox
from rpc_backend.worker.peer_link import Dial, Job, Origin, PeerLink, fail_job
from rpc_backend.worker.sessions import Session

MAX_LINKS_PER_SESSION = 64

Spawn = Callable[[str, Callable[[], None]], None]
"""Runs a function on a thread of its own, or, in a double, at once."""


def spawn_thread(name: str, body: Callable[[], None]) -> None:
    """Run `body` on a daemon thread."""
    threading.Thread(target=body, name=name, daemon=True).start()


class Peers:
    """The way of results onward, to other workers or to another task of this one. Any thread may call it.

    Nothing here waits: a link is dialled on a thread of its own. What cannot be sent is told to the client, and to
    the task that waits for it if its worker can be reached.
    """

    def __init__(
        self, config: WorkerConfig, greeting: Greeting, mailbox: Mailbox, dial: Dial | None, spawn: Spawn = spawn_thread
    ) -> None:
        self._config = config
        self._greeting = greeting
        self._mailbox = mailbox
        self._dial = dial
        self._spawn = spawn
        self._lock = threading.Lock()
        self._links: dict[Session, dict[str, PeerLink]] = {}

    def prepare(self, origin: Origin, endpoint: str) -> None:
        """Check that results may go to an endpoint, and begin to connect to it.

        Raises:
            EndpointError: it cannot be parsed.
            ConfigError: this worker may not connect to it.
            LimitError: the session has too many links.
            SessionError: it is closed.
        """
        if endpoint:
            self._link(origin.session, endpoint)

    def push(self, origin: Origin, endpoint: str, ticket: bytes, data: memoryview) -> None:
        """Send a result on its way; `data` must not change any more. Never raises: see the class."""
        try:
            if endpoint:
                job = Job(PEER_PUSH, PeerPush(ticket), ticket, origin, data)
                self._link(origin.session, endpoint).post(job)
            elif not origin.session.closed:
                self._mailbox.put(ticket, data, origin.session)
        except RpcBackendError as error:
            origin.report(error)

    def fail(self, origin: Origin, endpoint: str, ticket: bytes, failure: Failure) -> None:
        """Say that a result will not come. Never raises: see the class."""
        try:
            if endpoint:
                self._link(origin.session, endpoint).post(fail_job(ticket, failure, origin))
            elif not origin.session.closed:
                self._mailbox.fail(ticket, failure, origin.session)
        except RpcBackendError as error:
            origin.report(error)

    def close_session(self, session: Session) -> None:
        """Close the links of a session."""
        with self._lock:
            links = list(self._links.pop(session, {}).values())
        for link in links:
            self._spawn("peer close", link.close)

    def close(self) -> None:
        """Close all links."""
        with self._lock:
            links = [link for links in self._links.values() for link in links.values()]
            self._links.clear()
        for link in links:
            link.abort()

    def _link(self, session: Session, endpoint: str) -> PeerLink:
        with self._lock:
            if session.closed:
                raise SessionError("the session was closed")
            links = self._links.setdefault(session, {})
            link = links.get(endpoint)
            if link is not None and not link.is_lost:
                return link
            link = links[endpoint] = self._new_link(endpoint, len(links))
        self._spawn(f"peer {endpoint}", link.open)
        return link

    def _new_link(self, text: str, n_links: int) -> PeerLink:
        endpoint = parse_endpoint(text)
        if not self._may_dial(endpoint):
            raise ConfigError(
                f"this worker may not connect to {endpoint}; add it to those it may, or send results through the client"
            )
        if n_links >= MAX_LINKS_PER_SESSION:
            raise LimitError(f"a session may have links to {MAX_LINKS_PER_SESSION} workers, {endpoint} is one more")
        assert self._dial is not None, "checked by _may_dial"
        return PeerLink(endpoint, self._greeting, self._dial, self._config)

    def _may_dial(self, endpoint: Endpoint) -> bool:
        return self._dial is not None and (endpoint.is_loopback() or endpoint in self._config.peer_allow)
