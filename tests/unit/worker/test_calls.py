from __future__ import annotations

from types import ModuleType

import pytest

from rpc_backend.errors import LocalProtocolError
from rpc_backend.protocol import COMMANDS
from rpc_backend.protocol.commands import PING, STATS
from rpc_backend.worker.calls import collect_handlers, handles
from rpc_backend.worker.handlers import MODULES


def module(**functions: object) -> ModuleType:
    made = ModuleType("made")
    vars(made).update(functions)
    return made


@handles(PING)
def ping(state, call):
    return None


def test_every_command_of_the_table_has_its_handler():
    assert set(collect_handlers(MODULES)) == set(COMMANDS)


def test_a_command_without_a_handler_is_named():
    with pytest.raises(LocalProtocolError, match="no handler for the commands STATS"):
        collect_handlers([module(ping=ping)], {PING.code: PING, STATS.code: STATS})


def test_two_handlers_of_one_command_are_refused():
    with pytest.raises(LocalProtocolError, match="two handlers for the command PING"):
        collect_handlers([module(ping=ping), module(other=ping)], {PING.code: PING})
