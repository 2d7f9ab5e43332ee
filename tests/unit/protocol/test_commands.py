"""The table itself, and the bytes of every row: a change of the wire must be seen to be made.

`python tests/unit/protocol/test_commands.py` writes the bytes of the rows anew.
"""

import json
from dataclasses import fields
from pathlib import Path
from typing import Any, get_args, get_origin, get_type_hints

import pytest

from rpc_backend.protocol import commands as c
from rpc_backend.protocol import records as r
from rpc_backend.protocol.conversation import ClientConversation, WorkerConversation

GOLDEN = Path(__file__).parents[2] / "data" / "golden_messages.json"
ROWS = sorted(c.COMMANDS.values(), key=lambda row: row.code)


def sample(annotation):
    plain = {int: 258, float: 0.5, bool: True, str: "text", bytes: b"\x01\x02", Any: 7}
    if annotation in plain:
        return plain[annotation]
    if get_origin(annotation) is list:
        return [sample(get_args(annotation)[0])]
    key, value = get_args(annotation)
    return {sample(key): sample(value)}


def sample_record(cls):
    hints = get_type_hints(cls)
    return cls(*(sample(hints[item.name]) for item in fields(cls)))


def payload(row, direction):
    return b"payload" if row.payload.covers(direction) else None


def messages(row):
    """Return the frames of a request and of its reply (or of the notice of its failure), as hexadecimal."""
    client, worker = ClientConversation(), WorkerConversation()
    if row is not c.HELLO:
        client.agree(row.since)
        worker.agree(row.since)
    _, request = client.request(row, sample_record(row.request), stream=2, payload=payload(row, c.Payload.REQUEST))
    event = worker.receive(request)
    if row.reply is None:
        answer = worker.fail(event, sample_record(r.Failure))
    else:
        answer = worker.reply(event.sequence, sample_record(row.reply), payload(row, c.Payload.REPLY))
    client.receive(answer)
    return {"request": [bytes(f).hex() for f in request], "answer": [bytes(f).hex() for f in answer]}


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
def test_the_bytes_of_every_command_stay_what_they_were(row):
    golden = json.loads(GOLDEN.read_text())
    assert row.name in golden, "a new row: run this file as a program to write its bytes"
    assert messages(row) == golden[row.name]


def test_no_golden_command_was_taken_away():
    assert set(json.loads(GOLDEN.read_text())) == {row.name for row in ROWS}


def test_the_table_is_consistent():
    names = [value for value in vars(c).values() if isinstance(value, c.Command)]
    assert len(names) == len(c.COMMANDS), "two rows with one code"
    assert c.HELLO.code == 14, "HELLO never moves"
    for row in ROWS:
        assert vars(c)[row.name] is row
        assert row.doc.endswith(".")
        assert 1 <= row.since <= c.MINOR
        assert row.reply is not None or not row.payload.covers(c.Payload.REPLY)


if __name__ == "__main__":
    GOLDEN.write_text(json.dumps({row.name: messages(row) for row in ROWS}, indent=1) + "\n")
