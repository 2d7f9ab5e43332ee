"""The reference compute backend: numpy, slow, obvious; it defines what every operation means.

Belongs here: registration, without heavy imports. Must not be here: operations.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from rpc_backend.plugin_api import ComputeBackend, ConfigError, Device, DeviceOptions, Probe, hookimpl


@hookimpl
def rpc_register_backends(register: Callable[[ComputeBackend], None]) -> None:
    register(ComputeBackend("reference", _probe, _create))


def _probe() -> Probe:
    return Probe(True)


def _create(options: DeviceOptions) -> Sequence[Device]:
    if options.extra:
        raise ConfigError(f"the reference backend takes no options, it was given {', '.join(sorted(options.extra))}")
    from rpc_backend_reference.device import ReferenceDevice

    return [ReferenceDevice()]
