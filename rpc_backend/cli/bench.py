"""`zmq-rpc bench`: how fast a model runs over workers, and what crosses the wire.

Belongs here: the command, its options and its output. Must not be here: the workload (`host.bench`).
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import click

from rpc_backend.cli.console import debug_option
from rpc_backend.cli.options import json_option, model_options, where_options
from rpc_backend.cli.run import load
from rpc_backend.cli.values import Counts
from rpc_backend.text import render_table

if TYPE_CHECKING:
    from rpc_backend.host import WorkersRequest
    from rpc_backend.host.bench import Bench
    from rpc_backend.host.llm import LLM, ModelRequest

_HEADINGS = ["PP", "TG", "B", "N_KV", "T_PP s", "S_PP t/s", "T_TG s", "S_TG t/s", "T s", "S t/s"]


@click.command()
@model_options
@where_options
@click.option("--npp", type=Counts(), default="512", show_default=True, help="Prompt tokens per sequence; a list.")
@click.option("--ntg", type=Counts(), default="128", show_default=True, help="Decode steps; a list.")
@click.option("--npl", type=Counts(), default="1", show_default=True, help="Sequences side by side; a list.")
@click.option(
    "--pipeline-groups",
    type=click.IntRange(1),
    default=1,
    show_default=True,
    help="Parts that the sequences are decoded in, so that stages work at the same time.",
)
@json_option
@debug_option
def bench(
    *,
    request: ModelRequest,
    where: WorkersRequest,
    npp: tuple[int, ...],
    ntg: tuple[int, ...],
    npl: tuple[int, ...],
    pipeline_groups: int,
    as_json: bool,
) -> None:
    """Measure prefill and decode over workers.

    Random prompts, greedy tokens, no end token. Each workload runs once unmeasured. Counts per step are of the decode
    steps only; a step is one token of every sequence.
    """
    from dataclasses import replace

    from rpc_backend.host.bench import run_bench

    n_ctx = request.n_ctx or max(npp) + max(ntg) + 1
    sized = replace(request, n_ctx=n_ctx, n_seq=max(npl), pipeline_groups=pipeline_groups)
    with load(sized, where) as llm:
        results = list(run_bench(llm, npp, ntg, npl))
        if as_json:
            click.echo(json.dumps(_as_json(llm, results)))
            return
        click.echo(render_table([_HEADINGS, *(_row(result) for result in results)]))
        for result in results:
            click.echo(_traffic(result))


def _as_json(llm: LLM, results: list[Bench]) -> dict[str, Any]:
    rows = [result.as_dict() for result in results]
    return {"rows": rows, "load_s": llm.load_s, "upload_bytes": llm.upload_nbytes, "per_step": rows[-1]["per_step"]}


def _row(result: Bench) -> list[str]:
    row = result.row
    counts = [row.npp, row.ntg, row.npl, row.npl * (row.npp + row.ntg)]
    figures = [row.t_pp, row.s_pp, row.t_tg, row.s_tg, row.t, row.s]
    return [*(str(count) for count in counts), *(f"{figure:.2f}" for figure in figures)]


def _traffic(result: Bench) -> str:
    row, step = result.row, result.per_step
    commands = ", ".join(f"{name} {count:.2f}" for name, count in sorted(step.commands.items()))
    return (
        f"per decode step of PP {row.npp}, TG {row.ntg}, B {row.npl}: {sum(step.messages.values()):.2f} messages "
        f"({commands or 'none'}), {step.bytes_out:.0f} bytes out, {step.bytes_in:.0f} bytes in"
    )
