#!/usr/bin/env python3
"""Print how near each operation of a decode and of a prefill step comes to this machine's limits.

    python tools/roofline.py [--model demo|FILE] [--threads N] [--prompt N] [--keys N] [--sequences N]
                             [--cache-type f16|q8_0|…] [--json] [--write]
    python tools/roofline.py --tiny-ops
    python tools/roofline.py --memory [--model demo|FILE]

Limits and operations are measured in the same run, and of each the best try counts. An operation's least time is that
of its bytes at the speed of memory or that of its multiply-adds at the peak, whichever is longer; its share of the
limit is that time divided by its own. Operations whose bytes are in a cache can pass 100 %.

Belongs here: options, and the tables. Must not be here: limits (`roofline_limits`), timing (`roofline_ops`,
`roofline_tiny`), memory (`roofline_memory`).
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from measure_models import machine
from roofline_limits import Limits, measure_limits
from roofline_memory import measure_memory
from roofline_ops import PlanTimes, grouped, recording
from roofline_tiny import TinyOps, measure_tiny_ops
from rpc_backend.errors import RpcBackendError
from rpc_backend.host import LLM
from rpc_backend.host.bench import measure
from rpc_backend_numba.targets import CHOICES, Target, choose_target
from tables import PAGE, section, write_part

PART = "roofline"
_SHORT_PROMPT = 32
_DECODE_STEPS = 16
_PREFILLS = 6
_SMALLEST_SHARE = 0.002


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, print, and write where asked to."""
    options = _parser().parse_args(arguments)
    try:
        target = choose_target(options.cpu_features)
        found = _memory(options) if options.memory else _tiny(target) if options.tiny_ops else _model(options, target)
    except RpcBackendError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    text, data = found
    print(json.dumps(data) if options.json else "\n".join(text))
    if options.write:
        write_part(PAGE, f"{PART} {_part(options)}", text)
    return 0


def _part(options: argparse.Namespace) -> str:
    stem = Path(options.model).stem
    return "tiny" if options.tiny_ops else f"memory {stem}" if options.memory else stem


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="demo", help="a file, or demo (the default)")
    parser.add_argument("--threads", type=int, default=1, help="compute threads (default 1)")
    parser.add_argument("--prompt", type=int, default=512, help="prompt tokens, computed at once (default 512)")
    parser.add_argument("--keys", type=int, default=_SHORT_PROMPT, help="tokens before a decode step (default 32)")
    parser.add_argument("--sequences", type=int, default=1, help="sequences of a decode step (default 1)")
    parser.add_argument("--cache-type", default="F16", help="element type of the KV cache (default F16)")
    parser.add_argument("--cpu-features", choices=CHOICES, default="auto", help="as the numba backend's option")
    parser.add_argument("--tiny-ops", action="store_true", help="the cost of 1,000 tiny operations instead")
    parser.add_argument("--memory", action="store_true", help="what a worker's process holds instead")
    parser.add_argument("--json", action="store_true", help="print everything as JSON")
    parser.add_argument("--write", action="store_true", help=f"write the tables into {PAGE.name}")
    return parser


def _model(options: argparse.Namespace, target: Target) -> tuple[list[str], Any]:
    before = measure_limits(target, options.threads)
    decode, prefill = _run(options)
    limits = before.best(measure_limits(target, options.threads))
    text = list(_model_lines(Path(options.model).stem, limits, decode, prefill))
    steps = {"decode": _step_data(decode, limits), "prefill": _step_data(prefill, limits)}
    return text, {"limits": limits.as_dict(), **steps}


def _run(options: argparse.Namespace) -> tuple[PlanTimes, PlanTimes]:
    """Return the times of a decode step after `options.keys` tokens, and those of a prefill."""
    n_prompt, n_keys, n_seq = options.prompt, options.keys, options.sequences
    device, n_ctx = f"numba:cpu_features={options.cpu_features}", max(n_prompt, n_keys) + _DECODE_STEPS + 2
    where = {"workers": "none", "device": device, "threads": options.threads, "kv_type": options.cache_type}
    with LLM(options.model, n_ctx=n_ctx, n_seq=n_seq, ubatch=n_prompt, **where) as llm:
        measure(llm, n_prompt, 1, 1)
        with recording() as prefills:
            for _ in range(_PREFILLS):
                measure(llm, n_prompt, 1, 1)
        measure(llm, n_keys, 1, n_seq)
        with recording() as decodes:
            measure(llm, n_keys, _DECODE_STEPS, n_seq)
        return decodes.plan_of(n_seq), prefills.plan_of(n_prompt)


def _model_lines(name: str, limits: Limits, decode: PlanTimes, prefill: PlanTimes) -> Iterator[str]:
    yield from section(f"Limits of the machine, threads: {limits.threads}", _limit_rows(limits))
    yield f"Measured by `python tools/roofline.py` on {machine()}."
    yield ""
    for title, times in ((_decode_title(decode), decode), (f"A prefill of {prefill.n_columns} tokens", prefill)):
        yield from section(f"{title} of {name} by operation, threads: {limits.threads}", _rows(times, limits))
        yield from _summary(times, limits, is_decode=times is decode)
        yield ""


def _decode_title(decode: PlanTimes) -> str:
    return "A decode step" if decode.n_columns == 1 else f"A decode step of {decode.n_columns} sequences"


def _limit_rows(limits: Limits) -> Iterator[list[str]]:
    yield ["memory read, GB/s", "byte products, GMAC/s", "float32 products, GMAC/s"]
    yield [f"{limits.read_gbps:.1f}", f"{limits.byte_gmacs:.0f}", f"{limits.float_gmacs:.0f}"]


def _rows(times: PlanTimes, limits: Limits) -> Iterator[list[str]]:
    yield ["operation", "kernel", "shape", "calls", "ms", "of the step", "GB/s", "GMAC/s", "of the limit"]
    for row in _step_data(times, limits)["groups"]:
        if row["share_of_step"] < _SMALLEST_SHARE:
            continue
        yield [
            row["op"],
            row["kernel"],
            row["shape"],
            str(row["calls"]),
            f"{row['seconds'] * 1e3:.3f}",
            f"{row['share_of_step']:.1%}",
            f"{row['gbps']:.1f}",
            f"{row['gmacs']:.1f}",
            f"{row['share_of_limit']:.0%}",
        ]


def _summary(times: PlanTimes, limits: Limits, *, is_decode: bool) -> Iterator[str]:
    data = _step_data(times, limits)
    yield f"Operations below {_SMALLEST_SHARE:.1%} of the step are left out. All in one go it takes"
    yield f"{data['whole_s'] * 1e3:.2f} ms, one by one {data['rows_s'] * 1e3:.2f} ms."
    if is_decode:
        yield f"The step reads {times.weights_nbytes / 2**20:.0f} MiB of matrices: {data['weights_gbps']:.1f} GB/s,"
        yield f"{data['weights_share']:.0%} of the limit."
    else:
        yield f"Its matrix products run at {data['product_gmacs']:.0f} GMAC/s, {data['product_share']:.0%} of the peak."
        yield "Attention is counted as if every token saw all keys."


def _step_data(times: PlanTimes, limits: Limits) -> dict[str, Any]:
    groups = grouped(times)
    rows_s = sum(group.seconds for group in groups.values())
    rows: list[dict[str, Any]] = []
    for (op, kernel, shape), group in groups.items():
        least_s = limits.seconds(group.nbytes, group.macs, is_float=group.is_float)
        seconds = max(group.seconds, 1e-12)
        row = {"op": op, "kernel": kernel, "shape": shape, **asdict(group), "share_of_step": group.seconds / rows_s}
        speed = {"gbps": group.nbytes / seconds / 1e9, "gmacs": group.macs / seconds / 1e9}
        rows.append(row | speed | {"share_of_limit": least_s / seconds})
    products = [row for row in rows if row["op"] == "MUL_MAT" and row["macs"]]
    product_gmacs = sum(row["macs"] for row in products) / sum(row["seconds"] for row in products) / 1e9
    peak_s = sum(limits.seconds(0, row["macs"], is_float=row["is_float"]) for row in products)
    weights_gbps = times.weights_nbytes / times.whole_s / 1e9
    return {
        "groups": rows,
        "rows_s": rows_s,
        "whole_s": times.whole_s,
        "weights_gbps": weights_gbps,
        "weights_share": weights_gbps / limits.read_gbps,
        "product_gmacs": product_gmacs,
        "product_share": peak_s / sum(row["seconds"] for row in products),
    }


def _tiny(target: Target) -> tuple[list[str], Any]:
    found = [measure_tiny_ops(target, threads) for threads in (1, 2)]
    return list(section("1,000 tiny operations, one after the other", _tiny_rows(found))), [
        asdict(each) for each in found
    ]


def _tiny_rows(found: Sequence[TinyOps]) -> Iterator[list[str]]:
    yield ["threads", "per operation, µs", "kernel alone, µs", "overhead, µs"]
    for each in found:
        yield [str(each.threads), f"{each.op_us:.3f}", f"{each.kernel_us:.3f}", f"{each.overhead_us:.3f}"]


def _memory(options: argparse.Namespace) -> tuple[list[str], Any]:
    held = measure_memory(options.model, options.threads)
    mib = {name: f"{value / 2**20:.0f}" for name, value in asdict(held).items()}
    title = f"A worker's memory with {Path(options.model).stem}, threads: {options.threads}"
    heading = ["weights, KV, scratch, MiB", "resident, MiB", "of that pages of files", "ratio", "ratio without these"]
    row = [mib["buffers"], mib["resident"], mib["files"], f"{held.ratio:.2f}", f"{held.own_ratio:.2f}"]
    text = [*section(title, [heading, row])]
    text.append(f"Before the load the process holds {mib['empty']} MiB, {mib['empty_files']} of them pages of files.")
    return text, asdict(held) | {"ratio": held.ratio}


if __name__ == "__main__":
    sys.exit(main())
