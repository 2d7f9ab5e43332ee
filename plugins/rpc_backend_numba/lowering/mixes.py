"""LIGHTNING_INDEXER, DSV4_HC_COMB, DSV4_HC_PRE, DSV4_HC_POST.

Belongs here: their parameters. Must not be here: kernels.
"""

from __future__ import annotations

from rpc_backend.plugin_api import Tensor
from rpc_backend_numba.builder import PlanBuilder
from rpc_backend_numba.lowering.types import FLOATS


def supports(node: Tensor) -> bool:
    return True


def supports_indexer(node: Tensor) -> bool:
    return node.sources[1].type in FLOATS


def lightning_indexer(builder: PlanBuilder, node: Tensor) -> None:
    builder.row("indexer", node, node.sources)


def hc_comb(builder: PlanBuilder, node: Tensor) -> None:
    builder.row("hc_comb", node, node.sources, [float(node.params["eps"]), int(node.params["n_iter"])])


def hc_pre(builder: PlanBuilder, node: Tensor) -> None:
    builder.row("hc_pre", node, node.sources, [float(node.params["scale"]), int(node.params["gated"])])


def hc_post(builder: PlanBuilder, node: Tensor) -> None:
    builder.row("hc_post", node, node.sources)
