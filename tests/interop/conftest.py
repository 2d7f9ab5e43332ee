"""What the tests with the real llama.cpp share."""

from __future__ import annotations

import socket
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from rpc_backend.errors import ModelFileError
from rpc_backend.host.local_workers import LocalWorkers
from rpc_backend.host.model_source import find_model

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tools"))


class Gateways(NamedTuple):
    """Workers with gateways: their own endpoints, those of the gateways as llama.cpp writes them, their processes."""

    workers: list[str]
    gateways: list[str]
    pids: list[int]


@pytest.fixture(scope="session")
def llama_python() -> str:
    """An interpreter that has llama.cpp with RPC; skips where it was not built."""
    import get_llamacpp

    try:
        return str(get_llamacpp.find_python())
    except get_llamacpp.NoLlamaCppError as error:
        pytest.skip(str(error))


@pytest.fixture(scope="session")
def demo_model() -> str:
    """The path of the demo model; skips where its package is not installed."""
    try:
        return str(find_model("demo"))
    except ModelFileError as error:
        pytest.skip(str(error))


@contextmanager
def _serve(count: int, memory: str | None = None, options: Sequence[str] = ()) -> Iterator[Gateways]:
    with ExitStack() as stack:
        workers, gateways, pids = [], [], []
        for _ in range(count):
            with socket.socket() as probe:
                probe.bind(("127.0.0.1", 0))
                place = f"127.0.0.1:{probe.getsockname()[1]}"
            gateway = ("--gateway", f"tcp://{place}")
            started = stack.enter_context(LocalWorkers.start(1, memory=memory, options=[*gateway, *options]))
            workers += [str(endpoint) for endpoint in started.endpoints]
            gateways.append(place)
            pids.append(started.workers[0].pid)
        yield Gateways(workers, gateways, pids)


@pytest.fixture(scope="session")
def gateways() -> Iterator[Gateways]:
    """Two of our workers with gateways."""
    with _serve(2) as running:
        yield running


@pytest.fixture
def capped_gateways() -> Iterator[Gateways]:
    """Two others, whose free memory is what nobody has taken of a cap."""
    with _serve(2, "512MiB") as running:
        yield running


@pytest.fixture
def serve() -> Iterator[Callable[..., Gateways]]:
    """Start workers with gateways and further options; they end with the test."""
    with ExitStack() as stack:
        yield lambda *options: stack.enter_context(_serve(2, options=list(map(str, options))))


@pytest.fixture(scope="session")
def their_servers(llama_python) -> Iterator[list[str]]:
    """Two servers of llama.cpp."""
    import llamacpp

    with llamacpp.servers(llama_python, 2, 1) as endpoints:
        yield endpoints


@pytest.fixture
def client(llama_python) -> Iterator[Callable[..., Any]]:
    """Start a llama.cpp that has loaded a model on some servers; it ends with the test."""
    import llamacpp

    with ExitStack() as stack:

        def start(model: str | Path, servers: list[str], *, threads: int = 1) -> Any:
            process = stack.enter_context(llamacpp.LlamaProcess(llama_python, "talk"))
            process.ask(120, do="load", model=str(model), threads=threads, servers=servers)
            return process

        yield start
