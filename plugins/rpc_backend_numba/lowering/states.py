"""SSM_CONV, GATED_DELTA_NET, GATED_LINEAR_ATTN, SOLVE_TRI.

Belongs here: their parameters and memory. Must not be here: kernels.
"""

from __future__ import annotations

from rpc_backend.plugin_api import Tensor, host_address
from rpc_backend_numba.arguments import Operand, Param, Private
from rpc_backend_numba.builder import PlanBuilder
from rpc_backend_numba.formats import STATE_ROWS


def supports(node: Tensor) -> bool:
    return True


def supports_packed(node: Tensor) -> bool:
    """Rows of all sources lie packed, and the result does as a whole."""
    return node.is_contiguous and all(source.has_packed_rows for source in node.sources)


def ssm_conv(builder: PlanBuilder, node: Tensor) -> None:
    builder.row("ssm_conv", node, node.sources)


def solve_tri(builder: PlanBuilder, node: Tensor) -> None:
    builder.row("solve_tri", node, node.sources)


def gated_delta_net(builder: PlanBuilder, node: Tensor) -> None:
    q, k, v, gate, beta, state = node.sources
    params: list[Param] = [Private(), int(node.params["snapshots"])]
    for tensor in (beta, state):
        params += [host_address(tensor), *tensor.nb[1:]]
    operands = [Operand.of(tensor) for tensor in (node, q, k, v, gate)]
    nbytes = 4 * (STATE_ROWS + 1) * v.ne[0]
    builder.row("gated_delta_net", node, node.sources, params, operands=operands, private_nbytes=nbytes)


def gated_linear_attn(builder: PlanBuilder, node: Tensor) -> None:
    state = node.sources[4]
    operands = [Operand.of(tensor) for tensor in (node, *node.sources[:4])]
    params: list[Param] = [float(node.params["scale"]), host_address(state), state.nb[1]]
    builder.row("gated_linear_attn", node, node.sources, params, operands=operands)
