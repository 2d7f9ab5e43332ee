"""SOFT_MAX, ROPE, FLASH_ATTN_EXT.

Belongs here: their tables and parameters. Must not be here: kernels.

Source: ggml's CPU backend; YaRN is https://arxiv.org/abs/2309.00071, ALiBi https://arxiv.org/abs/2108.12409.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np
import numpy.typing as npt

from rpc_backend.plugin_api import RopeMode, Tensor, host_address
from rpc_backend_numba.arguments import Claims, Code, Operand, Param, Private, Shared
from rpc_backend_numba.attention_scratch import INLINED_TYPES, region_offsets
from rpc_backend_numba.builder import PlanBuilder
from rpc_backend_numba.lowering.types import DECODABLE, F32, FLOATS

_Doubles, _Whole = npt.NDArray[np.float64], npt.NDArray[np.int64]


def supports_soft_max(node: Tensor) -> bool:
    return node.nb[0] == 4 and node.sources[0].nb[0] == 4


def soft_max(builder: PlanBuilder, node: Tensor) -> None:
    a = node.sources[0]
    mask, sinks = (node.sources[index] if len(node.sources) > index else None for index in (1, 2))
    slopes = builder.constant(alibi_slopes(a.ne[2], node.params["max_bias"]))
    params: list[Param] = [float(node.params["scale"]), slopes]
    builder.row(f"soft_max.{mask.type.name if mask else 'none'}", node, [a, mask, sinks], params)


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
    return node.type in FLOATS and node.sources[0].type in FLOATS


def rope(builder: PlanBuilder, node: Tensor) -> None:
    """The angles of all tokens, shared by all nodes with these positions and parameters, then the rotation."""
    params = node.params
    mode = RopeMode(int(params["mode"]))
    n_pairs = int(params["n_dims"]) // (1 if mode is RopeMode.VISION else 2)
    n_tokens = node.ne[2]
    streams, exponents = rope_sections(mode, n_pairs, params)
    factors = node.sources[2] if len(node.sources) == 3 else None
    with np.errstate(all="ignore"):
        frequencies, mix, magnitude = rope_frequencies(params, exponents)

    def angle_params(block: Shared) -> list[Param]:
        tables = [builder.constant(table) for table in (frequencies, mix)]
        places = builder.constant(n_tokens * streams)
        return [block, n_pairs, *tables, float(params["freq_scale"]), magnitude, n_tokens, places]

    nbytes = 8 * n_pairs * n_tokens
    key = tuple(value for name, value in params.items() if name not in ("mode", "n_offset"))
    key = (*key, mode if mode.has_sections else None)
    angles = builder.prepare(key, "angles", nbytes, [node.sources[1], factors], angle_params)
    pairing = "NORMAL" if mode is RopeMode.NORMAL else "NEOX"
    rest = [angles, n_pairs, int(params["n_offset"])]
    builder.row(f"rope.{pairing}", node, [node.sources[0]], rest, shared=[angles])


def rope_sections(mode: RopeMode, n_pairs: int, params: Mapping[str, int | float]) -> tuple[_Whole, _Whole]:
    """Return for each pair which of a token's positions turns it, and the exponent of its frequency."""
    pair = np.arange(n_pairs, dtype=np.int64)
    if not mode.has_sections:
        return np.zeros(n_pairs, np.int64), pair
    sizes = np.array([int(params[f"section{index}"]) for index in range(4)])
    place = pair % sizes.sum()
    if mode is RopeMode.IMROPE:
        turn = place % 3
        return np.where(place < 3 * sizes[turn], turn, 3), pair
    section = np.searchsorted(np.cumsum(sizes), place, side="right")
    starts = np.concatenate([[0], np.cumsum(sizes[:3])])
    return section, place - starts[section] if mode is RopeMode.VISION else pair


def rope_frequencies(
    params: Mapping[str, int | float], exponents: _Whole | None = None
) -> tuple[_Doubles, _Doubles, float]:
    """Return per pair the angle of one position and the share that is not scaled (YaRN), and the magnitude."""
    n_dims, ext_factor = int(params["n_dims"]), params["ext_factor"]
    exponents = np.arange(n_dims // 2) if exponents is None else exponents
    pair = np.arange(len(exponents))
    frequencies = np.float64(params["freq_base"]) ** (-2.0 * exponents / n_dims)
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
    return q.type is F32 and readable and node.nb[0] == 4


def flash(builder: PlanBuilder, node: Tensor) -> None:
    q, k, v = node.sources[:3]
    mask, sinks = (node.sources[index] if len(node.sources) > index else None for index in (3, 4))
    params = node.params
    offsets, nbytes = region_offsets(k.ne[0], v.ne[0], builder.lanes)
    slopes = builder.constant(alibi_slopes(q.ne[2], params["max_bias"]))
    inlined = k.type is v.type and k.type.name in INLINED_TYPES
    codecs: list[Param] = [0, 0] if inlined else [Code(f"to_float.{tensor.type.name}") for tensor in (k, v)]
    factors = [float(params["scale"]), float(params["logit_softcap"])]
    ends = [host_address(sinks), sinks.nb[0]] if sinks else [0, 0]
    values: list[Param] = [Private(), Claims(), slopes, *factors, *codecs, *ends, *offsets]
    kernel = f"attention.{k.type.name if inlined else 'any'}"
    operands = [Operand.of(tensor) if tensor else None for tensor in (node, q, k, v, mask)]
    builder.row(kernel, node, [q, k, v, mask, sinks], values, private_nbytes=nbytes, operands=operands)
