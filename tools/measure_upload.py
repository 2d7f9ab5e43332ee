#!/usr/bin/env python3
"""Measure uploads: against a plain socket and llama.cpp, with a cache, and between old and new.

    python tools/make_model.py /tmp/1b.gguf --preset 1b --type Q8_0
    python tools/measure_upload.py --model /tmp/1b.gguf [--llama-python PYTHON] [--rounds N] [--only PART] [--write]

Belongs here: arms and their tables. Must not be here: the plain socket (`plain_socket`), llama.cpp (`llamacpp`), or
limits, which tests set.
Arms that are compared take turns within one run; a ratio is the median of the rounds' ratios.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import numpy as np

import llamacpp
import plain_socket
from extra_memory import Watch
from rpc_backend.client import connect
from rpc_backend.graph import Tensor
from rpc_backend.host import LLM, SamplerParams
from rpc_backend.host.local_workers import LocalWorkers
from rpc_backend.host.placement import Bytes, LoadProgress, Upload, place_leaves
from rpc_backend.interfaces import BufferUsage, Device
from rpc_backend.models import GgufFile
from rpc_backend.protocol.commands import STATS
from rpc_backend.protocol.records import Empty
from rpc_backend.settings import Settings
from tables import PAGE, section, write_part

MIB = 1 << 20
LIMIT_S = 600.0
_SETTLE_S = 2.0
N_CTX = 256
PROMPT = [1, 2, 3]
GREEDY = SamplerParams(temperature=0.0)
CLIENTS = {"new": Settings(), "LOAD_OPT=0": Settings(load_opt=False), "minor 1": Settings(proto_minor=1)}
WORKERS: dict[str, tuple[Settings, tuple[str, ...]]] = {
    "new": (Settings(), ()),
    "LOAD_OPT=0": (Settings(load_opt=False), ()),
    "minor 1": (Settings(), ("--proto-minor", "1")),
}


@dataclass(frozen=True, slots=True)
class Options:
    """What is measured and how often."""

    model: Path
    llama_python: str
    rounds: int


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, then print or write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, required=True, help="a GGUF file of about 1 GiB")
    parser.add_argument("--llama-python", default="", metavar="PYTHON", help="one that has llama-cpp-python with RPC")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--only", choices=PARTS, action="append", help="measure these parts; repeatable")
    parser.add_argument("--write", action="store_true", help=f"write it into {PAGE.name}")
    given = parser.parse_args(arguments)
    options = Options(given.model, given.llama_python, given.rounds)
    found = list(lines(options, given.only or list(PARTS)))
    if given.write:
        write_part(PAGE, "uploads", found)
    else:
        print("\n".join(found))
    return 0


def lines(options: Options, parts: Sequence[str]) -> Iterator[str]:
    """Yield the part of the page line by line."""
    yield "# Uploads"
    yield ""
    size = _mib(options.model.stat().st_size)
    yield f"Made by `python tools/measure_upload.py --write`: {options.model.name}, {size}, one"
    yield "worker with one compute thread over tcp:// on loopback, processes new in each round."
    yield ""
    for part in parts:
        yield from PARTS[part](options)


# Against a plain socket


def _socket_lines(options: Options) -> Iterator[str]:
    parts = _tensors(options.model)
    nbytes = sum(part.nbytes for part in parts)
    _touch(parts)
    arms: dict[str, Callable[[], float]] = {
        "plain socket, into new memory": lambda: plain_socket.seconds(parts, into_new_memory=True),
        "plain socket, each piece over the last": lambda: plain_socket.seconds(parts, into_new_memory=False),
        "upload": lambda: _upload(options.model)[0],
    }
    seconds = _in_turn(arms, options.rounds)
    yield from section(
        "Upload against a plain socket",
        [
            ["arm", "GB/s", "the upload against it"],
            *(
                [name, f"{nbytes / statistics.median(found) / 1e9:.2f}", _ratio(found, seconds["upload"])]
                for name, found in seconds.items()
            ),
        ],
    )
    _, client_nbytes, worker_nbytes = _upload(options.model, watched=True)
    yield f"Peak of memory beside mapped files and the weights in their place: client {_mib(client_nbytes)}, worker"
    yield f"{_mib(worker_nbytes)}."
    yield ""


def _upload(model: Path, watched: bool = False) -> tuple[float, int, int]:
    """Upload all tensors to a new worker; return seconds and the extra memory of client and worker, if watched."""
    with LocalWorkers.start(1, threads=1) as workers, connect(workers.endpoints[0]) as connection:
        (device,) = connection.devices()
        tensors = list(GgufFile.open(model).tensors.values())
        leaves = [Tensor(tensor.type, tensor.ne) for tensor in tensors]
        (buffer,) = place_leaves(device, leaves, BufferUsage.WEIGHTS)
        weights: dict[Device, list[tuple[Tensor, Bytes]]] = {
            device: [(leaf, tensor.data) for leaf, tensor in zip(leaves, tensors, strict=True)]
        }
        with ExitStack() as stack:
            watches = [Watch(os.getpid()), Watch(workers.workers[0].pid, buffer.nbytes)] if watched else []
            for watch in watches:
                stack.enter_context(watch)
            started = time.perf_counter()
            with Upload(weights, _silent) as upload:
                upload.wait()
            seconds = time.perf_counter() - started
        client, worker = [watch.extra_nbytes for watch in watches] or [0, 0]
        return seconds, client, worker


def _tensors(model: Path) -> list[memoryview]:
    return [tensor.data.data for tensor in GgufFile.open(model).tensors.values()]


def _touch(parts: Sequence[memoryview]) -> None:
    """Bring a file into the system's cache."""
    for part in parts:
        np.frombuffer(part, np.uint8)[::4096].max()


# Against llama.cpp


def _llama_lines(options: Options) -> Iterator[str]:
    if not options.llama_python:
        yield "Not compared with llama.cpp: no `--llama-python` was given."
        yield ""
        return
    _touch(_tensors(options.model))
    tokens: dict[str, list[int]] = {}
    ours, theirs = "this project", "llama.cpp, ggml-rpc"

    def load_ours() -> float:
        with LocalWorkers.start(1, threads=1) as workers:
            seconds, tokens[ours] = _first_token(options.model, workers)
            return seconds

    def load_theirs() -> float:
        seconds, tokens[theirs] = _first_token_of_llama(options)
        return seconds

    seconds = _in_turn({ours: load_ours, theirs: load_theirs}, options.rounds)
    yield from section(
        "Load to first token, against llama.cpp",
        [
            ["arm", "seconds", "times of this project's", "token"],
            *([name, f"{statistics.median(s):.2f}", _ratio(s, seconds[ours]), str(tokens[name])]
              for name, s in seconds.items()),
        ],
    )  # fmt: skip
    yield "Servers and interpreters run already; timed is from opening the model file to the first token of a prompt of"
    yield f"{len(PROMPT)} tokens. Kernels were compiled before."
    yield ""


def _first_token(model: Path, workers: LocalWorkers) -> tuple[float, list[int]]:
    started = time.perf_counter()
    with LLM(model, workers=[str(workers.endpoints[0])], n_ctx=N_CTX) as llm:
        tokens = llm.generate(PROMPT, max_tokens=1, params=GREEDY).tokens
        return time.perf_counter() - started, tokens


def _first_token_of_llama(options: Options) -> tuple[float, list[int]]:
    python = options.llama_python
    with llamacpp.servers(python, 1, 1) as servers, llamacpp.LlamaProcess(python, "talk") as process:
        started = time.perf_counter()
        process.ask(LIMIT_S, do="load", model=str(options.model), threads=1, servers=servers)
        answer = process.ask(LIMIT_S, do="greedy", tokens=PROMPT, n_decode=1)
        return time.perf_counter() - started, answer["tokens"]


# Without an upload


def _cache_lines(options: Options) -> Iterator[str]:
    with tempfile.TemporaryDirectory() as folder:
        cache, models = Path(folder, "cache"), Path(folder, "models")
        models.mkdir()
        (models / options.model.name).symlink_to(options.model.resolve())
        rows = [
            ["no cache", *_moved(options, ())],
            ["`--cache`, empty", *_moved(options, ("--cache", str(cache)))],
            ["`--cache`, warm", *_moved(options, ("--cache", str(cache)))],
            ["`--models`", *_moved(options, ("--models", str(models)))],
        ]
    yield from section(
        "Loads that need no upload", [["worker", "bytes out", "share of the weights", "load, s", "tokens"], *rows]
    )


def _moved(options: Options, arguments: Sequence[str]) -> list[str]:
    with LocalWorkers.start(1, threads=1, options=arguments) as workers:
        with LLM(options.model, workers=[str(workers.endpoints[0])], n_ctx=N_CTX) as llm:
            out = sum(traffic["bytes_out"] for traffic in llm.wire().values())
            tokens = llm.generate(PROMPT, max_tokens=4, params=GREEDY).tokens
            row = [str(out), f"{100 * out / llm.upload_nbytes:.2f} %", f"{llm.load_s:.2f}", str(tokens)]
            _wait_stored(workers)
        return row


def _wait_stored(workers: LocalWorkers) -> None:
    """Return when the worker has put no more into its cache for a while: it stores beside its work."""
    before, stored = -1, 0
    with connect(workers.endpoints[0]) as connection:
        while stored != before:
            time.sleep(_SETTLE_S)
            before, stored = stored, connection.call(STATS, Empty()).weights.get("nbytes_stored", 0)


# Old and new


def _arms_lines(options: Options) -> Iterator[str]:
    pairs = [(client, worker) for worker in WORKERS for client in CLIENTS]
    found: dict[tuple[str, str], list[_Arm]] = {pair: [] for pair in pairs}
    for number in range(options.rounds):
        for pair in pairs if number % 2 == 0 else reversed(pairs):
            found[pair].append(_arm(options.model, *pair))
    yield from section(
        "Old and new",
        [
            ["client", "worker", "upload, s", "load, s", "SET_TENSOR", "SET_TENSOR_HASH", "tokens"],
            *(
                [
                    *pair,
                    f"{statistics.median(arm.upload_s for arm in arms):.2f}",
                    f"{statistics.median(arm.load_s for arm in arms):.2f}",
                    *(str(arms[0].commands.get(name, 0)) for name in ("SET_TENSOR", "SET_TENSOR_HASH")),
                    " or ".join(dict.fromkeys(str(arm.tokens) for arm in arms)),
                ]
                for pair, arms in found.items()
            ),
        ],
    )


@dataclass(frozen=True, slots=True)
class _Arm:
    """One load between a client and a worker, and what was generated then."""

    upload_s: float
    load_s: float
    commands: dict[str, int]
    tokens: list[int]


def _arm(model: Path, client: str, worker: str) -> _Arm:
    stages: dict[str, float] = {}

    def note(progress: LoadProgress) -> None:
        stages.setdefault(progress.stage, time.perf_counter())

    settings, arguments = WORKERS[worker]
    with ExitStack() as stack:
        workers = stack.enter_context(LocalWorkers.start(1, threads=1, settings=settings, options=arguments))
        llm = LLM(model, workers=[str(workers.endpoints[0])], n_ctx=N_CTX, settings=CLIENTS[client], on_progress=note)
        stack.enter_context(llm)
        (traffic,) = llm.wire().values()
        tokens = llm.generate(PROMPT, max_tokens=8, params=GREEDY).tokens
        return _Arm(stages["compile"] - stages["upload"], llm.load_s, traffic["commands"], tokens)


# Rounds


def _in_turn(arms: dict[str, Callable[[], float]], rounds: int) -> dict[str, list[float]]:
    """Time each arm once per round, in an order that changes from round to round."""
    seconds: dict[str, list[float]] = {name: [] for name in arms}
    names = list(arms)
    for number in range(rounds):
        for name in names if number % 2 == 0 else reversed(names):
            seconds[name].append(arms[name]())
    return seconds


def _ratio(seconds: Sequence[float], of: Sequence[float]) -> str:
    return f"{statistics.median(a / b for a, b in zip(seconds, of, strict=True)):.2f}"


def _mib(nbytes: int) -> str:
    return f"{nbytes / MIB:.0f} MiB"


def _silent(progress: LoadProgress) -> None:
    """Nobody watches."""


PARTS: dict[str, Callable[[Options], Iterator[str]]] = {
    "socket": _socket_lines,
    "llama": _llama_lines,
    "cache": _cache_lines,
    "arms": _arms_lines,
}

if __name__ == "__main__":
    sys.exit(main())
