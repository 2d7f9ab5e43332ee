"""Options that several commands share.

Belongs here: groups of click options, and the records they become. Must not be here: what a command does
with them.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import click

Decorator = Callable[[Callable[..., Any]], Callable[..., Any]]

json_option = click.option("--json", "as_json", is_flag=True, help="Print one JSON object instead of text.")

_WHERE = (
    click.option(
        "--workers",
        default="local:2",
        show_default=True,
        metavar="WORKERS",
        help="Endpoints, comma-separated (tcp://host:port); local:N starts N workers on this machine; "
        "none computes in this process.",
    ),
    click.option(
        "--device",
        "backend",
        default="numba",
        show_default=True,
        metavar="NAME[:KEY=VALUE,…]",
        help="Compute backend of local workers and of --workers none.",
    ),
    click.option(
        "--threads",
        type=click.IntRange(0),
        default=0,
        help="Compute threads of each local worker; 0 is the backend's choice.",
    ),
    click.option(
        "--transport",
        default=None,
        metavar="NAME[:KEY=VALUE,…]",
        help="How large payloads travel where both sides can: tcp, rdma, rdma:provider=soft.  [ZMQ_RPC_TRANSPORT]",
    ),
    click.option(
        "--wait",
        "wait_s",
        type=click.FloatRange(0),
        default=0.0,
        metavar="SECONDS",
        help="How long to wait for workers that are not up yet.",
    ),
)

_CACHE_TYPES = click.Choice(["f16", "f32", "bf16", "q8_0"], case_sensitive=False)

_MODEL = (
    click.option(
        "--model", default="demo", show_default=True, metavar="PATH|demo", help="A GGUF file, or the demo model."
    ),
    click.option(
        "--split",
        default="auto",
        show_default=True,
        metavar="SPLIT",
        help="Layers per device: auto (by free memory), a ratio such as 3,1, or exact counts such as layers:20,10.",
    ),
    click.option(
        "--ctx",
        "n_ctx",
        type=click.IntRange(1),
        default=None,
        metavar="TOKENS",
        show_default="the model's, at most 2048",
        help="Context length.",
    ),
    click.option(
        "--ubatch",
        type=click.IntRange(1),
        default=512,
        show_default=True,
        metavar="TOKENS",
        help="Prompt tokens per compute step.",
    ),
    click.option(
        "--kv-type",
        type=_CACHE_TYPES,
        default="f16",
        show_default=True,
        help="Element type of the KV cache, keys and values.",
    ),
    click.option(
        "--cache-type-k", "-ctk", type=_CACHE_TYPES, default=None, show_default="--kv-type", help="That of keys alone."
    ),
    click.option(
        "--cache-type-v",
        "-ctv",
        type=_CACHE_TYPES,
        default=None,
        show_default="--kv-type",
        help="That of values alone; q8_0 needs flash attention.",
    ),
    click.option(
        "--flash-attn/--no-flash-attn",
        default=True,
        show_default=True,
        help="Whether attention is one fused operation.",
    ),
    click.option(
        "--backend-sampling/--no-backend-sampling",
        default=True,
        show_default=True,
        help="Draw tokens on the device that has the logits, where the sampler allows it: only token ids come back.",
    ),
    click.option(
        "--run-ahead/--no-run-ahead",
        default=True,
        show_default=True,
        help="Start a decode step before the host knows its tokens: the last worker passes them on to the first.",
    ),
)


def where_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options that choose devices; the command gets them as `where: WorkersRequest`."""

    @functools.wraps(command)
    def with_request(
        *, workers: str, backend: str, threads: int, transport: str | None, wait_s: float, **others: Any
    ) -> Any:
        from rpc_backend.host import WorkersRequest  # heavy: not for --help

        return command(where=WorkersRequest(workers, backend, threads, wait_s, transport), **others)

    return _add(_WHERE, with_request)


def model_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options that choose a model and its context; the command gets them as `request: ModelRequest`."""

    @functools.wraps(command)
    def with_request(
        *,
        model: str,
        split: str,
        n_ctx: int | None,
        ubatch: int,
        kv_type: str,
        cache_type_k: str | None,
        cache_type_v: str | None,
        flash_attn: bool,
        backend_sampling: bool,
        run_ahead: bool,
        **others: Any,
    ) -> Any:
        from rpc_backend.host import ModelRequest  # heavy: not for --help

        request = ModelRequest(
            model,
            split,
            n_ctx,
            ubatch=ubatch,
            kv_type=kv_type.upper(),
            flash_attn=flash_attn,
            backend_sampling=backend_sampling,
            cache_type_k=cache_type_k and cache_type_k.upper(),
            cache_type_v=cache_type_v and cache_type_v.upper(),
            run_ahead=run_ahead,
        )
        return command(request=request, **others)

    return _add(_MODEL, with_request)


def _add(options: tuple[Decorator, ...], command: Callable[..., Any]) -> Callable[..., Any]:
    for option in reversed(options):
        command = option(command)
    return command
