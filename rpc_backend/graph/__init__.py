"""Tensors, element types, operations and graphs: what both sides mean by them. No I/O."""

from rpc_backend.graph import build, build_images
from rpc_backend.graph.element_types import ELEMENT_TYPES, ElementType, element_type
from rpc_backend.graph.graph import Graph, decode_graph, decode_tensor, encode_graph, encode_tensor, graph_digest
from rpc_backend.graph.ops import OPS, Glu, Interpolation, Op, Pool, RopeMode, Shape, Triangle, Unary, op_table_digest
from rpc_backend.graph.resampling import Taps, taps_of
from rpc_backend.graph.tensor import MAX_DIMS, Tensor, extent_nbytes, packed_strides
from rpc_backend.graph.validate import check_graph, check_node, check_tensor

__all__ = [
    "ELEMENT_TYPES", "MAX_DIMS", "OPS", "ElementType", "Glu", "Graph", "Interpolation", "Op", "Pool", "RopeMode",
    "Shape", "Taps", "Tensor", "Triangle", "Unary", "build", "build_images", "check_graph", "check_node",
    "check_tensor", "decode_graph", "decode_tensor", "element_type", "encode_graph", "encode_tensor", "extent_nbytes",
    "graph_digest", "op_table_digest", "packed_strides", "taps_of",
]  # fmt: skip
