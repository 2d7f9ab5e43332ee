"""Which other workers may write for which session: those that know a secret of its client.

Belongs here: the table of secrets, and the check of who joins. Must not be here: links to other workers (`peers`).
"""

from __future__ import annotations

import threading

from rpc_backend.errors import LimitError, SessionError
from rpc_backend.protocol.peer_secrets import Role, check_secret, is_proof, name_of, proof_of
from rpc_backend.protocol.records import PeerJoin
from rpc_backend.worker.sessions import Session

MAX_PER_SESSION = 256


class Admissions:
    """The secrets of all open sessions. Any thread may call it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._by_name: dict[bytes, tuple[bytes, Session]] = {}

    def __len__(self) -> int:
        return len(self._by_name)

    def admit(self, session: Session, secret: bytes) -> None:
        """Let who knows a secret write for a session.

        Raises:
            RemoteProtocolError: it is no secret.
            LimitError: the session has too many.
            SessionError: another session has the same.
        """
        name = name_of(check_secret(secret))
        with self._lock:
            if sum(owner is session for _, owner in self._by_name.values()) >= MAX_PER_SESSION:
                raise LimitError(f"a session may admit {MAX_PER_SESSION} other workers")
            if self._by_name.setdefault(name, (secret, session))[1] is not session:
                raise SessionError("this secret is in use; make one for each pair of workers")

    def join(self, session: Session, request: PeerJoin) -> bytes:
        """Let the session of another worker write for the one whose secret it knows; return the proof of this side.

        Raises:
            SessionError: no such secret, a wrong proof, or it has joined before.
        """
        with self._lock:
            secret, owner = self._by_name.get(request.name, (b"", None))
        if owner is None or owner.closed or not is_proof(request.proof, secret, Role.SENDER, request.nonce):
            raise SessionError("no client here knows this worker")
        if session.writes_for is not None or session is owner:
            raise SessionError("a session writes for one other session, and only for one")
        session.writes_for = owner
        return proof_of(secret, Role.RECEIVER, request.nonce)

    def drop(self, session: Session) -> None:
        """Forget the secrets of a session."""
        with self._lock:
            self._by_name = {name: item for name, item in self._by_name.items() if item[1] is not session}
