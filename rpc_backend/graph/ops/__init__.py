"""Operations: the table of all that a graph can ask for."""

from rpc_backend.graph.ops.functions import Glu, Interpolation, Pool, RopeMode, Triangle, Unary
from rpc_backend.graph.ops.spec import Op, Param, Shape
from rpc_backend.graph.ops.table import OPS, op_of_code, op_table_digest

__all__ = [
    "OPS", "Glu", "Interpolation", "Op", "Param", "Pool", "RopeMode", "Shape", "Triangle", "Unary", "op_of_code",
    "op_table_digest",
]  # fmt: skip
