"""What two sides can do together: one pure function over both greetings.

Belongs here: the merge and its refusals, emulation of an older minor. Must not be here: sessions.
"""

from __future__ import annotations

from dataclasses import dataclass

from rpc_backend.errors import NegotiationError, SettingError
from rpc_backend.protocol.commands import MAJOR, MINOR
from rpc_backend.protocol.records import Hello, HelloReply

NEWEST = -1

LINKS_SINCE = 4
"""The first minor whose HELLO speaks of payload links."""

WEIGHT_CACHE = "weight-cache"
"""Ability of a worker that keeps what was uploaded to it: a digest may save the upload of a weight."""

WEIGHT_SOURCE = "weight-source"
"""Ability of a worker that has model files of its own: as `WEIGHT_CACHE`, but nothing is kept."""


@dataclass(frozen=True, slots=True)
class Greeting:
    """What one side says of itself, the common part of `Hello` and `HelloReply`."""

    major: int
    minor: int
    op_digest: str
    build: str
    abilities: tuple[str, ...] = ()

    @classmethod
    def of(cls, record: Hello | HelloReply) -> Greeting:
        """Take the common part of a greeting that came over the wire."""
        return cls(record.major, record.minor, record.op_digest, record.build, tuple(record.abilities))

    def version(self) -> str:
        """Return `1.3 (build …)`."""
        return f"{self.major}.{self.minor} (build {self.build})"


@dataclass(frozen=True, slots=True)
class Agreement:
    """What both sides use: the lower minor, the abilities that both have."""

    minor: int
    abilities: frozenset[str]

    @property
    def has_links(self) -> bool:
        """Whether both sides know of payload links."""
        return self.minor >= LINKS_SINCE

    def has(self, ability: str) -> bool:
        """Whether both sides have an ability."""
        return ability in self.abilities


def own_greeting(op_digest: str, build: str, abilities: tuple[str, ...] = (), proto_minor: int = NEWEST) -> Greeting:
    """Return this side's greeting, as the newest minor or as the older `proto_minor`.

    Raises:
        SettingError: there is no such minor.
    """
    if proto_minor == NEWEST:
        proto_minor = MINOR
    if not 1 <= proto_minor <= MINOR:
        raise SettingError(
            f"protocol minor {proto_minor} does not exist; known are 1 to {MINOR}, and -1 for the newest"
        )
    return Greeting(MAJOR, proto_minor, op_digest, build, abilities)


def negotiate(client: Greeting, worker: Greeting) -> Agreement:
    """Merge both greetings; each side calls it with the same two and gets the same answer.

    Raises:
        NegotiationError: different majors, or operations with different meanings. The message has both
            versions and says which side to update.
    """
    versions = f"the client speaks version {client.version()}, the worker {worker.version()}"
    if client.major != worker.major:
        raise NegotiationError(f"{versions}; update the {_older(client, worker)}")
    if client.op_digest != worker.op_digest:
        raise NegotiationError(
            f"{versions}; their operation tables differ ({client.op_digest} and {worker.op_digest}), "
            f"update the {_older(client, worker)}"
        )
    if min(client.minor, worker.minor) < 1:
        raise NegotiationError(f"{versions}; minor versions begin at 1, update the {_older(client, worker)}")
    return Agreement(min(client.minor, worker.minor), frozenset(client.abilities) & frozenset(worker.abilities))


def _older(client: Greeting, worker: Greeting) -> str:
    ours, theirs = (client.major, client.minor), (worker.major, worker.minor)
    if ours == theirs:
        return "older of the two, so that both run one build"
    return "client" if ours < theirs else "worker"
