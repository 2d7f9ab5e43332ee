"""The steps of a run, as records: write, transfer, compute, read.

Belongs here: what one step names, and how it is done now, one after another. Must not be here: which steps a
graph takes.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass

from rpc_backend.errors import ChannelError, RpcBackendError
from rpc_backend.graph import Tensor
from rpc_backend.interfaces import Plan, QueuedStream, Stream
from rpc_backend.scheduler.values import Bytes
from rpc_backend.scheduler.workspace import Workspace


@dataclass(frozen=True, slots=True, eq=False)
class Write:
    """Send an input, kept in `values`, to its tensor on a device."""

    device: int
    tensor: Tensor
    values: Bytes


@dataclass(frozen=True, slots=True, eq=False)
class Transfer:
    """Bring a tensor from one device to its copy on another."""

    source_device: int
    source: Tensor
    device: int
    target: Tensor


@dataclass(frozen=True, slots=True, eq=False)
class Compute:
    """Run a compiled split on its device."""

    device: int
    plan: Plan


@dataclass(frozen=True, slots=True, eq=False)
class Read:
    """Fetch an output into `values`."""

    device: int
    tensor: Tensor
    values: Bytes


Step = Write | Transfer | Compute | Read


def perform_all(workspace: Workspace, steps: Iterable[Step]) -> None:
    """Do steps in order, and return when the devices of this process are done.

    Raises:
        RpcBackendError: the first failure; no other of these steps is left to be raised later.
    """
    try:
        for step in steps:
            perform(workspace, step)
        for stream in workspace.streams:
            if isinstance(stream, QueuedStream):
                _synchronize(stream)
    except RpcBackendError as error:
        recover(workspace, error)
        raise


def recover(workspace: Workspace, error: RpcBackendError) -> None:
    """After an error, forget what else failed because of it, so that the next run does not raise it.

    Not if a worker is gone or does not answer: there is nothing to wait for.
    """
    if not isinstance(error, ChannelError):
        for stream in workspace.streams:
            with suppress(RpcBackendError):
                stream.synchronize()


def perform(workspace: Workspace, step: Step) -> None:
    """Do one step; errors of the device come out with its name.

    Raises:
        RpcBackendError: whatever the device or the way to it raises.
    """
    stream = workspace.streams[step.device]
    try:
        match step:
            case Write():
                stream.set_tensor(step.tensor, step.values.data)
            case Transfer():
                _transfer(workspace, step)
            case Compute():
                stream.compute(step.plan)
            case Read():
                stream.get_tensor(step.tensor, step.values.data)
    except RpcBackendError as error:
        if not isinstance(step, Transfer):  # which of its two devices failed is not known here
            error.located(device=workspace.devices[step.device].info.name)
        raise


def _synchronize(stream: Stream) -> None:
    try:
        stream.synchronize()
    except RpcBackendError as error:
        error.located(device=stream.device.info.name)
        raise


def _transfer(workspace: Workspace, step: Transfer) -> None:
    """Copy in the first way that the two devices offer: queued, straight, or through the host."""
    source, target = workspace.streams[step.source_device], workspace.streams[step.device]
    if not workspace.is_synchronous and _queue_copy(source, target, step):
        return
    pair = (step.source_device, step.device)
    if pair not in workspace.through_host:
        # The two streams know nothing of each other: the source must be computed before the copy, and the
        # copy be done before the source's memory is used again.
        source.synchronize()
        if target.copy_tensor(step.source, step.target):
            target.synchronize()
            return
        workspace.through_host.add(pair)
    staging = workspace.staging(step.source.nbytes).data
    source.get_tensor(step.source, staging)
    target.set_tensor(step.target, staging)


def _queue_copy(source: Stream, target: Stream, step: Transfer) -> bool:
    """Ask the target's stream, and then the source's if it is of another kind; one kind has seen the pair already."""
    if target.copy_tensor_async(source, step.source, target, step.target):
        return True
    return type(source) is not type(target) and source.copy_tensor_async(source, step.source, target, step.target)
