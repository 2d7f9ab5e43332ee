"""What each command does: one function per row of the command table, in files by subject."""

from rpc_backend.worker.handlers import buffers, devices, graphs, sessions, tensors

MODULES = (sessions, devices, buffers, tensors, graphs)

__all__ = ["MODULES"]
