"""How tensors of this process become records that a worker understands.

Belongs here: places of tensors on a worker, and the forms of a single tensor and of a question. Must not be here:
sending them.
"""

from __future__ import annotations

from rpc_backend.client.buffer import RemoteBuffer
from rpc_backend.errors import GraphError
from rpc_backend.graph import Graph, Tensor, encode_graph, encode_tensor
from rpc_backend.graph.graph import Place
from rpc_backend.interfaces import Device
from rpc_backend.protocol.records import Record


def buffer_on(device: Device, tensor: Tensor) -> tuple[RemoteBuffer, int]:
    """Return the buffer that holds a tensor and the offset of its first byte.

    Raises:
        GraphError: it is not placed, or not on this very device of this very connection.
    """
    buffer, offset = tensor.location()
    if buffer is None:
        raise GraphError(f"{tensor} has no memory")
    if not isinstance(buffer, RemoteBuffer) or buffer.device is not device:
        holder = buffer.device.info.name
        raise GraphError(f"{tensor} lies on {holder}; copy it to {device.info.name} before using it there")
    return buffer, offset


def place_on(device: Device) -> Place:
    """Return the function that gives handle and offset of tensors on `device`. It raises as `buffer_on`."""

    def place(tensor: Tensor) -> tuple[int, int]:
        buffer, offset = buffer_on(device, tensor)
        return buffer.handle, offset

    return place


def encode_placed(device: Device, tensor: Tensor) -> Record:
    """Return the record of a placed tensor as a leaf with its absolute place. Raises as `buffer_on`."""
    buffer, offset = buffer_on(device, tensor)
    leaf = Tensor(tensor.type, tensor.ne, nb=tensor.nb, name=tensor.name)
    return encode_tensor(leaf, {}, lambda _: (buffer.handle, offset), computed=False)


def encode_question(tensor: Tensor) -> Record:
    """Return the record of a tensor and its sources without places or names: all that an answer can depend on."""
    records, node_ids = encode_graph(Graph([tensor]), _nowhere) if tensor.op else (_encode_leaf(tensor), [])
    return [[[*fields[:-1], ""] for fields in records], node_ids]


def _encode_leaf(tensor: Tensor) -> list[Record]:
    tensors = [tensor] if tensor.view_src is None else [tensor.view_src, tensor]
    ids = {leaf: index for index, leaf in enumerate(tensors)}
    return [encode_tensor(leaf, ids, _nowhere, computed=False) for leaf in tensors]


def _nowhere(tensor: Tensor) -> tuple[int, int]:
    return 0, 0
