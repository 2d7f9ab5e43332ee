"""The secret by which two workers know that they serve the same client, and the proofs that they have it.

Belongs here: its form, name and proofs. Must not be here: who has which secret.

The client makes a secret and gives it to both workers. Between them it never travels: each shows, for a fresh nonce,
that it has it. So a worker that connects to the wrong place tells that place nothing of use.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
from enum import Enum

from rpc_backend.errors import RemoteProtocolError

SECRET_NBYTES = 32
NONCE_NBYTES = 16
_NAME_NBYTES = 16


class Role(Enum):
    """Who proves: the worker that connects, or the one that is connected to."""

    SENDER = b"sender"
    RECEIVER = b"receiver"


def make_secret() -> bytes:
    """Return a new secret."""
    return secrets.token_bytes(SECRET_NBYTES)


def make_nonce() -> bytes:
    """Return a new nonce."""
    return secrets.token_bytes(NONCE_NBYTES)


def check_secret(secret: bytes) -> bytes:
    """Return a secret.

    Raises:
        RemoteProtocolError: it is not of the length of one.
    """
    if len(secret) != SECRET_NBYTES:
        raise RemoteProtocolError(f"a secret has {SECRET_NBYTES} bytes, not {len(secret)}")
    return secret


def name_of(secret: bytes) -> bytes:
    """Return the name of a secret, which tells nothing of it."""
    return hashlib.sha256(b"name" + secret).digest()[:_NAME_NBYTES]


def proof_of(secret: bytes, role: Role, nonce: bytes) -> bytes:
    """Return what only who has the secret can say to this nonce."""
    return hmac.digest(secret, role.value + nonce, "sha256")


def is_proof(proof: bytes, secret: bytes, role: Role, nonce: bytes) -> bool:
    """Whether a proof is right and its nonce long enough to be fresh."""
    return len(nonce) == NONCE_NBYTES and hmac.compare_digest(proof, proof_of(secret, role, nonce))
