"""ADD, ADD1, SUB, MUL, DIV, SCALE, CLAMP, LOG, SQR, SQRT, SIN, COS, LEAKY_RELU, UNARY, GLU.

Belongs here: their kernels' operands and parameters. Must not be here: kernels.
"""

from __future__ import annotations

from rpc_backend.plugin_api import Glu, Tensor, Unary
from rpc_backend_numba.arguments import Parts
from rpc_backend_numba.builder import PlanBuilder
from rpc_backend_numba.lowering.parts import shared_parts
from rpc_backend_numba.lowering.types import FLOATS


def supports(node: Tensor) -> bool:
    """Any mix of float types, any strides."""
    return all(tensor.type in FLOATS for tensor in (node, *node.sources))


def supports_add_id(node: Tensor) -> bool:
    return all(tensor.type in FLOATS for tensor in (node, *node.sources[:2]))


def binary(builder: PlanBuilder, node: Tensor) -> None:
    assert node.op is not None
    name = "ADD" if node.op.name == "ADD1" else node.op.name
    parts = [_parts_of(tensor, node) for tensor in (node, *node.sources)]
    builder.row(f"binary.{name}", node, node.sources, parts=parts)


def scale(builder: PlanBuilder, node: Tensor) -> None:
    params = node.params
    builder.row("scale", node, node.sources, [float(params["scale"]), float(params["bias"])])


def clamp(builder: PlanBuilder, node: Tensor) -> None:
    params = node.params
    builder.row("clamp", node, node.sources, [float(params["min"]), float(params["max"])])


def log(builder: PlanBuilder, node: Tensor) -> None:
    builder.row("log", node, node.sources)


def function(builder: PlanBuilder, node: Tensor) -> None:
    assert node.op is not None
    slope = [float(node.params["slope"])] if node.op.name == "LEAKY_RELU" else []
    builder.row(f"function.{node.op.name}", node, node.sources, slope)


def wave(builder: PlanBuilder, node: Tensor) -> None:
    assert node.op is not None
    builder.row(f"wave.{node.op.name}", node, node.sources)


def unary(builder: PlanBuilder, node: Tensor) -> None:
    kind = Unary(int(node.params["function"]))
    names = ("alpha_n", "alpha_p", "beta", "eps") if kind is Unary.XIELU else ()
    builder.row(f"unary.{kind.name}", node, node.sources, [float(node.params[name]) for name in names])


def glu(builder: PlanBuilder, node: Tensor) -> None:
    """Gate and value are two tensors, or the two halves of the rows of one."""
    params = node.params
    gate = value = node.sources[0]
    gate_offset = value_offset = 0
    if len(node.sources) == 2:
        value = node.sources[1]
    else:
        half = node.ne[0] * gate.nb[0]
        gate_offset, value_offset = (half, 0) if params["swapped"] else (0, half)
    numbers = [gate_offset, value_offset, float(params["alpha"]), float(params["limit"])]
    parts = [_parts_of(tensor, node) for tensor in (node, gate, value)]
    builder.row(f"glu.{Glu(int(params['function'])).name}", node, [gate, value], numbers, parts=parts)


def _parts_of(tensor: Tensor, node: Tensor) -> Parts | None:
    """How threads share a result, or a source that goes with it element by element."""
    return shared_parts(tensor) if tensor.ne == node.ne else None
