from __future__ import annotations

import pytest

from rpc_backend.errors import LimitError, SessionError
from rpc_backend.protocol import Agreement
from rpc_backend.worker.sessions import SessionTable

AGREEMENT = Agreement(1, frozenset())


@pytest.fixture
def table() -> SessionTable:
    return SessionTable(n_devices=2, graphs_per_stream=4)


def test_a_session_belongs_to_its_peer(table):
    session = table.open(b"p", AGREEMENT)
    assert table.find(b"p") is session
    assert table.find(b"q") is None
    assert len(session.streams) == 2


def test_a_peer_has_one_session(table):
    table.open(b"p", AGREEMENT)
    with pytest.raises(SessionError, match="HELLO comes once"):
        table.open(b"p", AGREEMENT)


def test_ids_cannot_be_guessed_and_epochs_rise(table):
    first, second = table.open(b"p", AGREEMENT), table.open(b"q", AGREEMENT)
    assert len(first.id) == len(second.id) == 16
    assert first.id != second.id
    assert first.epoch < second.epoch


def test_a_removed_session_is_closed(table):
    session = table.open(b"p", AGREEMENT)
    assert table.remove(b"p") is session
    assert session.closed
    assert table.remove(b"p") is None
    assert len(table) == 0


def test_what_waits_is_bounded(table):
    session = table.open(b"p", AGREEMENT)
    session.queue(60, 100)
    with pytest.raises(LimitError, match="60 bytes waiting and sent 41 more"):
        session.queue(41, 100)
    session.unqueue(60)
    session.queue(100, 100)
