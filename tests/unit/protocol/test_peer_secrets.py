"""Proofs that both workers know a client's secret."""

from __future__ import annotations

import pytest

from rpc_backend.errors import RemoteProtocolError
from rpc_backend.protocol.peer_secrets import Role, check_secret, is_proof, make_nonce, make_secret, name_of, proof_of


def test_a_proof_is_of_one_secret_one_role_and_one_nonce():
    secret, nonce = make_secret(), make_nonce()
    proof = proof_of(secret, Role.SENDER, nonce)
    assert is_proof(proof, secret, Role.SENDER, nonce)
    assert not is_proof(proof, make_secret(), Role.SENDER, nonce)
    assert not is_proof(proof, secret, Role.RECEIVER, nonce)
    assert not is_proof(proof, secret, Role.SENDER, make_nonce())
    assert not is_proof(proof[:-1], secret, Role.SENDER, nonce)


@pytest.mark.parametrize("nonce", [b"", bytes(15), bytes(17)])
def test_a_nonce_of_another_length_proves_nothing(nonce):
    secret = make_secret()
    assert not is_proof(proof_of(secret, Role.SENDER, nonce), secret, Role.SENDER, nonce)


def test_the_name_of_a_secret_is_its_own_and_does_not_hold_it():
    one, two = make_secret(), make_secret()
    assert name_of(one) == name_of(one) != name_of(two)
    assert name_of(one) not in one
    assert one != two


@pytest.mark.parametrize("secret", [b"", bytes(31), bytes(33)])
def test_a_secret_has_one_length(secret):
    with pytest.raises(RemoteProtocolError, match=f"32 bytes, not {len(secret)}"):
        check_secret(secret)
    assert check_secret(bytes(32)) == bytes(32)
