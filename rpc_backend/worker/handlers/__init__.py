"""What each command does: one function per row of the command table, in files by subject."""

from rpc_backend.worker.handlers import buffers, devices, events, graphs, peers, sessions, tasks, tensors, weights

MODULES = (sessions, devices, buffers, tensors, weights, graphs, tasks, events, peers)

__all__ = ["MODULES"]
