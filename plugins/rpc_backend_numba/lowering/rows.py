"""RMS_NORM, NORM, L2_NORM, GROUP_NORM, SUM, SUM_ROWS, MEAN, CUMSUM, ARGMAX, ARGSORT, TOP_K, GET_ROWS, SET_ROWS.

Belongs here: operations along rows and on rows by index. Must not be here: attention.
"""

from __future__ import annotations

from rpc_backend.plugin_api import Tensor
from rpc_backend_numba.arguments import Code, Param, Private
from rpc_backend_numba.builder import PlanBuilder
from rpc_backend_numba.lowering.types import DECODABLE, ENCODABLE, F32, FLOATS, I32


def supports_f32(node: Tensor) -> bool:
    return node.sources[0].type is F32


def supports_order(node: Tensor) -> bool:
    return node.sources[0].type is F32 and node.has_packed_rows


def supports_get_rows(node: Tensor) -> bool:
    table = node.sources[0]
    return (table.type in DECODABLE or table.type is I32) and table.has_packed_rows and node.has_packed_rows


def supports_set_rows(node: Tensor) -> bool:
    values = node.sources[0]
    return values.type in FLOATS and node.type in ENCODABLE and node.has_packed_rows and values.has_packed_rows


def rms_norm(builder: PlanBuilder, node: Tensor) -> None:
    builder.row("rms_norm", node, node.sources, [float(node.params["eps"])])


def sum_rows(builder: PlanBuilder, node: Tensor) -> None:
    builder.row("sum_rows", node, node.sources, [1.0])


def mean(builder: PlanBuilder, node: Tensor) -> None:
    builder.row("sum_rows", node, node.sources, [float(node.sources[0].ne[0])])


def norm(builder: PlanBuilder, node: Tensor) -> None:
    assert node.op is not None
    builder.row(f"norm.{node.op.name}", node, node.sources, [float(node.params["eps"])])


def group_norm(builder: PlanBuilder, node: Tensor) -> None:
    params = node.params
    builder.row("group_norm", node, node.sources, [float(params["eps"]), int(params["n_groups"])])


def total(builder: PlanBuilder, node: Tensor) -> None:
    builder.row("total", node, node.sources)


def cumsum(builder: PlanBuilder, node: Tensor) -> None:
    builder.row("cumsum", node, node.sources)


def argmax(builder: PlanBuilder, node: Tensor) -> None:
    builder.row("argmax", node, node.sources)


def argsort(builder: PlanBuilder, node: Tensor) -> None:
    builder.row("argsort", node, node.sources, [int(node.params["order"])])


def top_k(builder: PlanBuilder, node: Tensor) -> None:
    builder.row("top_k", node, node.sources, [Private()], private_nbytes=8 * node.ne[0])


def get_rows(builder: PlanBuilder, node: Tensor) -> None:
    table = node.sources[0]
    codec = Code("to_float.F32" if table.type is I32 else f"to_float.{table.type.name}")  # the same bits
    if not builder.is_interleaved(table):
        builder.row("get_rows", node, node.sources, [codec, 0])
        return
    pick, n_blocks = Code(f"pick.{table.type.name}"), table.ne[0] // table.type.block_size
    nbytes = table.type.row_nbytes(table.ne[0])
    builder.row("get_rows", node, node.sources, [codec, pick, n_blocks, Private()], private_nbytes=nbytes)


def set_rows(builder: PlanBuilder, node: Tensor) -> None:
    values, indices, _ = node.sources
    decode, private = (0, 0) if values.type is F32 else (Code(f"to_float.{values.type.name}"), 4 * values.ne[0])
    params: list[Param] = [Code(f"from_float.{node.type.name}"), decode, 0, Private()]
    builder.row("set_rows", node, [values, indices], params, private_nbytes=private)
