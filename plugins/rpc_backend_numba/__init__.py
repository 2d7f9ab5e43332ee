"""The CPU compute backend: kernels compiled by numba for the machine they run on.

Belongs here: registration, without heavy imports. Must not be here: kernels.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from importlib.util import find_spec

from rpc_backend.plugin_api import ComputeBackend, ConfigError, Device, DeviceOptions, Probe, hookimpl

_OPTIONS = frozenset({"cpu_features"})


@hookimpl
def rpc_register_backends(register: Callable[[ComputeBackend], None]) -> None:
    register(ComputeBackend("numba", _probe, _create))


def _probe() -> Probe:
    missing = [name for name in ("numba", "llvmlite") if find_spec(name) is None]
    if missing:
        return Probe(False, f"the package {missing[0]} is not installed; install zmq-rpc-backend with its dependencies")
    return Probe(True)


def _create(options: DeviceOptions) -> Sequence[Device]:
    """Make the one device of this machine's processor.

    Option `cpu_features` (auto, avx512, avx2, portable) says which instructions its kernels may use, or else the
    setting of that name.
    """
    unknown = sorted(set(options.extra) - _OPTIONS)
    if unknown:
        raise ConfigError(f"the numba backend has no option {unknown[0]!r}; it has {', '.join(sorted(_OPTIONS))}")
    if options.threads < 0:
        raise ConfigError(f"threads={options.threads} is below 0; 0 means one per physical core")
    from pathlib import Path

    import platformdirs

    from rpc_backend_numba.cache import KernelCache, cache_folder
    from rpc_backend_numba.cores import default_thread_count
    from rpc_backend_numba.device import NumbaDevice
    from rpc_backend_numba.library import KernelLibrary
    from rpc_backend_numba.processor import known_processor
    from rpc_backend_numba.targets import choose_target

    root = options.cache_dir or Path(platformdirs.user_cache_dir("zmq-rpc-backend"))
    target = choose_target(options.extra.get("cpu_features", options.cpu_features), known_processor(root))
    library = KernelLibrary(target, KernelCache(cache_folder(root, target)))
    return [NumbaDevice(library, options.threads or default_thread_count())]
