"""The worker: serves the devices of this machine to clients."""

from rpc_backend.worker.config import WorkerConfig
from rpc_backend.worker.server import Worker

__all__ = ["Worker", "WorkerConfig"]
