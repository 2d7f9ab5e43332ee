"""`zmq-rpc run`: answer one prompt.

Belongs here: the command, its options and its output. Must not be here: generation.
"""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING, Any

import click

from rpc_backend.cli.console import debug_option
from rpc_backend.cli.options import json_option, model_options, where_options

if TYPE_CHECKING:
    from rpc_backend.host import WorkersRequest
    from rpc_backend.host.generation import Generation
    from rpc_backend.host.llm import LLM, ModelRequest
    from rpc_backend.host.sampling import SamplerParams

_SAMPLING = (
    click.option("--temperature", type=float, default=0.8, show_default=True, help="0 always takes the best token."),
    click.option("--top-k", type=int, default=40, show_default=True, help="Keep the K best tokens; 0 keeps all."),
    click.option("--top-p", type=float, default=0.95, show_default=True, help="Keep this share of the probability."),
    click.option(
        "--min-p", type=float, default=0.05, show_default=True, help="Keep tokens this likely against the best."
    ),
    click.option(
        "--repetition-penalty", type=float, default=1.0, show_default=True, help="Weaken recent tokens; 1 is off."
    ),
    click.option("--seed", type=int, default=None, show_default="a new one", help="Seed of the draws."),
)


def _sampling_options(command: Any) -> Any:
    for option in reversed(_SAMPLING):
        command = option(command)
    return command


@click.command()
@model_options
@where_options
@click.option("--prompt", "-p", default=None, help="The prompt; without it, standard input up to its end.")
@click.option("--chat/--no-chat", default=False, help="Wrap the prompt in the model's chat template, or leave it raw.")
@click.option("--system", default=None, metavar="TEXT", help="System message; only with --chat.")
@click.option(
    "--max-tokens", type=click.IntRange(0), default=128, show_default=True, help="Generate at most this many."
)
@click.option("--stop", multiple=True, metavar="TEXT", help="End before this text; repeatable.")
@_sampling_options
@json_option
@debug_option
def run(
    *,
    request: ModelRequest,
    where: WorkersRequest,
    prompt: str | None,
    chat: bool,
    system: str | None,
    max_tokens: int,
    stop: tuple[str, ...],
    as_json: bool,
    **sampling: Any,
) -> None:
    """Load a model over workers and answer one prompt.

    The text streams to standard output as it comes; progress and timings go to standard error. Without --chat the
    prompt is continued as it stands; newlines at the end of standard input are dropped.
    """
    if system is not None and not chat:
        raise click.UsageError("--system needs --chat: a raw prompt has no messages")
    text = _read_stdin() if prompt is None else prompt
    from rpc_backend.host.sampling import SamplerParams  # heavy: not for --help

    params = SamplerParams(**sampling)
    with load(request, where) as llm:
        tokens = _chat_tokens(llm, text, system) if chat else llm.tokenize(text)
        generation = _generate(llm, tokens, max_tokens, params, stop, echo=not as_json)
        if as_json:
            click.echo(json.dumps(_as_json(llm, generation), ensure_ascii=False))
        else:
            click.echo(_timings_line(llm, generation), err=True)


def _read_stdin() -> str:
    if sys.stdin.isatty():
        raise click.UsageError("no prompt; give --prompt TEXT or pipe it to standard input")
    try:
        return sys.stdin.buffer.read().decode().rstrip("\r\n")
    except UnicodeDecodeError as error:
        raise click.UsageError(f"standard input is not UTF-8 at byte {error.start}") from error


def load(request: ModelRequest, where: WorkersRequest) -> LLM:
    from rpc_backend.cli.load_bar import LoadBar
    from rpc_backend.host.llm import LLM

    with LoadBar() as bar:
        return LLM(
            request.model,
            workers=where.workers,
            device=where.backend,
            split=request.split,
            n_ctx=request.n_ctx,
            n_seq=request.n_seq,
            ubatch=request.ubatch,
            kv_type=request.kv_type,
            cache_type_k=request.cache_type_k,
            cache_type_v=request.cache_type_v,
            flash_attn=request.flash_attn,
            pipeline_groups=request.pipeline_groups,
            backend_sampling=request.backend_sampling,
            run_ahead=request.run_ahead,
            threads=where.threads,
            wait_s=where.wait_s,
            transport=where.transport,
            on_progress=bar,
        )


def _chat_tokens(llm: LLM, prompt: str, system: str | None) -> list[int]:
    if llm.chat_template is None:
        raise click.UsageError("this model has no chat template; leave out --chat")
    messages = [{"role": "user", "content": prompt}]
    if system is not None:
        messages.insert(0, {"role": "system", "content": system})
    text = llm.chat_template.render(messages)
    begin = llm.tokenizer.bos_id
    has_begin = begin is not None and text.startswith(llm.tokenizer.token_text(begin))
    return llm.tokenizer.encode(text, add_special=not has_begin, parse_special=True)


def _generate(
    llm: LLM, tokens: list[int], max_tokens: int, params: SamplerParams, stop: tuple[str, ...], *, echo: bool
) -> Generation:
    stream = llm.stream(tokens, max_tokens=max_tokens, params=params, stop=stop)
    for piece in stream:
        if echo:
            click.echo(piece.text, nl=False)
    if echo:
        click.echo()
    return stream.result


def _as_json(llm: LLM, generation: Generation) -> dict[str, Any]:
    timings = generation.timings
    return {
        "text": generation.text,
        "tokens": generation.tokens,
        "timings": {
            "load_s": llm.load_s,
            "prompt_tokens": timings.prompt_tokens,
            "prompt_tps": timings.prompt_tps,
            "decode_tokens": timings.decode_tokens,
            "decode_tps": timings.decode_tps,
        },
        "wire": llm.wire(),
    }


def _timings_line(llm: LLM, generation: Generation) -> str:
    timings = generation.timings
    return (
        f"loaded in {llm.load_s:.1f} s; prompt {timings.prompt_tokens} tokens, {timings.prompt_tps:.1f} t/s; "
        f"decode {timings.decode_tokens} tokens, {timings.decode_tps:.1f} t/s"
    )
