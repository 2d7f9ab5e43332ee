"""The stream of a device in this process: does each thing at once.

Belongs here: the plain stream. Must not be here: queues or threads.
"""

from __future__ import annotations

from rpc_backend.errors import GraphError
from rpc_backend.graph import Tensor
from rpc_backend.interfaces.device import Buffer, Device, Plan, RunnablePlan, Stream


class SerialStream(Stream):
    """Runs every call before it returns; errors are raised by the call itself."""

    def __init__(self, device: Device) -> None:
        self.device = device

    def set_tensor(self, tensor: Tensor, data: memoryview, offset_bytes: int = 0) -> None:
        buffer, offset = _range(tensor, data.nbytes, offset_bytes)
        buffer.write(offset, data)

    def get_tensor(self, tensor: Tensor, out: memoryview, offset_bytes: int = 0) -> None:
        buffer, offset = _range(tensor, out.nbytes, offset_bytes)
        buffer.read_into(offset, out)

    def copy_tensor(self, source: Tensor, target: Tensor) -> bool:
        if source.nb != target.nb or source.ne != target.ne or source.type != target.type:
            return False
        from_buffer, from_offset = _range(source, source.nbytes, 0)
        to_buffer, to_offset = _range(target, target.nbytes, 0)
        return to_buffer.copy_from(to_offset, from_buffer, from_offset, source.nbytes)

    def compute(self, plan: Plan) -> None:
        if not isinstance(plan, RunnablePlan):
            raise GraphError("the plan belongs to another kind of device")
        plan.run()

    def synchronize(self) -> None:
        """Nothing is ever queued."""

    def close(self) -> None:
        """Nothing is held."""


def _range(tensor: Tensor, nbytes: int, offset_bytes: int) -> tuple[Buffer, int]:
    buffer, offset = tensor.location()
    if buffer is None:
        raise GraphError(f"{tensor} has no memory")
    if not 0 <= offset_bytes <= offset_bytes + nbytes <= tensor.nbytes:
        raise GraphError(f"{nbytes} bytes at {offset_bytes} are outside {tensor} of {tensor.nbytes} bytes")
    return buffer, offset + offset_bytes
