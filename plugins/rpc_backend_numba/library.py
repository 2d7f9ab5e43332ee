"""The kernels of one target, compiled when first asked for.

Belongs here: kernel names and how each is got: from memory, from disk, or compiled. Must not be here: what
kernels do, or which ones a graph needs (`lowering`).
"""

from __future__ import annotations

import logging
import sys
import time
from collections.abc import Iterable
from importlib import import_module
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING, NamedTuple

from rpc_backend.plugin_api import Glu, Unary
from rpc_backend_numba.attention_scratch import INLINED_TYPES
from rpc_backend_numba.cache import KernelCache
from rpc_backend_numba.code import CodeLoader
from rpc_backend_numba.compiler import Compiler
from rpc_backend_numba.formats import FORMATS
from rpc_backend_numba.targets import Target

if TYPE_CHECKING:
    from rpc_backend_numba.simd.layer import Layer

_log = logging.getLogger(__name__)
_WAIT_S = 60.0
"""How long to wait for another process that compiles the same kernel."""


class KernelSource(NamedTuple):
    """Where a kernel is made: `module.factory(layer, *variant)` returns a function of `n_args` int64s.

    `variants` are all that a graph may need; without any the factory takes only the layer.
    """

    module: str
    factory: str
    n_args: int = 3
    variants: tuple[str, ...] = ()


_FLOATS = ("F32", "F16", "BF16")
_BLOCKS = tuple(FORMATS)
_ENCODED = (*_FLOATS, "Q8_0", "Q4_0", "Q4_1", "Q5_0", "Q5_1")

KERNELS: dict[str, KernelSource] = {
    "run": KernelSource("walker", "make_run", 2),
    "serve": KernelSource("walker", "make_serve"),
    "inputs": KernelSource("product_inputs", "make_inputs", 3, _FLOATS),
    "block_inputs": KernelSource("product_inputs", "make_block_inputs", 3, _FLOATS),
    "inputs_float_row": KernelSource("product_inputs", "make_inputs_float_row", 3, _FLOATS),
    "inputs_float_tile": KernelSource("product_inputs", "make_inputs_float_tile", 3, _FLOATS),
    "product_rows": KernelSource("product", "make_product_rows"),
    "product_tiles": KernelSource("product", "make_product_tiles"),
    "expert_groups": KernelSource("experts", "make_groups"),
    "expert_units": KernelSource("experts", "make_units", 3, ("quantized", "float")),
    "expert_tiles": KernelSource("experts", "make_expert_tiles"),
    "expert_rows": KernelSource("experts", "make_expert_rows"),
    "add_id": KernelSource("experts", "make_add_id"),
    "rows": KernelSource("product_rows", "make_rows", 9, _BLOCKS),
    "float_rows": KernelSource("product_rows", "make_float_rows", 9, _FLOATS),
    "panel": KernelSource("product_panels", "make_panel", 6, _FLOATS),
    "tile": KernelSource("product_tiles", "make_tile", 9, (*_BLOCKS, "float")),
    "interleave": KernelSource("interleave", "make_interleave", 6, _BLOCKS),
    "separate": KernelSource("interleave", "make_separate", 6, _BLOCKS),
    "pick": KernelSource("interleave", "make_pick", 4, _BLOCKS),
    "rearrange": KernelSource("interleave", "make_rearrange"),
    "to_float": KernelSource("row_codecs", "make_to_float", 3, (*_FLOATS, *_BLOCKS)),
    "from_float": KernelSource("row_codecs", "make_from_float", 3, _ENCODED),
    "copy": KernelSource("copies", "make_copy", 3, ("same", "float", "to_int", "to_float")),
    "copy_rows": KernelSource("copies", "make_copy_rows", 3, ("same", "encode", "decode", "both")),
    "concat": KernelSource("copies", "make_concat"),
    "repeat": KernelSource("copies", "make_repeat"),
    "get_rows": KernelSource("rows", "make_get_rows"),
    "set_rows": KernelSource("rows", "make_set_rows"),
    "binary": KernelSource("elementwise", "make_binary", 3, ("ADD", "SUB", "MUL", "DIV")),
    "scale": KernelSource("elementwise", "make_scale"),
    "unary": KernelSource("elementwise", "make_unary", 3, tuple(kind.name for kind in Unary)),
    "function": KernelSource("elementwise", "make_function", 3, ("SQR", "SQRT", "LEAKY_RELU")),
    "wave": KernelSource("elementwise", "make_wave", 3, ("SIN", "COS")),
    "log": KernelSource("elementwise", "make_log"),
    "clamp": KernelSource("elementwise", "make_clamp"),
    "glu": KernelSource("elementwise", "make_glu", 3, tuple(kind.name for kind in Glu)),
    "rms_norm": KernelSource("reductions", "make_rms_norm"),
    "norm_chain": KernelSource("norm_chains", "make_norm_chain", 3, ("NORM_MUL", "ADD_NORM_MUL")),
    "sum_rows": KernelSource("reductions", "make_sum_rows"),
    "soft_max": KernelSource("reductions", "make_soft_max", 3, ("none", "F32", "F16")),
    "norm": KernelSource("norms", "make_norm", 3, ("NORM", "L2_NORM")),
    "group_norm": KernelSource("norms", "make_group_norm"),
    "total": KernelSource("sums", "make_total"),
    "cumsum": KernelSource("sums", "make_cumsum"),
    "ssm_conv": KernelSource("states", "make_ssm_conv"),
    "gated_delta_net": KernelSource("states", "make_gated_delta_net"),
    "gated_linear_attn": KernelSource("states", "make_gated_linear_attn"),
    "solve_tri": KernelSource("states", "make_solve_tri"),
    "ssm_scan": KernelSource("recurrences", "make_ssm_scan"),
    "rwkv_wkv6": KernelSource("recurrences", "make_rwkv_wkv6"),
    "rwkv_wkv7": KernelSource("recurrences", "make_rwkv_wkv7"),
    "indexer": KernelSource("mixes", "make_indexer"),
    "hc_comb": KernelSource("mixes", "make_hc_comb"),
    "hc_pre": KernelSource("mixes", "make_hc_pre"),
    "hc_post": KernelSource("mixes", "make_hc_post"),
    "patches": KernelSource("images", "make_patches"),
    "convolve": KernelSource("images", "make_convolve"),
    "spread": KernelSource("images", "make_spread"),
    "columns": KernelSource("images", "make_columns"),
    "pool": KernelSource("images", "make_pool"),
    "resample": KernelSource("images", "make_resample"),
    "windows": KernelSource("images", "make_windows"),
    "fill": KernelSource("places", "make_fill"),
    "band": KernelSource("places", "make_band"),
    "wrap": KernelSource("places", "make_wrap"),
    "timestep": KernelSource("places", "make_timestep"),
    "count_equal": KernelSource("places", "make_count_equal"),
    "out_prod": KernelSource("places", "make_out_prod"),
    "argmax": KernelSource("selection", "make_argmax"),
    "top_k": KernelSource("selection", "make_top_k"),
    "argsort": KernelSource("sorting", "make_argsort"),
    "angles": KernelSource("rope", "make_angles"),
    "rope": KernelSource("rope", "make_rope", 3, ("NORMAL", "NEOX")),
    "attention": KernelSource("attention", "make_attention", 3, (*INLINED_TYPES, "any")),
}
"""A kernel's name is one of these, with its variant after a dot: `rows.Q4_1`."""


def all_kernels() -> list[str]:
    """Return the names of all kernels that a graph may need."""
    return [
        f"{kind}.{variant}" if variant else kind
        for kind, source in KERNELS.items()
        for variant in source.variants or ("",)
    ]


class KernelLibrary:
    """Addresses of kernels by name. Any thread may ask."""

    def __init__(self, target: Target, cache: KernelCache) -> None:
        self.target = target
        self._cache = cache
        self._loader = CodeLoader(target)
        self._compiler = None if cache.folder is None else Compiler(target.name, cache.folder)
        self._addresses: dict[str, int] = {}
        self._lock = Lock()

    @property
    def folder(self) -> Path | None:
        """Where compiled kernels are kept; None: nowhere."""
        return self._cache.folder

    def addresses(self, names: Iterable[str]) -> dict[str, int]:
        """Return the addresses of kernels; those not yet compiled for this CPU are compiled now."""
        with self._lock:
            wanted = sorted(set(names))
            missing = [name for name in wanted if name not in self._addresses and not self._load(name)]
            if missing:
                self._get_compiled(missing)
            return {name: self._addresses[name] for name in wanted}

    def compile_missing(self, names: Iterable[str]) -> None:
        """Compile kernels, in this order, that the cache lacks."""
        with self._lock:
            missing = [name for name in names if name not in self._addresses and not self._cache.has(name)]
            if missing:
                self._compile_all(missing)

    def _get_compiled(self, names: list[str]) -> None:
        """Have kernels compiled by another process, or else compile them here, and load them.

        Where numba is loaded already there is no memory to be saved.
        """
        started = time.monotonic()
        _log.info("compiling %d kernels for this CPU, once: %s", len(names), ", ".join(names))
        if self._compiler is not None and "numba" not in sys.modules and self._compiler.compile(names):
            names = [name for name in names if not self._load(name)]
        if names:
            self._compile_all(names)
        _log.info("compiled them in %.1f s", time.monotonic() - started)

    def _load(self, name: str) -> bool:
        found = self._cache.read(name)
        if found is not None:
            self._addresses[name] = self._loader.load(*found)
        return found is not None

    def _compile_all(self, names: list[str]) -> None:
        """Compile kernels; those that another process is at come last, and are most often there by then."""
        from rpc_backend_numba.simd.layer import Layer

        layer = Layer(self.target)
        busy: list[str] = []
        for name in names:
            with self._cache.turn(name, 0.0) as is_mine:
                if not is_mine:
                    busy.append(name)
                elif not self._load(name):
                    self._compile(name, layer)
        for name in busy:
            with self._cache.turn(name, _WAIT_S):  # one that hangs does not hold us up for ever
                if not self._load(name):
                    self._compile(name, layer)

    def _compile(self, name: str, layer: Layer) -> None:
        from rpc_backend_numba.compile import compile_function

        kind, _, variant = name.partition(".")
        source = KERNELS[kind]
        factory = getattr(import_module(f"rpc_backend_numba.kernels.{source.module}"), source.factory)
        function = factory(layer, *([variant] if variant else []))
        symbol, object_file = compile_function(function, source.n_args, self._loader.machine)
        self._cache.write(name, symbol, object_file)
        self._addresses[name] = self._loader.load(symbol, object_file)
