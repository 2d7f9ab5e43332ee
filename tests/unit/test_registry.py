"""Plugins: loaded one by one, asked once; what goes wrong is said and stops nobody else."""

from __future__ import annotations

from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import pytest

from rpc_backend import registry
from rpc_backend.errors import ConfigError, PluginConflictError, PluginLoadError, UnknownPluginError
from rpc_backend.hookspecs import (
    ComputeBackend,
    DeviceOptions,
    DeviceProvider,
    GatewayPlugin,
    Probe,
    ProviderOptions,
    TransportPlugin,
    hookimpl,
)
from rpc_backend.protocol import parse_endpoint
from rpc_backend.registry import load_registry, parse_device, probe_of
from rpc_backend.settings import Settings


class _Plugin:
    """Registers compute backends and transports."""

    def __init__(self, *backends: ComputeBackend, transports: tuple[TransportPlugin, ...] = ()) -> None:
        self.backends = backends
        self.transports = transports

    @hookimpl
    def rpc_register_backends(self, register):
        for backend in self.backends:
            register(backend)

    @hookimpl
    def rpc_register_transports(self, register):
        for transport in self.transports:
            register(transport)


def _raise(error: Exception) -> Any:
    raise error


def _backend(name="abacus", probe=lambda: Probe(True), create=lambda options: ["device"]) -> ComputeBackend:
    return ComputeBackend(name, probe, create)


def _transport(name="pigeon", schemes=("rfc1149",)) -> TransportPlugin:
    return TransportPlugin(name, schemes, lambda: Probe(True), lambda: name)  # type: ignore[arg-type, return-value]


@dataclass
class _EntryPoint:
    name: str
    plugin: object
    value: str = "some_package"

    def load(self):
        return _raise(self.plugin) if isinstance(self.plugin, Exception) else self.plugin


@pytest.fixture
def install(monkeypatch):
    def use(*found: _EntryPoint) -> None:
        monkeypatch.setattr(registry, "entry_points", lambda group: list(found) if group == "rpc_backend" else [])

    use()
    return use


def test_ours_come_in_through_entry_points():
    loaded = load_registry()

    assert loaded.failures == []
    assert "reference" in loaded.backends
    assert probe_of(loaded.backend("reference")).usable


def test_an_entry_point_that_fails_to_import_stops_nobody_else(install):
    good = _EntryPoint("good", _Plugin(_backend()))
    install(_EntryPoint("bad", ImportError("no module named cuda")), good, _EntryPoint("worse", ValueError("x")))

    loaded = load_registry()

    assert list(loaded.backends) == ["abacus"]
    assert [failure.entry_point for failure in loaded.failures] == ["bad = some_package", "worse = some_package"]
    assert loaded.failures[0].reason == "ImportError: no module named cuda"


def test_a_hook_that_nobody_asked_for_is_a_failure_with_a_name(install):
    class Misspelt:
        @hookimpl
        def rpc_register_backend(self, register):
            """Not the name of a hook."""

    with pytest.raises(Exception, match="unknown hook 'rpc_register_backend'"):
        load_registry([Misspelt()])


def test_two_plugins_of_one_name_conflict(install):
    with pytest.raises(PluginConflictError, match="two plugins register the compute backend 'abacus'"):
        load_registry([_Plugin(_backend()), _Plugin(_backend())])
    with pytest.raises(PluginConflictError, match="'pigeon' and 'dove' both serve rfc1149://"):
        load_registry([_Plugin(transports=(_transport(), _transport("dove")))])


def test_an_unknown_name_is_answered_with_the_known_and_the_nearest(install):
    install(_EntryPoint("bad", ImportError("broken")))
    loaded = load_registry([_Plugin(_backend(), _backend("slide-rule"), transports=(_transport(),))])

    with pytest.raises(UnknownPluginError) as caught:
        loaded.create_devices("abacuss", DeviceOptions())

    for part in ("'abacuss'", "known: abacus, slide-rule", "did you mean 'abacus'?", "bad = some_package", "broken"):
        assert part in str(caught.value)
    with pytest.raises(UnknownPluginError, match="known: rfc1149"):
        loaded.transport_for("tcp")


def test_nothing_installed_is_said(install):
    with pytest.raises(UnknownPluginError, match="known: none"):
        load_registry().backend("numba")


def test_a_backend_makes_its_devices_with_the_options(install):
    options = DeviceOptions(threads=3, extra={"beads": "10"})
    loaded = load_registry([_Plugin(_backend(create=lambda got: [got]))])

    assert loaded.create_devices("abacus", options) == [options]
    assert load_registry([_Plugin(transports=(_transport(),))]).transport_for("rfc1149") == "pigeon"


def test_a_backend_that_is_not_usable_here_says_why(install):
    loaded = load_registry([_Plugin(_backend(probe=lambda: Probe(False, "no beads; buy some")))])

    with pytest.raises(PluginLoadError, match="'abacus' is not usable here: no beads; buy some"):
        loaded.create_devices("abacus", DeviceOptions())


def test_a_probe_that_raises_means_no():
    probe = probe_of(_backend(probe=lambda: _raise(OSError("driver crashed"))))

    assert probe == Probe(False, "its probe failed: OSError: driver crashed")


def test_a_backend_that_fails_to_start_is_a_load_error_with_its_cause(install):
    loaded = load_registry([_Plugin(_backend(create=lambda options: _raise(OSError("no beads"))))])

    with pytest.raises(PluginLoadError, match="failed to start: OSError: no beads") as caught:
        loaded.create_devices("abacus", DeviceOptions())
    assert isinstance(caught.value.__cause__, OSError)


def test_an_error_of_ours_comes_through_as_it_is(install):
    loaded = load_registry([_Plugin(_backend(create=lambda options: _raise(ConfigError("no option beads"))))])

    with pytest.raises(ConfigError, match="no option beads"):
        loaded.create_devices("abacus", DeviceOptions())


def _providing(*providers: DeviceProvider) -> SimpleNamespace:
    def hook(register: Any) -> None:
        for provider in providers:
            register(provider)

    return SimpleNamespace(rpc_register_device_providers=hookimpl(hook))


def test_a_provider_opens_the_devices_of_its_scheme(install):
    provider = DeviceProvider("abacus", ("beads",), lambda: Probe(True), lambda endpoint, options: [endpoint, options])  # type: ignore[list-item]
    loaded = load_registry([_providing(provider)])
    endpoint, options = parse_endpoint("beads://shelf:3"), ProviderOptions(1.0, 2.0)

    assert loaded.provider_for("beads") is provider
    assert loaded.provider_for("tcp") is None
    assert loaded.open_devices(endpoint, options) == [endpoint, options]
    with pytest.raises(UnknownPluginError, match="device provider for scheme named 'bead'; known: beads; did you mean"):
        loaded.open_devices(parse_endpoint("bead://shelf:3"), options)


def test_a_scheme_of_a_transport_cannot_be_a_providers(install):
    provider = DeviceProvider("abacus", ("rfc1149",), lambda: Probe(True), lambda endpoint, options: [])
    with pytest.raises(PluginConflictError, match="'pigeon' and 'abacus' both serve rfc1149://"):
        load_registry([_Plugin(transports=(_transport(),)), _providing(provider)])


def test_a_gateway_is_made_by_name(install):
    plugin = GatewayPlugin("abacus", lambda: Probe(True), lambda endpoint, dial: (endpoint, dial))  # type: ignore[arg-type, return-value]
    loaded = load_registry([SimpleNamespace(rpc_register_gateways=hookimpl(lambda register: register(plugin)))])
    endpoint = parse_endpoint("tcp://shelf:3")

    assert loaded.create_gateway("abacus", endpoint, _raise) == (endpoint, _raise)  # type: ignore[arg-type]
    with pytest.raises(UnknownPluginError, match="no gateway named 'abacsu'; known: abacus"):
        loaded.create_gateway("abacsu", endpoint, _raise)  # type: ignore[arg-type]


def test_devices_are_told_the_instructions_of_the_settings() -> None:
    name, options = parse_device("numba:a=b", 2, Settings(cpu_features="avx2"))

    assert (name, options.threads, options.extra, options.cpu_features) == ("numba", 2, {"a": "b"}, "avx2")
