"""`LLM`: a model on devices, from one call.

Belongs here: the facade that joins models, scheduler, client and tokenizer. Must not be here: the work
of any of them.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from rpc_backend.errors import ConfigError, DeviceError
from rpc_backend.graph import ElementType, element_type
from rpc_backend.hookspecs import DeviceOptions
from rpc_backend.host.chat import ChatTemplate
from rpc_backend.host.context import Context, ContextLimits
from rpc_backend.host.devices import DeviceSet, WorkersRequest, open_devices
from rpc_backend.host.engine import Engine
from rpc_backend.host.generation import Generation, Job, StreamPiece
from rpc_backend.host.model_plan import HOST, ModelPlan, make_plan
from rpc_backend.host.model_source import find_model
from rpc_backend.host.placement import LoadProgress, OnProgress, Upload, map_leaf, place_leaves
from rpc_backend.host.sampling import FloatArray, SamplerParams
from rpc_backend.host.tokenizer import Tokenizer
from rpc_backend.interfaces import BufferUsage
from rpc_backend.models import KV_TYPES, GgufFile, Model, load_model
from rpc_backend.registry import load_registry
from rpc_backend.scheduler import LayerSplit, Scheduler, parse_split
from rpc_backend.settings import Settings, from_environment

HOST_BACKEND = "reference"
"""The backend of this process's own device, which looks up token embeddings in the mapped model file."""

DEFAULT_N_CTX = 2048


@dataclass(frozen=True, slots=True)
class ModelRequest:
    """What to load and how: the arguments of `LLM` that concern the model.

    `split` is the text form of `scheduler.parse_split`; `n_ctx` None is the model's own length, at most 2048.
    `cache_type_k` and `cache_type_v` are the element types of cached keys and values, `kv_type` where left out. With
    `run_ahead` a decode step starts before the host has seen the tokens that it takes, where the workers can pass them
    on themselves.
    """

    model: str | Path = "demo"
    split: str = "auto"
    n_ctx: int | None = None
    n_seq: int = 1
    ubatch: int = 512
    kv_type: str = "F16"
    flash_attn: bool = True
    pipeline_groups: int = 1
    backend_sampling: bool = True
    cache_type_k: str | None = None
    cache_type_v: str | None = None
    run_ahead: bool = True

    def __post_init__(self) -> None:
        for name in ("n_ctx", "n_seq", "ubatch", "pipeline_groups"):
            value = getattr(self, name)
            if value is not None and not 1 <= value <= 2**31:
                raise ConfigError(f"{name} {value} is not at least 1")
        if self.pipeline_groups > self.n_seq:
            raise ConfigError(f"pipeline_groups {self.pipeline_groups} is more than the {self.n_seq} sequences (n_seq)")
        known = [kind.name for kind in KV_TYPES]
        for name in ("kv_type", "cache_type_k", "cache_type_v"):
            value = getattr(self, name)
            if value is not None and value.upper() not in known:
                raise ConfigError(f"{name} {value!r} is not known; known: {', '.join(known)}")
        value_type = self.cache_types[1]
        if value_type.is_quantized and not self.flash_attn:
            raise ConfigError(f"cached values of type {value_type.name} need flash attention; leave it on, or use F16")

    @property
    def cache_types(self) -> tuple[ElementType, ElementType]:
        """Element types of cached keys and values."""
        return element_type(self.cache_type_k or self.kv_type), element_type(self.cache_type_v or self.kv_type)

    def limits(self, model: Model) -> ContextLimits:
        """Return the context sizes for a model.

        Raises:
            ConfigError: `n_ctx` is above what the model was trained for.
        """
        trained = model.hparams.n_ctx_train
        n_ctx = min(DEFAULT_N_CTX, trained) if self.n_ctx is None else self.n_ctx
        if n_ctx > trained:
            raise ConfigError(f"a context of {n_ctx} is above the {trained} tokens this model was trained for")
        run_ahead = self.run_ahead and self.backend_sampling
        return ContextLimits(
            n_ctx, self.n_seq, min(self.ubatch, n_ctx), self.flash_attn, self.backend_sampling, run_ahead
        )


class LLM:
    """A model loaded over devices. One caller at a time; use it as a context manager or call `close`.

    Raises:
        ConfigError: an argument cannot be.
        ModelError: the file or its metadata cannot be used.
        ConnectError: a worker is not there.
        SplitError, OutOfMemoryError: the model cannot be placed as asked; nothing was uploaded.
    """

    def __init__(
        self,
        model: str | Path = "demo",
        *,
        workers: str | Sequence[str] = "local:2",
        device: str = "numba",
        split: str = "auto",
        n_ctx: int | None = None,
        n_seq: int = 1,
        ubatch: int = 512,
        kv_type: str = "F16",
        flash_attn: bool = True,
        pipeline_groups: int = 1,
        backend_sampling: bool = True,
        cache_type_k: str | None = None,
        cache_type_v: str | None = None,
        run_ahead: bool = True,
        threads: int = 0,
        wait_s: float = 0.0,
        transport: str | None = None,
        settings: Settings | None = None,
        on_progress: OnProgress | None = None,
    ) -> None:
        started = time.perf_counter()
        request = ModelRequest(
            model, split, n_ctx, n_seq, ubatch, kv_type, flash_attn, pipeline_groups, backend_sampling,
            cache_type_k, cache_type_v, run_ahead,
        )  # fmt: skip
        where = WorkersRequest(workers, device, threads, wait_s, transport)
        with ExitStack() as stack:
            opened = _open(request, where, settings or from_environment(), on_progress or _silent, stack)
            self.tokenizer, self.context, self.upload_nbytes = _load(opened, on_progress or _silent, stack)
            self._stack = stack.pop_all()
        self.devices, self._plan, self._metadata = opened.devices, opened.plan, opened.gguf.metadata
        self._n_vocab = self._plan.model.hparams.n_vocab
        self._request = request
        self._engine = self.engine()
        self._closed = False
        self.load_s = time.perf_counter() - started

    @property
    def layer_split(self) -> LayerSplit:
        """Which layers lie on which device, and the memory each takes."""
        return self._plan.split

    @property
    def n_ctx(self) -> int:
        return self._plan.limits.n_ctx

    @cached_property
    def chat_template(self) -> ChatTemplate | None:
        """The model's chat template, or None. Raises ModelError if it has a broken one."""
        return ChatTemplate.from_metadata(self._metadata, self.tokenizer)

    @property
    def n_seq(self) -> int:
        return self._plan.limits.n_seq

    @property
    def n_vocab(self) -> int:
        return self._n_vocab

    def engine(self, *, prefill_first: bool = False) -> Engine:
        """Return a new engine over this model's sequences, for a server's loop; use one at a time."""
        return Engine(
            self.context,
            self._request.pipeline_groups,
            device_sampling=self._request.backend_sampling,
            prefill_first=prefill_first,
        )

    def wire(self) -> dict[str, Any]:
        """Return messages, bytes and commands so far, by worker."""
        return self.devices.wire()

    def tokenize(self, text: str, *, add_special: bool = True) -> list[int]:
        return self.tokenizer.encode(text, add_special=add_special)

    def detokenize(self, tokens: Sequence[int]) -> str:
        return self.tokenizer.decode(tokens)

    def logits(self, tokens: Sequence[int]) -> FloatArray:
        """Evaluate tokens from an empty context.

        Shapes: result float32 [n_tokens, n_vocab], row i predicts token i + 1.
        Raises:
            ContextFullError: more tokens than the context holds.
        """
        self._need_open()
        if not tokens:
            raise ConfigError("no tokens to evaluate")
        bad = next((token for token in tokens if not 0 <= token < self._n_vocab), None)
        if bad is not None:
            raise ConfigError(f"token {bad} is not in the vocabulary of {self._n_vocab}")
        self.context.clear(0)
        return self.context.logits(0, tokens)

    def generate(
        self,
        prompt: str | Sequence[int],
        *,
        max_tokens: int = 128,
        params: SamplerParams | None = None,
        stop: Sequence[str] = (),
        log_probs: bool = False,
    ) -> Generation:
        """Generate from one prompt. Raises ContextFullError if the prompt does not fit."""
        return self.generate_batch([prompt], max_tokens=max_tokens, params=params, stop=stop, log_probs=log_probs)[0]

    def generate_batch(
        self,
        prompts: Sequence[str | Sequence[int]],
        *,
        max_tokens: int = 128,
        params: SamplerParams | None = None,
        stop: Sequence[str] = (),
        log_probs: bool = False,
    ) -> list[Generation]:
        """Generate from up to `n_seq` prompts, all in each decode step. Raises as `generate`."""
        self._need_open()
        if len(prompts) > self.n_seq:
            raise ConfigError(f"{len(prompts)} prompts need as many sequences; this model was loaded with {self.n_seq}")
        options: dict[str, Any] = {"max_tokens": max_tokens, "params": params, "stop": stop, "log_probs": log_probs}
        jobs = [self.job(prompt, **options) for prompt in prompts]
        for job in jobs:
            self._engine.add(job)
        self._engine.run()
        return [job.result() for job in jobs]

    def stream(
        self,
        prompt: str | Sequence[int],
        *,
        max_tokens: int = 128,
        params: SamplerParams | None = None,
        stop: Sequence[str] = (),
        log_probs: bool = False,
    ) -> GenerationStream:
        """Generate from one prompt, piece by piece; raises as `generate`, while it is read."""
        self._need_open()
        job = self.job(prompt, max_tokens=max_tokens, params=params, stop=stop, log_probs=log_probs)
        return GenerationStream(self._engine, job)

    def job(
        self,
        prompt: str | Sequence[int],
        *,
        max_tokens: int = 128,
        params: SamplerParams | None = None,
        stop: Sequence[str] = (),
        ignore_end: bool = False,
        log_probs: bool = False,
    ) -> Job:
        """Return a generation that an engine can be given. Raises ConfigError for what cannot be."""
        tokens = self.tokenize(prompt) if isinstance(prompt, str) else prompt
        return Job.of(
            self.tokenizer,
            tokens,
            max_tokens,
            params or SamplerParams(),
            stop,
            ignore_end=ignore_end,
            log_probs=log_probs,
        )

    def close(self) -> None:
        """Free everything and end the workers this object started. A second call does nothing."""
        self._closed = True
        self._stack.close()

    def __enter__(self) -> LLM:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def _need_open(self) -> None:
        if self._closed:
            raise DeviceError("the model is closed")


class GenerationStream:
    """The pieces of a generation as they come; `result` is the whole of what came so far.

    Leaving the loop early cancels the generation.
    """

    def __init__(self, engine: Engine, job: Job) -> None:
        self._engine = engine
        self._job = job

    def __iter__(self) -> Iterator[StreamPiece]:
        self._engine.add(self._job)
        try:
            while self._job.stop_reason is None:
                for job, piece in self._engine.advance():
                    if job is self._job:
                        yield piece
        finally:
            self._engine.cancel(self._job)

    @property
    def result(self) -> Generation:
        return self._job.result()


def plan_model(request: ModelRequest, where: WorkersRequest, settings: Settings | None = None) -> LayerSplit:
    """Say how a model would be split over the devices, without uploading anything. Raises as `LLM`."""
    with ExitStack() as stack:
        return _open(request, where, settings or from_environment(), _silent, stack).plan.split


@dataclass(frozen=True, slots=True)
class _Opened:
    """A planned model: its file, the open devices, and the scheduler over them and the host's own."""

    gguf: GgufFile
    devices: DeviceSet
    scheduler: Scheduler
    plan: ModelPlan


def _open(
    request: ModelRequest, where: WorkersRequest, settings: Settings, on_progress: OnProgress, stack: ExitStack
) -> _Opened:
    """Open model and devices and plan; `stack` closes what was opened."""
    registry = load_registry()
    split = parse_split(request.split)
    path = find_model(request.model)
    on_progress(LoadProgress("start"))
    with ThreadPoolExecutor(max_workers=1) as pool:
        opening = pool.submit(open_devices, where, settings, registry)
        try:
            gguf = GgufFile.open(path)
            model = load_model(gguf)
            limits = request.limits(model)
        finally:
            if opening.exception() is None:
                stack.callback(opening.result().close)
    devices = opening.result()
    host = registry.create_devices(HOST_BACKEND, DeviceOptions(threads=1))[0]
    stack.callback(host.close)
    scheduler = Scheduler([host, *devices.devices], synchronous=settings.no_async_copy)
    stack.callback(scheduler.close)
    on_progress(LoadProgress("plan"))
    plan = make_plan(model, limits, request.cache_types, split, scheduler)
    return _Opened(gguf, devices, scheduler, plan)


def _load(opened: _Opened, on_progress: OnProgress, stack: ExitStack) -> tuple[Tokenizer, Context, int]:
    """Allocate, upload and warm up; return tokenizer, context and the bytes uploaded."""
    plan, scheduler = opened.plan, opened.scheduler
    Tokenizer.check(opened.gguf.metadata)
    for leaf, data in plan.weights_on(HOST):
        map_leaf(scheduler.devices[HOST], leaf, data)
    weights = {device: plan.weights_on(index) for index, device in enumerate(scheduler.devices) if index != HOST}
    for index, device in enumerate(scheduler.devices):
        if index != HOST:
            leaves = [leaf for leaf, _ in weights[device]]
            buffers = place_leaves(device, leaves, BufferUsage.WEIGHTS)
            caches = place_leaves(device, plan.caches_on(index), BufferUsage.ANY)
            for buffer in (*buffers, *caches):
                stack.callback(buffer.close)
            for buffer in caches:
                buffer.fill(0, buffer.nbytes, 0)
    with Upload(weights, on_progress) as upload:
        # What needs no weights is made while they travel, unless it can wait: it takes turns with what sends them.
        scheduler.reserve(plan.compute_nbytes)
        context = Context(plan.model, scheduler, plan.weights, plan.cache, plan.placement, plan.limits)
        context.prepare()
        sent = upload.wait()
    opened.devices.tell_load()
    on_progress(LoadProgress("compile"))
    warming = context.warm_up()
    tokenizer = Tokenizer.from_metadata(opened.gguf.metadata)
    warming.wait()
    on_progress(LoadProgress("ready"))
    return tokenizer, context, sent


def _silent(progress: LoadProgress) -> None:
    """Where nobody asked for progress."""
