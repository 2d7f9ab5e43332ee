"""Plugins: found through entry points, loaded one by one, asked once.

Belongs here: all that touches pluggy's manager. Must not be here: use of what plugins registered.
"""

from __future__ import annotations

import difflib
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from typing import Any, Protocol, TypeVar

import platformdirs
import pluggy

from rpc_backend import hookspecs
from rpc_backend.errors import (
    ConfigError,
    ConnectError,
    PluginConflictError,
    PluginLoadError,
    RpcBackendError,
    UnknownPluginError,
)
from rpc_backend.hookspecs import (
    ComputeBackend,
    DeviceOptions,
    DeviceProvider,
    GatewayPlugin,
    PayloadPlugin,
    Probe,
    ProviderOptions,
    TransportPlugin,
)
from rpc_backend.interfaces import (
    Device,
    EndpointParts,
    Gateway,
    LocalDial,
    PayloadLink,
    PayloadTransport,
    Transport,
)
from rpc_backend.settings import Settings, cache_folder

INLINE = ("", "tcp")
"""What asks for payloads inside the fabric."""

_Made = TypeVar("_Made")


class _Named(Protocol):
    @property
    def name(self) -> str: ...

    @property
    def probe(self) -> Callable[[], Probe]: ...


@dataclass(frozen=True, slots=True)
class PluginFailure:
    """An entry point that did not load, and why."""

    entry_point: str
    reason: str


@dataclass(slots=True)
class Registry:
    """What the installed plugins offer, by name, and which of them failed to load."""

    backends: dict[str, ComputeBackend] = field(default_factory=dict)
    transports: dict[str, TransportPlugin] = field(default_factory=dict)
    payloads: dict[str, PayloadPlugin] = field(default_factory=dict)
    gateways: dict[str, GatewayPlugin] = field(default_factory=dict)
    providers: dict[str, DeviceProvider] = field(default_factory=dict)
    failures: list[PluginFailure] = field(default_factory=list)
    _made_payloads: dict[str, PayloadTransport] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def backend(self, name: str) -> ComputeBackend:
        """Return a compute backend.

        Raises:
            UnknownPluginError: naming the known ones and the nearest.
        """
        found = self.backends.get(name)
        if found is None:
            raise UnknownPluginError(_unknown("compute backend", name, list(self.backends), self.failures))
        return found

    def create_devices(self, name: str, options: DeviceOptions) -> Sequence[Device]:
        """Make the devices of a compute backend.

        Raises:
            UnknownPluginError: no backend of that name.
            PluginLoadError: it is not usable here, or failed to start; the reason is in the message.
        """
        backend = self.backend(name)
        return _create(f"compute backend {name!r}", backend, lambda: backend.create(options))

    def transport_for(self, scheme: str) -> Transport:
        """Make the transport of an endpoint's scheme.

        Raises:
            UnknownPluginError: no transport serves it; naming the known schemes and the nearest.
            PluginLoadError: it is not usable here, or failed to start; the reason is in the message.
        """
        by_scheme = {known: plugin for plugin in self.transports.values() for known in plugin.schemes}
        plugin = by_scheme.get(scheme)
        if plugin is None:
            raise UnknownPluginError(_unknown("transport for scheme", scheme, list(by_scheme), self.failures))
        return _create(f"transport {plugin.name!r}", plugin, plugin.create)

    def provider_for(self, scheme: str) -> DeviceProvider | None:
        """Return who provides the devices behind endpoints of a scheme; None for a scheme of workers."""
        return next((found for found in self.providers.values() if scheme in found.schemes), None)

    def open_devices(self, endpoint: EndpointParts, options: ProviderOptions) -> Sequence[Device]:
        """Connect to what is behind an endpoint that has a provider, and return its devices.

        Raises:
            EndpointError, ConnectError: as the provider says.
            UnknownPluginError: no provider of that scheme.
            PluginLoadError: it is not usable here, or failed; the reason is in the message.
        """
        provider = self.provider_for(endpoint.scheme)
        if provider is None:
            known = [scheme for found in self.providers.values() for scheme in found.schemes]
            raise UnknownPluginError(_unknown("device provider for scheme", endpoint.scheme, known, self.failures))
        return _create(f"device provider {provider.name!r}", provider, lambda: provider.create(endpoint, options))

    def create_gateway(self, name: str, endpoint: EndpointParts, dial: LocalDial) -> Gateway:
        """Make a gateway that will listen at an endpoint, and dial the worker of this process for each of its clients.

        Raises:
            UnknownPluginError: no gateway of that name.
            PluginLoadError: it is not usable here, or failed to start; the reason is in the message.
        """
        plugin = self.gateways.get(name)
        if plugin is None:
            raise UnknownPluginError(_unknown("gateway", name, list(self.gateways), self.failures))
        return _create(f"gateway {name!r}", plugin, lambda: plugin.create(endpoint, dial))

    def payload_transports(self, text: str) -> list[PayloadTransport]:
        """Make what carries payloads beside the fabric: `tcp` is nothing, else `NAME` or `NAME:key=value,…`.

        One that cannot work here is an `AbsentPayloads` with the reason: payloads then travel inside the fabric. The
        same text gives the same object.

        Raises:
            UnknownPluginError: naming the known ones and the nearest.
            ConfigError: an option that it does not know.
        """
        name, extra = parse_options(text, "transport")
        if name in INLINE:
            return []
        with self._lock:
            if text not in self._made_payloads:
                self._made_payloads[text] = self._make_payloads(name, extra)
            return [self._made_payloads[text]]

    def _make_payloads(self, name: str, extra: dict[str, str]) -> PayloadTransport:
        plugin = self.payloads.get(name)
        if plugin is None:
            known = [*self.payloads, *filter(None, INLINE)]
            raise UnknownPluginError(_unknown("payload transport", name, known, self.failures))
        try:
            return plugin.create(extra)
        except ConfigError:
            raise
        except PluginLoadError as error:
            return AbsentPayloads(name, error.message)
        except Exception as error:
            return AbsentPayloads(name, f"it failed to start: {_describe(error)}")


class AbsentPayloads(PayloadTransport):
    """A payload transport that was asked for and cannot work here; `reason` says which part is missing."""

    def __init__(self, name: str, reason: str) -> None:
        super().__init__()
        self.name = name
        self.reason = reason

    def open_link(self) -> PayloadLink:
        """There is none."""
        raise ConnectError(f"{self.name}: {self.reason}")


def probe_of(plugin: _Named) -> Probe:
    """Ask a plugin whether it is usable here; a probe that raises means no."""
    try:
        return plugin.probe()
    except Exception as error:
        return Probe(False, f"its probe failed: {_describe(error)}")


def load_registry(extra_plugins: Sequence[object] = ()) -> Registry:
    """Load every entry point of group `rpc_backend`, then `extra_plugins` (modules or objects with hooks).

    An entry point that fails to import is kept in `failures`; the rest work.

    Raises:
        PluginConflictError: two plugins claim one name.
    """
    manager = pluggy.PluginManager(hookspecs.PROJECT)
    manager.add_hookspecs(hookspecs)
    registry = Registry()
    for entry_point in sorted(entry_points(group=hookspecs.ENTRY_POINT_GROUP), key=lambda item: item.name):
        _load(manager, entry_point, registry.failures)
    for plugin in extra_plugins:
        manager.register(plugin)
    manager.check_pending()
    manager.hook.rpc_register_backends(register=_registrar("compute backend", registry.backends))
    manager.hook.rpc_register_transports(register=_registrar("transport", registry.transports))
    manager.hook.rpc_register_payloads(register=_registrar("payload transport", registry.payloads))
    manager.hook.rpc_register_gateways(register=_registrar("gateway", registry.gateways))
    manager.hook.rpc_register_device_providers(register=_registrar("device provider", registry.providers))
    _check_schemes([*registry.transports.values(), *registry.providers.values()])
    return registry


def parse_device(text: str, threads: int, settings: Settings) -> tuple[str, DeviceOptions]:
    """Parse `NAME` or `NAME:key=value,…`.

    Raises:
        ConfigError: a part that is not `key=value`.
    """
    name, extra = parse_options(text, "device")
    return name, DeviceOptions(threads, kernel_cache(settings), extra, settings.cpu_features)


def parse_options(text: str, what: str) -> tuple[str, dict[str, str]]:
    """Parse `NAME` or `NAME:key=value,…`; `what` it is, for the error.

    Raises:
        ConfigError: a part that is not `key=value`.
    """
    name, _, tail = text.partition(":")
    extra: dict[str, str] = {}
    for part in filter(None, tail.split(",")):
        key, equals, value = part.partition("=")
        if not equals or not key:
            raise ConfigError(f"{what} {text!r}: {part!r} is not key=value")
        extra[key] = value
    return name, extra


def kernel_cache(settings: Settings) -> Path:
    """Return the folder where backends keep compiled kernels."""
    return cache_folder(settings, platformdirs.user_cache_path("zmq-rpc-backend") / "kernels")


def _create(what: str, plugin: _Named, create: Callable[[], _Made]) -> _Made:
    probe = probe_of(plugin)
    if not probe.usable:
        raise PluginLoadError(f"{what} is not usable here: {probe.reason}")
    try:
        return create()
    except RpcBackendError:
        raise
    except Exception as error:
        raise PluginLoadError(f"{what} failed to start: {_describe(error)}") from error


def _load(manager: pluggy.PluginManager, entry_point: EntryPoint, failures: list[PluginFailure]) -> None:
    try:
        manager.register(entry_point.load(), name=entry_point.name)
    except Exception as error:
        failures.append(PluginFailure(f"{entry_point.name} = {entry_point.value}", _describe(error)))


def _registrar(what: str, known: dict[str, Any]) -> Callable[[Any], None]:
    def register(plugin: Any) -> None:
        if plugin.name in known:
            raise PluginConflictError(f"two plugins register the {what} {plugin.name!r}; uninstall one of them")
        known[plugin.name] = plugin

    return register


def _check_schemes(plugins: Sequence[TransportPlugin | DeviceProvider]) -> None:
    owner: dict[str, str] = {}
    for plugin in plugins:
        for scheme in plugin.schemes:
            if owner.setdefault(scheme, plugin.name) != plugin.name:
                raise PluginConflictError(
                    f"transports {owner[scheme]!r} and {plugin.name!r} both serve {scheme}://; uninstall one of them"
                )


def _unknown(what: str, name: str, known: Sequence[str], failures: Sequence[PluginFailure]) -> str:
    text = f"no {what} named {name!r}; known: {', '.join(sorted(known)) or 'none'}"
    nearest = difflib.get_close_matches(name, known, n=1)
    if nearest:
        text += f"; did you mean {nearest[0]!r}?"
    if failures:
        text += f"; failed to load: {', '.join(f'{failure.entry_point} ({failure.reason})' for failure in failures)}"
    return text


def _describe(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}"
