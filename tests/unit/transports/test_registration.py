"""Transports come in through the plugins' door."""

from types import SimpleNamespace

import pytest

from rpc_backend.errors import ConfigError, ConnectError, PluginConflictError, PluginLoadError, UnknownPluginError
from rpc_backend.hookspecs import PayloadPlugin, Probe, TransportPlugin, hookimpl
from rpc_backend.registry import AbsentPayloads, load_registry
from rpc_backend.testing.memory_links import MemoryPayloads


def plugin(name, *schemes, usable=True, create=None):
    offered = TransportPlugin(name, schemes, lambda: Probe(usable, "no such card"), create or (lambda: None))
    return SimpleNamespace(rpc_register_transports=hookimpl(lambda register: register(offered)))


def payloads(name, create):
    offered = PayloadPlugin(name, lambda: Probe(True), create)
    return SimpleNamespace(rpc_register_payloads=hookimpl(lambda register: register(offered)))


def failing(error):
    def create(extra):
        raise error

    return create


def test_the_inline_transport_serves_tcp_and_ipc():
    registry = load_registry()
    for scheme in ("tcp", "ipc"):
        assert scheme in registry.transport_for(scheme).schemes


def test_an_unknown_scheme_is_answered_with_the_known_and_the_nearest():
    with pytest.raises(UnknownPluginError, match=r"'tpc'; known: ipc, tcp; did you mean 'tcp'"):
        load_registry().transport_for("tpc")


def test_two_transports_for_one_name_or_scheme_are_a_conflict():
    with pytest.raises(PluginConflictError, match="transport 'tcp'"):
        load_registry([plugin("tcp", "other")])
    with pytest.raises(PluginConflictError, match="both serve ipc://"):
        load_registry([plugin("other", "ipc")])


def test_a_transport_that_cannot_be_used_says_why():
    registry = load_registry([plugin("card", "card", usable=False), plugin("bad", "bad", create=lambda: 1 / 0)])
    with pytest.raises(PluginLoadError, match="no such card"):
        registry.transport_for("card")
    with pytest.raises(PluginLoadError, match="ZeroDivisionError"):
        registry.transport_for("bad")


def test_payloads_inside_the_fabric_need_nothing():
    assert load_registry().payload_transports("tcp") == []
    assert load_registry().payload_transports("") == []


def test_a_way_for_payloads_gets_its_options_and_is_made_once():
    asked = []
    registry = load_registry([payloads("pigeon", lambda extra: asked.append(extra) or MemoryPayloads("pigeon"))])
    (made,) = registry.payload_transports("pigeon:wings=2,colour=grey")
    assert registry.payload_transports("pigeon:wings=2,colour=grey") == [made]
    assert asked == [{"wings": "2", "colour": "grey"}]
    assert registry.payload_transports("pigeon") != [made]


def test_an_unknown_way_for_payloads_is_answered_with_the_known_and_the_nearest():
    with pytest.raises(UnknownPluginError, match=r"'rdmaa'; known: rdma, tcp; did you mean 'rdma'"):
        load_registry().payload_transports("rdmaa")
    with pytest.raises(ConfigError, match="'soft' is not key=value"):
        load_registry().payload_transports("rdma:soft")


@pytest.mark.parametrize(
    ("error", "reason"),
    [(PluginLoadError("no such card"), "no such card"), (ZeroDivisionError("by zero"), "ZeroDivisionError: by zero")],
)
def test_a_way_for_payloads_that_cannot_be_used_is_absent_with_the_reason(error, reason):
    (absent,) = load_registry([payloads("pigeon", failing(error))]).payload_transports("pigeon")
    assert isinstance(absent, AbsentPayloads)
    assert absent.name == "pigeon"
    with pytest.raises(ConnectError, match=f"pigeon: .*{reason}"):
        absent.open_link()


def test_a_mistake_in_its_options_is_an_error():
    with pytest.raises(ConfigError, match="wings"):
        load_registry([payloads("pigeon", failing(ConfigError("it has no wings")))]).payload_transports("pigeon")
