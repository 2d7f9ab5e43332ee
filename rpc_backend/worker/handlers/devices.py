"""Commands that ask what a device is and can do.

Belongs here: questions. Must not be here: anything that changes state.
"""

from __future__ import annotations

from rpc_backend.protocol.commands import GET_ALIGNMENT, GET_ALLOC_SIZE, GET_DEVICE_MEMORY, GET_MAX_SIZE, SUPPORTS_OP
from rpc_backend.protocol.records import DeviceMemory, Flags, Size, Sizes
from rpc_backend.worker.calls import Call, handles
from rpc_backend.worker.state import WorkerState
from rpc_backend.worker.tensors import decode_question


@handles(GET_ALIGNMENT)
def get_alignment(state: WorkerState, call: Call) -> Size:
    """Give the alignment of tensors in buffers of a device."""
    return Size(state.seat(call.request.device).device.info.alignment)


@handles(GET_MAX_SIZE)
def get_max_size(state: WorkerState, call: Call) -> Size:
    """Give the largest buffer of a device."""
    return Size(state.seat(call.request.device).device.info.max_buffer_nbytes)


@handles(GET_DEVICE_MEMORY)
def get_device_memory(state: WorkerState, call: Call) -> DeviceMemory:
    """Give free and total memory under the cap."""
    memory = state.seat(call.request.device).account.memory()
    return DeviceMemory(memory.free_nbytes, memory.total_nbytes)


@handles(GET_ALLOC_SIZE)
def get_alloc_size(state: WorkerState, call: Call) -> Sizes:
    """Give the bytes to reserve for each tensor, never below its own extent."""
    device = state.seat(call.request.device).device
    tensors = [decode_question(record) for record in call.request.ops]
    sizes = device.alloc_sizes(tensors)
    return Sizes([max(size, tensor.nbytes) for size, tensor in zip(sizes, tensors, strict=True)])


@handles(SUPPORTS_OP)
def supports_op(state: WorkerState, call: Call) -> Flags:
    """Say of each operation whether the device runs it."""
    device = state.seat(call.request.device).device
    return Flags([bool(flag) for flag in device.supports_ops([decode_question(record) for record in call.request.ops])])
