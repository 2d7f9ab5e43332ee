"""Transports come in through the plugins' door."""

from types import SimpleNamespace

import pytest

from rpc_backend.errors import PluginConflictError, PluginLoadError, UnknownPluginError
from rpc_backend.hookspecs import Probe, TransportPlugin, hookimpl
from rpc_backend.registry import load_registry


def plugin(name, *schemes, usable=True, create=None):
    offered = TransportPlugin(name, schemes, lambda: Probe(usable, "no such card"), create or (lambda: None))
    return SimpleNamespace(rpc_register_transports=hookimpl(lambda register: register(offered)))


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
