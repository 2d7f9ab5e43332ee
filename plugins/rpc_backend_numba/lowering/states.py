"""SSM_CONV, SSM_SCAN, GATED_DELTA_NET, GATED_LINEAR_ATTN, RWKV_WKV6, RWKV_WKV7, SOLVE_TRI.

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


def supports_scan(node: Tensor) -> bool:
    """Rows lie packed, and so do the states, the decays and the result as a whole."""
    states, decay = node.sources[0], node.sources[3]
    return supports_packed(node) and states.is_contiguous and decay.is_contiguous


def ssm_scan(builder: PlanBuilder, node: Tensor) -> None:
    states, x, step, decay, b, c, ids = node.sources
    params: list[Param] = [
        host_address(states), states.ne[3], host_address(decay), decay.ne[0], host_address(ids), ids.nb[0],
        int(node.params["snapshots"]),
    ]  # fmt: skip
    operands = [Operand.of(tensor) for tensor in (node, x, step, b, c)]
    builder.row("ssm_scan", node, node.sources, params, operands=operands)


def supports_rwkv(node: Tensor) -> bool:
    """Rows lie packed, and so do the states, what is per head alone, and the result as a whole."""
    whole = [node.sources[-1], node.sources[3]] if len(node.sources) == 6 else [node.sources[-1]]
    return supports_packed(node) and all(tensor.is_contiguous for tensor in whole)


def rwkv_wkv6(builder: PlanBuilder, node: Tensor) -> None:
    k, v, r, first, decay, state = node.sources
    operands = [Operand.of(tensor) for tensor in (node, k, v, r, decay)]
    params: list[Param] = [host_address(state), state.ne[1], host_address(first)]
    builder.row("rwkv_wkv6", node, node.sources, params, operands=operands)


def rwkv_wkv7(builder: PlanBuilder, node: Tensor) -> None:
    r, decay, k, v, a, b, state = node.sources
    operands = [Operand.of(tensor) for tensor in (node, r, decay, k, v)]
    params: list[Param] = [host_address(state), state.ne[1]]
    for tensor in (a, b):
        params += [host_address(tensor), tensor.nb[1], tensor.nb[2]]
    builder.row("rwkv_wkv7", node, node.sources, params, operands=operands)
