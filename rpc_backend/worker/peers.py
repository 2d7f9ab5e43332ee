"""Links to other workers, over which tensors go to where they are needed next.

Belongs here: which endpoints a session announced, which links are open, and who is told when a tensor cannot be sent.
Must not be here: one link's talk (`peer_link`), where links may lead (`dial_rules`), what comes in (`mailbox`,
`admissions`).
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

from rpc_backend.errors import ConfigError, ConnectError, LimitError, RpcBackendError, SessionError
from rpc_backend.protocol import Endpoint, Greeting, parse_endpoint
from rpc_backend.protocol.peer_secrets import check_secret
from rpc_backend.protocol.records import Failure
from rpc_backend.worker.config import WorkerConfig
from rpc_backend.worker.dial_rules import DialRules
from rpc_backend.worker.mailbox import Mailbox
from rpc_backend.worker.peer_jobs import CopyJob, Origin, fail_job, push_job
from rpc_backend.worker.peer_link import Dial, Pause, PeerLink
from rpc_backend.worker.sessions import Session

MAX_LINKS_PER_SESSION = 64
MAX_OPENING = 32
_LOG = logging.getLogger(__name__)

Spawn = Callable[[str, Callable[[], None]], None]
"""Runs a function on a thread of its own, or, in a double, at once."""


def spawn_thread(name: str, body: Callable[[], None]) -> None:
    """Run `body` on a daemon thread."""
    threading.Thread(target=body, name=name, daemon=True).start()


@dataclass(slots=True)
class Way:
    """An endpoint that a session announced, with the link to it."""

    endpoint: Endpoint
    secret: bytes
    link: PeerLink


class Peers:
    """The way of tensors onward, to other workers or to another task of this one. Any thread may call it.

    Nothing here waits: a link is dialled on a thread of its own. What cannot be sent is told to the client, and to
    the task that waits for it if its worker can be reached.
    """

    def __init__(
        self,
        config: WorkerConfig,
        greeting: Greeting,
        mailbox: Mailbox,
        dial: Dial | None,
        spawn: Spawn = spawn_thread,
        pause: Pause = time.sleep,
    ) -> None:
        self._config = config
        self._greeting = greeting
        self._mailbox = mailbox
        self._dial = dial
        self._spawn = spawn
        self._pause = pause
        self._rules = DialRules(config)
        self._lock = threading.Lock()
        self._ways: dict[Session, dict[str, Way]] = {}
        self._n_opening = 0

    def announce(self, session: Session, text: str, secret: bytes) -> Way | None:
        """Take note of an endpoint that a session announced; return the way there, which is to be opened.

        None = this worker may not connect to it, or is too busy. An endpoint announced again is connected to anew.

        Raises:
            EndpointError: it cannot be parsed.
            RemoteProtocolError: the secret is none.
            LimitError: the session has too many links.
            SessionError: it is closed.
        """
        endpoint = parse_endpoint(text)
        check_secret(secret)
        reason = "it cannot connect to others" if self._dial is None else self._rules.why_not(endpoint)
        if reason:
            _LOG.warning("this worker may not connect to %s, which a client announced: %s", endpoint, reason)
            return None
        with self._lock:
            if session.closed:
                raise SessionError("the session was closed")
            ways = self._ways.setdefault(session, {})
            if len(ways) >= MAX_LINKS_PER_SESSION and text not in ways:
                raise LimitError(f"a session may have links to {MAX_LINKS_PER_SESSION} workers, {endpoint} is one more")
            if self._n_opening >= MAX_OPENING:
                return None
            earlier = ways.get(text)
            way = ways[text] = Way(endpoint, secret, self._new_link(endpoint, secret))
        if earlier is not None:
            self._spawn("peer close", earlier.link.close)
        return way

    def open(self, way: Way, tell: Callable[[bool], None]) -> None:
        """Connect to an announced endpoint; `tell` says once whether the link stands."""
        way.link.when_open(tell)
        self._open(way.link, way.endpoint)

    def prepare(self, origin: Origin, endpoint: str) -> None:
        """Check that results may go to an endpoint. Raises as `push` would tell."""
        if endpoint:
            self._link(origin.session, endpoint)

    def push(self, origin: Origin, endpoint: str, ticket: bytes, data: memoryview) -> None:
        """Send a result on its way; `data` must not change any more. Never raises: see the class."""
        try:
            if endpoint:
                self._link(origin.session, endpoint).post(push_job(ticket, data, origin))
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

    def copy(self, session: Session, endpoint: str, job: CopyJob) -> None:
        """Copy bytes to a tensor of the same client on another worker. Does not raise."""
        try:
            self._link(session, endpoint).post(job)
        except RpcBackendError as error:
            job.lost(error)

    def close_session(self, session: Session) -> None:
        """Close the links of a session."""
        with self._lock:
            ways = list(self._ways.pop(session, {}).values())
        for way in ways:
            self._spawn("peer close", way.link.close)

    def close(self) -> None:
        """Close all links."""
        with self._lock:
            links = [way.link for ways in self._ways.values() for way in ways.values()]
            self._ways.clear()
        for link in links:
            link.abort()

    def _link(self, session: Session, text: str) -> PeerLink:
        """Return the link to an announced endpoint; one that stood and is lost is opened again.

        Raises:
            SessionError: the session is closed.
            ConfigError: it did not announce the endpoint, or this worker may not connect to it.
            ConnectError: nobody there knows the client.
        """
        with self._lock:
            if session.closed:
                raise SessionError("the session was closed")
            way = self._ways.get(session, {}).get(text)
            if way is None:
                raise ConfigError(
                    f"this worker may not connect to {text}: the client did not announce it with PEER_CONNECT, or "
                    "was told that it cannot be; send results through the client"
                )
            if not way.link.is_lost:
                return way.link
            if not way.link.was_open:
                raise ConnectError(f"sending to worker {text}: no worker that knows this client answered there")
            way.link = self._new_link(way.endpoint, way.secret)
            link = way.link
        self._open(link, way.endpoint)
        return link

    def _new_link(self, endpoint: Endpoint, secret: bytes) -> PeerLink:
        """Return a link that is to be opened. Called with the lock held."""
        assert self._dial is not None, "the endpoint was announced"
        self._n_opening += 1
        return PeerLink(endpoint, secret, self._greeting, self._dial, self._config)

    def _open(self, link: PeerLink, endpoint: Endpoint) -> None:
        def body() -> None:
            link.open(self._pause)
            with self._lock:
                self._n_opening -= 1

        self._spawn(f"peer {endpoint}", body)
