"""Checks of tensors and graphs from outside; they cannot be switched off.

Belongs here: every rule that must hold before a kernel may touch memory. Must not be here: checks that
depend on the data (row indices), which kernels make themselves, or on what a device supports.
"""

from __future__ import annotations

from rpc_backend.errors import GraphError
from rpc_backend.graph.graph import Graph
from rpc_backend.graph.ops import Shape
from rpc_backend.graph.tensor import Tensor

MAX_NBYTES = 2**62


def check_tensor(tensor: Tensor) -> None:
    """Check extents, strides, alignment and that the tensor lies inside its memory.

    Raises:
        GraphError: naming the tensor and the rule.
    """
    kind = tensor.type
    if tensor.ne[0] % kind.block_size:
        raise GraphError(f"{tensor}: rows are no whole blocks of {kind.block_size}")
    if max(tensor.ne) > MAX_NBYTES or not all(0 <= stride <= MAX_NBYTES for stride in tensor.nb):
        raise GraphError(f"{tensor}: extents or strides {tensor.nb} are out of range")
    if kind.is_quantized and tensor.nb[0] != kind.block_nbytes:
        raise GraphError(f"{tensor}: the blocks of a quantised row must be packed")
    if tensor.nbytes > MAX_NBYTES:
        raise GraphError(f"{tensor}: spans more than {MAX_NBYTES} bytes")
    _check_bounds(tensor)
    _check_overlap(tensor)
    _check_alignment(tensor)


def check_graph(graph: Graph) -> None:
    """Check every tensor of a graph, and of every node arity, parameters and shape.

    Raises:
        GraphError: naming the tensor and the rule.
    """
    for tensor in graph.tensors():
        check_tensor(tensor)
    for node in graph.nodes:
        check_node(node)


def check_node(node: Tensor) -> None:
    """Check a node against the row of its operation.

    Raises:
        GraphError: wrong arity, parameters, element types or shape.
    """
    op = node.op
    if op is None:
        raise GraphError(f"{node} has no operation")
    if not op.min_sources <= len(node.sources) <= op.max_sources:
        raise GraphError(f"{node}: {len(node.sources)} sources, {op.name} takes {op.min_sources} to {op.max_sources}")
    try:
        shape = op.rule(node.sources, node.params, Shape(node.type, node.ne))
    except GraphError as error:
        raise GraphError(f"{node}: {error.message}") from error
    if shape != (node.type, node.ne):
        raise GraphError(f"{node}: {op.name} of these sources gives {shape.type.name} {list(shape.ne)}")
    if not op.moves_data and node.view_src is None:
        raise GraphError(f"{node}: {op.name} must be a view of its source")


def _check_overlap(tensor: Tensor) -> None:
    """Refuse strides that let a few bytes stand for elements without end, which no kernel would finish."""
    room = (tensor.view_src or tensor).nbytes
    packed = tensor.n_elements // tensor.type.block_size * tensor.type.block_nbytes
    if packed > room:
        raise GraphError(f"{tensor}: with strides {tensor.nb} its {packed} bytes of elements overlap in {room} bytes")


def _check_alignment(tensor: Tensor) -> None:
    step = tensor.type.alignment
    _, offset = tensor.location()
    strides = [stride for extent, stride in zip(tensor.ne, tensor.nb, strict=True) if extent > 1]
    if any(value % step for value in (offset, *strides)):
        raise GraphError(f"{tensor}: offset {offset} or strides {tensor.nb} are not multiples of {step} bytes")


def _check_bounds(tensor: Tensor) -> None:
    source = tensor.view_src
    if source is not None:
        if source.view_src is not None:
            raise GraphError(f"{tensor} is a view of a view")
        if tensor.view_offs < 0 or tensor.view_offs + tensor.nbytes > source.nbytes:
            raise GraphError(f"{tensor} reaches outside {source} at {tensor.view_offs}")
    elif tensor.buffer is None:
        raise GraphError(f"{tensor} has no memory")
    elif tensor.offset < 0 or tensor.offset + tensor.nbytes > tensor.buffer.nbytes:
        raise GraphError(
            f"{tensor} of {tensor.nbytes} bytes at {tensor.offset} reaches outside its buffer of {tensor.buffer.nbytes}"
        )
