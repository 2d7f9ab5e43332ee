"""The environment switches: declared once, typed, checked."""

from __future__ import annotations

from pathlib import Path

import pytest

from rpc_backend import settings
from rpc_backend.errors import SettingError
from rpc_backend.settings import Settings, cache_folder, child_environment, from_environment, rows


def test_nothing_set_gives_the_defaults():
    assert from_environment({}) == Settings()
    assert from_environment({"PATH": "/bin", "ZMQ": "1"}) == Settings()


def test_values_are_typed():
    found = from_environment({"ZMQ_RPC_HEARTBEAT_TIMEOUT_MS": "250", "ZMQ_RPC_CACHE_DIR": "/tmp/kernels"})

    assert found.heartbeat_timeout_ms == 250
    assert found.cache_dir == "/tmp/kernels"


@pytest.mark.parametrize("text", ["fast", "", "1.5", "0x10", "1 000"])
def test_a_value_that_does_not_parse_names_the_variable(text):
    with pytest.raises(SettingError, match=r"ZMQ_RPC_CONNECT_TIMEOUT_MS=.* is not of type int"):
        from_environment({"ZMQ_RPC_CONNECT_TIMEOUT_MS": text})


@pytest.mark.parametrize(
    ("variable", "text"),
    [("ZMQ_RPC_HEARTBEAT_TIMEOUT_MS", "99"), ("ZMQ_RPC_CONNECT_TIMEOUT_MS", "0"), ("ZMQ_RPC_PROTO_MINOR", "-2")],
)
def test_a_value_below_the_least_is_refused(variable, text):
    with pytest.raises(SettingError, match=f"{variable}='{text}' is below its least value"):
        from_environment({variable: text})


def test_an_unknown_switch_is_refused_with_the_nearest():
    with pytest.raises(SettingError, match="unknown environment switch ZMQ_RPC_CACHEDIR; did you mean ZMQ_RPC_CACHE"):
        from_environment({"ZMQ_RPC_CACHEDIR": "x"})
    with pytest.raises(SettingError, match=r"ZMQ_RPC_(QJ){9}; known: ZMQ_RPC_CACHE_DIR, "):
        from_environment({"ZMQ_RPC_" + 9 * "QJ": "x"})


@pytest.mark.parametrize(("text", "value"), [("1", True), (" Yes ", True), ("ON", True), ("0", False), ("", False)])
def test_a_yes_or_no(text, value):
    assert settings._parse("ZMQ_RPC_X", text, bool, None) is value


def test_a_yes_or_no_that_is_neither():
    with pytest.raises(SettingError, match="ZMQ_RPC_X='2' is not a yes or a no"):
        settings._parse("ZMQ_RPC_X", "2", bool, None)


def test_the_table_has_every_switch_with_help():
    table = {row.variable: row for row in rows()}

    assert table["ZMQ_RPC_HEARTBEAT_TIMEOUT_MS"].default == "5000"
    assert table["ZMQ_RPC_HEARTBEAT_TIMEOUT_MS"].unit == "ms"
    assert table["ZMQ_RPC_CACHE_DIR"].type_name == "str"
    assert len(table) == len(Settings.__dataclass_fields__)
    assert all(row.help for row in table.values())


def test_settings_are_frozen():
    with pytest.raises(AttributeError):
        Settings().proto_minor = 3  # type: ignore[misc]


def test_a_child_gets_this_environment_with_overrides(monkeypatch):
    monkeypatch.setenv("SOME_NAME", "1")

    child = child_environment({"ZMQ_RPC_PROTO_MINOR": "2"})

    assert (child["SOME_NAME"], child["ZMQ_RPC_PROTO_MINOR"]) == ("1", "2")


def test_the_cache_folder_is_the_switch_or_the_default(monkeypatch):
    monkeypatch.setenv("HOME", "/home/someone")

    assert cache_folder(Settings(), Path("/default")) == Path("/default")
    assert cache_folder(Settings(cache_dir="~/kernels"), Path("/default")) == Path("/home/someone/kernels")
