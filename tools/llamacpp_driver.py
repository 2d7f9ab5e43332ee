#!/usr/bin/env python3
"""Drives llama.cpp through `llama-cpp-python`, in whatever interpreter has it.

    llamacpp_driver.py serve HOST:PORT THREADS    a ggml-rpc server on the processor, until standard input ends
    llamacpp_driver.py talk                       one JSON request per line of standard input, one answer per line

Belongs here: calls into llama.cpp. Must not be here: anything of this project, which that interpreter lacks
(`llamacpp` is the other end).

Requests of `talk` have `do` and further fields; see the functions named `do_…`. An answer has `error` if it failed.
"""

from __future__ import annotations

import ctypes
import importlib
import json
import os
import random
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from typing import Any

BATCH_TOKENS = 2048
_SEED = 1
_F16 = 1
"""ggml's number of the element type F16."""
_ALL_LAYERS = 999
Item = tuple[int, int, int, bool]
"""A token, its position, its sequence, and whether its logits are wanted."""


class Driver:
    """What one `talk` has loaded: a model, and a context per workload shape."""

    def __init__(self) -> None:
        self.package: Any = importlib.import_module("llama_cpp")
        self.low: Any = importlib.import_module("llama_cpp.llama_cpp")
        self.low.llama_backend_init()
        self.model: Any = None
        self.threads = 1
        self.contexts: dict[tuple[int, int, int, bool, bool | None, int], Any] = {}
        self.batch = self.low.llama_batch_init(BATCH_TOKENS, 0, 1)

    def do_quantize(self, *, source: str, target: str, type: str) -> dict[str, Any]:
        """Write the model `source` again with matrices of llama.cpp's file type `type`."""
        file_type = getattr(self.low, f"LLAMA_FTYPE_MOSTLY_{type}", None)
        if file_type is None:
            raise ValueError(f"llama.cpp has no file type {type}")
        params = self.low.llama_model_quantize_default_params()
        params.ftype = file_type
        status = self.low.llama_model_quantize(source.encode(), target.encode(), ctypes.byref(params))
        if status:
            raise RuntimeError(f"llama_model_quantize returned {status}")
        return {}

    def do_load(self, *, model: str, threads: int, servers: Sequence[str] = ()) -> dict[str, Any]:
        """Load a model, all layers on the servers where some are given, else here."""
        started = time.perf_counter()
        params = self.low.llama_model_default_params()
        params.n_gpu_layers = _ALL_LAYERS if servers else 0
        devices = self._devices(servers)
        if servers:
            params.devices = ctypes.cast(devices, ctypes.c_void_p)
        self.model, self.threads = self.low.llama_model_load_from_file(model.encode(), params), threads
        if not self.model:
            raise RuntimeError(f"llama.cpp did not load {model}")
        return {"load_s": time.perf_counter() - started}

    def do_measure(
        self, *, n_prompt: int, n_decode: int, n_seqs: int, ubatch: int, unified: bool = True
    ) -> dict[str, Any]:
        """Time `n_prompt` tokens of each sequence, then `n_decode` steps of one token each; nothing is sampled."""
        context = self._context((n_prompt + n_decode + 1) * n_seqs, n_seqs, ubatch, unified)
        self.low.llama_memory_clear(self.low.llama_get_memory(context), True)
        token = random.Random(_SEED).randrange
        n_vocab = self._n_vocab()
        prompts = [(token(n_vocab), at, seq, at == n_prompt - 1) for seq in range(n_seqs) for at in range(n_prompt)]
        started = time.perf_counter()
        for first in range(0, len(prompts), BATCH_TOKENS):
            self._decode(context, prompts[first : first + BATCH_TOKENS])
        middle = time.perf_counter()
        for step in range(n_decode):
            self._decode(context, [(token(n_vocab), n_prompt + step, seq, True) for seq in range(n_seqs)])
        return {"prefill_s": middle - started, "decode_s": time.perf_counter() - middle}

    def do_greedy(self, *, tokens: Sequence[int], n_decode: int) -> dict[str, Any]:
        """Return the `n_decode` likeliest tokens that follow `tokens`, one after the other."""
        context = self._context(len(tokens) + n_decode, 1, BATCH_TOKENS, True)
        self.low.llama_memory_clear(self.low.llama_get_memory(context), True)
        items = [(token, at, 0, at == len(tokens) - 1) for at, token in enumerate(tokens)]
        found: list[int] = []
        for step in range(n_decode):
            self._decode(context, items)
            row = self.low.llama_get_logits_ith(context, -1)
            found.append(max(range(self._n_vocab()), key=row.__getitem__))
            items = [(found[-1], len(tokens) + step, 0, True)]
        return {"tokens": found}

    def do_choices(
        self,
        *,
        tokens: Sequence[int],
        n_decode: int = 0,
        then: Sequence[int] = (),
        flash: bool | None = None,
        cache: int = _F16,
    ) -> dict[str, Any]:
        """Return the likeliest token after `tokens` and after each that follows, and how far its logit leads the next.

        What follows is `then`, or the likeliest token itself, `n_decode` times. `flash` None is llama.cpp's choice,
        `cache` is ggml's number of the element type of cached keys and values.
        """
        numpy: Any = importlib.import_module("numpy")
        steps = len(then) or n_decode
        context = self._context(len(tokens) + steps, 1, BATCH_TOKENS, True, flash, cache)
        self.low.llama_memory_clear(self.low.llama_get_memory(context), True)
        items = [(token, at, 0, at == len(tokens) - 1) for at, token in enumerate(tokens)]
        found: list[int] = []
        leads: list[float] = []
        for step in range(steps):
            self._decode(context, items)
            logits = self.low.llama_get_logits_ith(context, -1)
            row = numpy.ctypeslib.as_array(logits, (self._n_vocab(),))
            best, second = numpy.argpartition(-row, 1)[:2]
            found.append(int(best))
            leads.append(float(row[best] - row[second]))
            items = [(then[step] if then else found[-1], len(tokens) + step, 0, True)]
        return {"tokens": found, "leads": leads}

    def do_logits(
        self, *, tokens: Sequence[int], then: Sequence[int], flash: bool | None = None, cache: int = _F16
    ) -> dict[str, Any]:
        """Return the logits before each token of `then`, which follow `tokens` one by one.

        `cache` is ggml's number of the element type of cached keys and values.
        """
        numpy: Any = importlib.import_module("numpy")
        context = self._context(len(tokens) + len(then), 1, BATCH_TOKENS, True, flash, cache)
        self.low.llama_memory_clear(self.low.llama_get_memory(context), True)
        items = [(token, at, 0, at == len(tokens) - 1) for at, token in enumerate(tokens)]
        rows: list[list[float]] = []
        for step, token in enumerate(then):
            self._decode(context, items)
            logits = self.low.llama_get_logits_ith(context, -1)
            rows.append(numpy.ctypeslib.as_array(logits, (self._n_vocab(),)).tolist())
            items = [(token, len(tokens) + step, 0, True)]
        return {"rows": rows}

    def answer(self, line: str) -> dict[str, Any]:
        """Return the answer to a request; whatever goes wrong is one too."""
        try:
            request = json.loads(line)
            return getattr(self, f"do_{request.pop('do')}")(**request)
        except Exception as error:
            return {"error": f"{type(error).__name__}: {error}"}

    def _n_vocab(self) -> int:
        return self.low.llama_vocab_n_tokens(self.low.llama_model_get_vocab(self.model))

    def _context(
        self, n_ctx: int, n_seqs: int, ubatch: int, unified: bool, flash: bool | None = None, cache: int = _F16
    ) -> Any:
        key = (n_ctx, n_seqs, ubatch, unified, flash, cache)
        if key not in self.contexts:
            params = self.low.llama_context_default_params()
            params.n_ctx, params.n_seq_max, params.kv_unified = n_ctx, n_seqs, unified
            params.n_batch, params.n_ubatch = BATCH_TOKENS, ubatch
            params.n_threads = params.n_threads_batch = self.threads
            params.flash_attn_type = -1 if flash is None else int(flash)
            params.type_k = params.type_v = cache
            self.contexts[key] = self.low.llama_init_from_model(self.model, params)
            if not self.contexts[key]:
                raise RuntimeError(f"llama.cpp made no context of {n_ctx} tokens")
        return self.contexts[key]

    def _decode(self, context: Any, items: Sequence[Item]) -> None:
        batch = self.batch
        for index, (token, position, sequence, wanted) in enumerate(items):
            batch.token[index], batch.pos[index], batch.logits[index] = token, position, wanted
            batch.n_seq_id[index], batch.seq_id[index][0] = 1, sequence
        batch.n_tokens = len(items)
        status = self.low.llama_decode(context, batch)
        if status:
            raise RuntimeError(f"llama_decode returned {status}")
        self.low.llama_synchronize(context)

    def _devices(self, servers: Sequence[str]) -> Any:
        """Return the null-terminated list of the devices of all servers: one each."""
        found: list[Any] = []
        if servers:
            base, rpc = library(self.package, "libggml-base.so"), library(self.package, "libggml-rpc.so")
            add, device = rpc.ggml_backend_rpc_add_server, base.ggml_backend_reg_dev_get
            add.restype, add.argtypes = ctypes.c_void_p, (ctypes.c_char_p,)
            device.restype, device.argtypes = ctypes.c_void_p, (ctypes.c_void_p, ctypes.c_size_t)
            found = [device(add(server.encode()), 0) for server in servers]
        return (ctypes.c_void_p * (len(found) + 1))(*found, None)


def library(package: Any, name: str) -> ctypes.CDLL:
    """Return one of the libraries that `llama-cpp-python` carries; OSError if it was built without."""
    return ctypes.CDLL(os.path.join(os.path.dirname(package.__file__), "lib", name))


def serve(endpoint: str, threads: int) -> None:
    """Serve ggml-rpc on the processor until standard input ends."""
    package: Any = importlib.import_module("llama_cpp")
    ggml, rpc = library(package, "libggml.so"), library(package, "libggml-rpc.so")
    ggml.ggml_backend_dev_by_name.restype = ctypes.c_void_p
    ggml.ggml_backend_dev_by_name.argtypes = (ctypes.c_char_p,)
    devices = (ctypes.c_void_p * 1)(ggml.ggml_backend_dev_by_name(b"CPU"))
    start = rpc.ggml_backend_rpc_start_server
    start.restype = None
    start.argtypes = (
        ctypes.c_char_p,
        ctypes.c_char_p,
        ctypes.c_size_t,
        ctypes.c_size_t,
        ctypes.POINTER(ctypes.c_void_p),
    )
    threading.Thread(target=_exit_with_input, daemon=True).start()
    start(endpoint.encode(), None, threads, 1, devices)


def _exit_with_input() -> None:
    sys.stdin.read()
    os._exit(0)  # the server itself never returns


def talk(lines: Iterator[str]) -> None:
    """Answer requests until there are no more."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what llama.cpp prints must not come between answers
    driver = Driver()
    for line in lines:
        print(json.dumps(driver.answer(line)), file=answers, flush=True)


if __name__ == "__main__":
    if sys.argv[1] == "serve":
        serve(sys.argv[2], int(sys.argv[3]))
    else:
        talk(iter(sys.stdin))
