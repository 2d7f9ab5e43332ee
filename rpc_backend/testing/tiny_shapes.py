"""What tiny models of each architecture need beside the common shape.

Belongs here: metadata and quirks by architecture. Must not be here: writing files (`gguf_writer`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

_WINDOW = 24
_EXPERTS = {"expert_count": 4, "expert_used_count": 2, "expert_feed_forward_length": 64}


@dataclass(frozen=True, slots=True)
class TinyShape:
    """`keys` are metadata keys without the architecture's name. With `heads_fill_width` all heads together are as wide
    as the embedding; with `is_tied` there is never an output matrix."""

    keys: Mapping[str, Any] = field(default_factory=dict[str, Any])
    heads_fill_width: bool = False
    is_tied: bool = False


_PLAIN = TinyShape()
_SHAPES = {
    "qwen2": TinyShape(heads_fill_width=True),
    "qwen2moe": TinyShape({**_EXPERTS, "expert_shared_feed_forward_length": 96}, heads_fill_width=True),
    "qwen3moe": TinyShape({**_EXPERTS, "expert_count": 8, "expert_used_count": 3}),
    "gemma": TinyShape(is_tied=True),
    "gemma2": TinyShape(
        {"attention.sliding_window": _WINDOW, "attn_logit_softcapping": 4.0, "final_logit_softcapping": 6.0},
        is_tied=True,
    ),
    "gemma3": TinyShape(
        {
            "attention.sliding_window": _WINDOW,
            "attention.sliding_window_pattern": [True, False],
            "rope.freq_base": 1000000.0,
        },
        is_tied=True,
    ),
    "phi3": TinyShape(heads_fill_width=True),
    "olmo2": TinyShape(heads_fill_width=True),
    "granite": TinyShape({"logit_scale": 2.0, "residual_scale": 0.5, "embedding_scale": 3.0, "attention.scale": 0.25}),
    "gpt-oss": TinyShape({**_EXPERTS, "attention.sliding_window": _WINDOW}),
    "qwen35": TinyShape(
        {
            "rope.dimension_count": 16,
            "rope.dimension_sections": [3, 3, 2, 0],
            "full_attention_interval": 2,
            "ssm.conv_kernel": 4,
            "ssm.state_size": 16,
            "ssm.group_count": 2,
            "ssm.time_step_rank": 4,
            "ssm.inner_size": 64,
        }
    ),
}


def tiny_shape(architecture: str) -> TinyShape:
    """Return what an architecture needs; most need nothing."""
    return _SHAPES.get(architecture, _PLAIN)
