"""llama.cpp's own client on our workers with tiny random models that have states in place of a cache.

Our host has none of these architectures; through the gateway they work all the same.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest

from rpc_backend.host.sampling import log_probabilities
from rpc_backend.testing.gguf_writer import add_key, byte_vocabulary

_LIMIT_S = 120
_N_EMBD, _N_FF, _N_LAYER, _N_VOCAB, _HEAD = 128, 160, 2, 261, 64
_CONV, _INNER, _STATE, _GROUPS = 4, 128, 16, 2
_LOW = 32
_WORST = 0.02
_COMMON = {
    "block_count": _N_LAYER, "context_length": 256, "embedding_length": _N_EMBD, "feed_forward_length": _N_FF,
    "attention.layer_norm_epsilon": 1e-5, "attention.layer_norm_rms_epsilon": 1e-5, "attention.head_count": 0,
}  # fmt: skip
_SSM = {"ssm.conv_kernel": _CONV, "ssm.inner_size": _INNER, "ssm.state_size": _STATE}

_Shapes = dict[str, tuple[int, ...]]
"""Extents by name, as ggml writes them. Source: llama.cpp's `create_tensor` calls of these architectures."""


def _mamba() -> _Shapes:
    rank, inner = 8, 2 * _N_EMBD
    return {
        "attn_norm.weight": (_N_EMBD,), "ssm_in.weight": (_N_EMBD, 2 * inner), "ssm_conv1d.weight": (_CONV, inner),
        "ssm_conv1d.bias": (inner,), "ssm_x.weight": (inner, rank + 2 * _STATE), "ssm_dt.weight": (rank, inner),
        "ssm_dt.bias": (inner,), "ssm_a": (_STATE, inner), "ssm_d": (inner,), "ssm_out.weight": (inner, _N_EMBD),
    }  # fmt: skip


def _mamba2() -> _Shapes:
    heads, wide = 4, _INNER + 2 * _GROUPS * _STATE
    return {
        "attn_norm.weight": (_N_EMBD,), "ssm_in.weight": (_N_EMBD, _INNER + wide + heads),
        "ssm_conv1d.weight": (_CONV, wide), "ssm_conv1d.bias": (wide,), "ssm_dt.bias": (heads,), "ssm_a": (1, heads),
        "ssm_d": (1, heads), "ssm_norm.weight": (_INNER // _GROUPS, _GROUPS), "ssm_out.weight": (_INNER, _N_EMBD),
    }  # fmt: skip


def _rwkv(*, version: int) -> _Shapes:
    n, low = _N_EMBD, _LOW
    norms = {f"{name}.{part}": (n,) for name in ("attn_norm", "attn_norm_2", "time_mix_ln") for part in _PARTS}
    square = {f"time_mix_{name}.weight": (n, n) for name in ("key", "value", "receptance", "output")}
    own: _Shapes = {
        "time_mix_w1.weight": (n, low * 5), "time_mix_w2.weight": (low, n, 5), "time_mix_lerp_x.weight": (n, 1, 1),
        "time_mix_lerp_fused.weight": (n, 1, 1, 5), "time_mix_first.weight": (_HEAD, n // _HEAD),
        "time_mix_decay.weight": (n,), "time_mix_decay_w1.weight": (n, low), "time_mix_decay_w2.weight": (low, n),
        "time_mix_gate.weight": (n, n), "channel_mix_lerp_r.weight": (n, 1, 1),
        "channel_mix_receptance.weight": (n, n),
    }  # fmt: skip
    if version == 7:
        own = {f"time_mix_{name}0.weight": (n,) for name in "wav"}
        own |= {f"time_mix_{name}1.weight": (n, low) for name in "wavg"}
        own |= {f"time_mix_{name}2.weight": (low, n) for name in "wavg"}
        own |= {f"time_mix_{name}.weight": (n,) for name in ("k_k", "k_a", "r_k")}
        own |= {"time_mix_lerp_fused.weight": (n, 1, 1, 6)}
    mixed = {
        "channel_mix_lerp_k.weight": (n, 1, 1), "channel_mix_key.weight": (n, _N_FF),
        "channel_mix_value.weight": (_N_FF, n),
    }  # fmt: skip
    return {**norms, **square, **mixed, **own}


_PARTS = ("weight", "bias")
_LORA = {f"attention.{name}_lora_rank": _LOW for name in ("decay", "iclr", "value_residual_mix", "gate")}
_MODELS: dict[str, tuple[_Shapes, dict[str, Any]]] = {
    "mamba": (_mamba(), {**_SSM, "ssm.inner_size": 2 * _N_EMBD, "ssm.time_step_rank": 8}),
    "mamba2": (_mamba2(), {**_SSM, "ssm.time_step_rank": 4, "ssm.group_count": _GROUPS}),
    "rwkv6": (
        _rwkv(version=6),
        {"wkv.head_size": _HEAD, "time_mix_extra_dim": _LOW, "time_decay_extra_dim": _LOW, "token_shift_count": 2},
    ),
    "rwkv7": (_rwkv(version=7), {"wkv.head_size": _HEAD, "token_shift_count": 2, **_LORA}),
}


def _write(path: Path, name: str) -> Path:
    shapes, keys = _MODELS[name]
    random = np.random.default_rng(3)
    whole: _Shapes = {"token_embd.weight": (_N_EMBD, _N_VOCAB), "output.weight": (_N_EMBD, _N_VOCAB)}
    whole |= {f"output_norm.{part}": (_N_EMBD,) for part in (_PARTS if "rwkv" in name else _PARTS[:1])}
    if "rwkv" in name:
        whole |= {f"token_embd_norm.{part}": (_N_EMBD,) for part in _PARTS}
    for layer in range(_N_LAYER):
        whole |= {f"blk.{layer}.{key}": ne for key, ne in shapes.items()}
    writer = gguf.GGUFWriter(path, name)
    for key, value in {**_COMMON, **keys}.items():
        add_key(writer, f"{name}.{key}", value)
    for key, value in byte_vocabulary(_N_VOCAB).items():
        add_key(writer, key, value)
    for key, ne in whole.items():
        writer.add_tensor(key, _values(key, ne, random))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def _values(key: str, ne: tuple[int, ...], random: np.random.Generator) -> np.ndarray:
    noise = random.standard_normal(ne[::-1], np.float32)
    if key.endswith("ssm_a"):
        return -np.abs(noise)
    if "norm" in key or "_ln." in key:
        return noise * np.float32(0.1) + np.float32(key.endswith("weight"))
    return noise * np.float32(0.3 if len(ne) == 1 or "lerp" in key else ne[0] ** -0.5)


@pytest.mark.parametrize("name", _MODELS)
def test_states_are_carried_from_token_to_token(tmp_path, client, gateways, their_servers, name):
    model = _write(tmp_path / "m.gguf", name)
    random = np.random.default_rng(5)
    prompt, then = (random.integers(0, 256, count).tolist() for count in (37, 8))
    rows = [
        np.array(client(model, servers).ask(_LIMIT_S, do="logits", tokens=prompt, then=then)["rows"], np.float32)
        for servers in (gateways.gateways, their_servers)
    ]
    assert np.isfinite(rows[0]).all()
    ours, theirs = map(log_probabilities, rows)
    assert np.abs(ours - theirs).max() < _WORST
    assert np.ptp(theirs, axis=1).min() > 1
