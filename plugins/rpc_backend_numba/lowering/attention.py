"""SOFT_MAX, ROPE, FLASH_ATTN_EXT.

Belongs here: their tables and parameters. Must not be here: kernels.

Source: ggml's CPU backend; YaRN is https://arxiv.org/abs/2309.00071, ALiBi https://arxiv.org/abs/2108.12409.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np
import numpy.typing as npt

from rpc_backend.plugin_api import RopeMode, Tensor
from rpc_backend_numba.arguments import Code, Param, Private, Shared
from rpc_backend_numba.attention_scratch import region_offsets
from rpc_backend_numba.builder import PlanBuilder
from rpc_backend_numba.lowering.types import DECODABLE, F16, F32, FLOATS

_Doubles = npt.NDArray[np.float64]


def supports_soft_max(node: Tensor) -> bool:
    return node.nb[0] == 4 and node.sources[0].nb[0] == 4 and len(node.sources) < 3


def soft_max(builder: PlanBuilder, node: Tensor) -> None:
    a = node.sources[0]
    mask = node.sources[1] if len(node.sources) == 2 else None
    slopes = builder.constant(alibi_slopes(a.ne[2], node.params["max_bias"]))
    params: list[Param] = [float(node.params["scale"]), slopes]
    builder.row(f"soft_max.{mask.type.name if mask else 'none'}", node, [a, mask], params)


def alibi_slopes(n_heads: int, max_bias: float) -> npt.NDArray[np.float32]:
    """Return the factor of the mask for each head; all 1 without a bias."""
    if max_bias <= 0 or n_heads == 0:
        return np.ones(n_heads, np.float32)
    base_heads = 2 ** int(math.log2(n_heads))
    head = np.arange(n_heads)
    regular = 2.0 ** (-max_bias * (head + 1) / base_heads)
    between = 2.0 ** (-max_bias / 2 * (2 * (head - base_heads) + 1) / base_heads)
    return np.where(head < base_heads, regular, between).astype(np.float32)


def supports_rope(node: Tensor) -> bool:
    params = node.params
    plain = params["mode"] in (RopeMode.NORMAL, RopeMode.NEOX) and params["n_offset"] == 0
    return plain and node.type in FLOATS and node.sources[0].type in FLOATS


def rope(builder: PlanBuilder, node: Tensor) -> None:
    """The angles of all tokens, shared by all nodes with these positions and parameters, then the rotation."""
    params = node.params
    n_pairs = int(params["n_dims"]) // 2
    factors = node.sources[2] if len(node.sources) == 3 else None
    with np.errstate(all="ignore"):
        frequencies, mix, magnitude = rope_frequencies(params)

    def angle_params(block: Shared) -> list[Param]:
        tables = builder.constant(frequencies), builder.constant(mix)
        return [block, n_pairs, *tables, float(params["freq_scale"]), magnitude]

    nbytes = 8 * n_pairs * node.sources[1].ne[0]
    key = tuple(value for name, value in params.items() if name != "mode")
    angles = builder.prepare(key, "angles", nbytes, [node.sources[1], factors], angle_params)
    mode = RopeMode(int(params["mode"])).name
    builder.row(f"rope.{mode}", node, [node.sources[0]], [angles, n_pairs], shared=[angles])


def rope_frequencies(params: Mapping[str, int | float]) -> tuple[_Doubles, _Doubles, float]:
    """Return per pair the angle of one position and the share that is not scaled (YaRN), and the magnitude."""
    n_dims, ext_factor = int(params["n_dims"]), params["ext_factor"]
    pair = np.arange(n_dims // 2)
    frequencies = np.float64(params["freq_base"]) ** (-2.0 * pair / n_dims)
    if ext_factor == 0:
        return frequencies, np.zeros(len(pair)), float(params["attn_factor"])
    low = np.maximum(0, np.floor(_correction_pair(params["beta_fast"], params)))
    high = np.minimum(n_dims - 1, np.ceil(_correction_pair(params["beta_slow"], params)))
    mix = (1 - np.clip((pair - low) / np.maximum(0.001, high - low), 0, 1)) * ext_factor
    magnitude = params["attn_factor"] * (1 + 0.1 * np.log(1 / np.float64(params["freq_scale"])))
    return frequencies, mix, float(magnitude)


def _correction_pair(n_rotations: float, params: Mapping[str, int | float]) -> np.float64:
    """The pair that makes `n_rotations` full turns over the original context."""
    turns = np.float64(params["n_ctx_orig"]) / (np.float64(n_rotations) * 2 * math.pi)
    return params["n_dims"] * np.log(turns) / (2 * np.log(np.float64(params["freq_base"])))


def supports_flash(node: Tensor) -> bool:
    q, k, v = node.sources[:3]
    readable = all(tensor.type in DECODABLE and tensor.has_packed_rows for tensor in (k, v))
    return q.type is F32 and readable and node.nb[0] == 4 and len(node.sources) < 5


def flash(builder: PlanBuilder, node: Tensor) -> None:
    q, k, v = node.sources[:3]
    mask = node.sources[3] if len(node.sources) == 4 else None
    params = node.params
    offsets, nbytes = region_offsets(k.ne[0], v.ne[0], builder.lanes)
    slopes = builder.constant(alibi_slopes(q.ne[2], params["max_bias"]))
    inlined = k.type is v.type and k.type in (F16, F32)
    codecs: list[Param] = [0, 0] if inlined else [Code(f"to_float.{tensor.type.name}") for tensor in (k, v)]
    factors = [float(params["scale"]), float(params["logit_softcap"])]
    values: list[Param] = [Private(), slopes, *factors, *codecs, *offsets]
    kernel = f"attention.{k.type.name if inlined else 'any'}"
    builder.row(kernel, node, [q, k, v, mask], values, private_nbytes=nbytes)
