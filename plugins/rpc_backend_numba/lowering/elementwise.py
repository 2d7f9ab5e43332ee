"""ADD, SUB, MUL, DIV, SCALE, CLAMP, LOG, UNARY, GLU.

Belongs here: their kernels' operands and parameters. Must not be here: kernels.
"""

from __future__ import annotations

from rpc_backend.plugin_api import Glu, Tensor, Unary
from rpc_backend_numba.builder import PlanBuilder
from rpc_backend_numba.lowering.types import FLOATS


def supports(node: Tensor) -> bool:
    """Any mix of float types, any strides."""
    return all(tensor.type in FLOATS for tensor in (node, *node.sources))


def supports_unary(node: Tensor) -> bool:
    return supports(node) and node.params["function"] <= Unary.EXP


def supports_glu(node: Tensor) -> bool:
    return supports(node) and node.params["function"] not in (Glu.SWIGLU_OAI, Glu.SWIGLU_CLAMP)


def binary(builder: PlanBuilder, node: Tensor) -> None:
    assert node.op is not None
    builder.row(f"binary.{node.op.name}", node, node.sources)


def scale(builder: PlanBuilder, node: Tensor) -> None:
    params = node.params
    builder.row("scale", node, node.sources, [float(params["scale"]), float(params["bias"])])


def clamp(builder: PlanBuilder, node: Tensor) -> None:
    params = node.params
    builder.row("clamp", node, node.sources, [float(params["min"]), float(params["max"])])


def log(builder: PlanBuilder, node: Tensor) -> None:
    builder.row("log", node, node.sources)


def unary(builder: PlanBuilder, node: Tensor) -> None:
    builder.row(f"unary.{Unary(int(node.params['function'])).name}", node, node.sources)


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
    builder.row(f"glu.{Glu(int(params['function'])).name}", node, [gate, value], [gate_offset, value_offset])
