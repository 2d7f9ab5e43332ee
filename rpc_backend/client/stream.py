"""The stream of a remote device.

Belongs here: `Stream` in terms of commands. Must not be here: their order (`queue`) or their parts (`transfers`).
"""

from __future__ import annotations

from contextlib import suppress

from rpc_backend.client.buffer import RemoteBuffer
from rpc_backend.client.placement import encode_placed
from rpc_backend.client.plan import RemotePlan
from rpc_backend.client.transfers import Transfers, check_range
from rpc_backend.errors import ChannelError, GraphError
from rpc_backend.graph import Tensor
from rpc_backend.interfaces import Device, Plan, Stream
from rpc_backend.protocol.commands import COPY_TENSOR
from rpc_backend.protocol.records import TensorPair


class RemoteStream(Stream):
    """All streams of one remote device share the worker's one stream of that device."""

    def __init__(self, device: Device, transfers: Transfers) -> None:
        self.device = device
        self._transfers = transfers
        self._closed = False

    def set_tensor(self, tensor: Tensor, data: memoryview, offset_bytes: int = 0) -> None:
        check_range(data.nbytes, offset_bytes, tensor.nbytes, str(tensor))
        self._transfers.upload(encode_placed(self.device, tensor), data, offset_bytes)

    def get_tensor(self, tensor: Tensor, out: memoryview, offset_bytes: int = 0) -> None:
        check_range(out.nbytes, offset_bytes, tensor.nbytes, str(tensor))
        self._transfers.download(encode_placed(self.device, tensor), out, offset_bytes)

    def copy_tensor(self, source: Tensor, target: Tensor) -> bool:
        """Copy within the worker, also from another device of it; False = another worker, or another layout."""
        buffer, _ = source.location()
        if not isinstance(buffer, RemoteBuffer) or (source.type, source.ne, source.nb) != (
            target.type,
            target.ne,
            target.nb,
        ):
            return False
        ours, theirs = self._transfers.queue, buffer.transfers.queue
        if ours.dispatcher is not theirs.dispatcher:
            return False
        if ours is not theirs:
            theirs.synchronize()
        pair = TensorPair(encode_placed(buffer.device, source), encode_placed(self.device, target))
        return ours.call(COPY_TENSOR, pair).reply.result

    def compute(self, plan: Plan) -> None:
        if not isinstance(plan, RemotePlan) or plan.device is not self.device:
            raise GraphError(f"the plan was not compiled by {self.device.info.name}")
        plan.queue(self._transfers.queue)

    def synchronize(self) -> None:
        self._transfers.queue.synchronize()

    def close(self) -> None:
        """Wait for what is queued; an error of it stays with the device."""
        if self._closed:
            return
        self._closed = True
        with suppress(ChannelError):
            self._transfers.queue.settle()
