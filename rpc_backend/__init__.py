"""A remote tensor backend: see one more device for each worker, and split a model over them.

`LLM` loads and runs a model, `connect` opens one worker, `Scheduler` runs graphs over devices. The names
are imported when first used, so that `import rpc_backend` is light.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rpc_backend.client import connect
    from rpc_backend.host import LLM, SamplerParams, plan_model
    from rpc_backend.scheduler import Scheduler

__all__ = ["LLM", "SamplerParams", "Scheduler", "connect", "plan_model"]

_HOMES = {
    "LLM": "rpc_backend.host",
    "SamplerParams": "rpc_backend.host",
    "Scheduler": "rpc_backend.scheduler",
    "connect": "rpc_backend.client",
    "plan_model": "rpc_backend.host",
}


def __getattr__(name: str) -> Any:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module 'rpc_backend' has no attribute {name!r}")
    return getattr(import_module(home), name)
