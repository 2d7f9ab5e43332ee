from __future__ import annotations

import subprocess
import sys

import pytest
from click.testing import CliRunner

from rpc_backend.cli.worker import listing, worker
from rpc_backend.hookspecs import ComputeBackend, PayloadPlugin, Probe, TransportPlugin
from rpc_backend.registry import PluginFailure, Registry


def backend(name: str, probe: Probe) -> ComputeBackend:
    return ComputeBackend(name, lambda: probe, lambda options: [])


def test_the_list_says_what_is_usable_and_why_not() -> None:
    registry = Registry(
        {"b": backend("b", Probe(False, "no driver; install one")), "a": backend("a", Probe(True))},
        {"rdma": TransportPlugin("rdma", ("rdma", "rdma6"), lambda: Probe(False, "no card"), lambda: None)},
        payloads={"fast": PayloadPlugin("fast", lambda: Probe(False, "no device"), lambda extra: None)},
        failures=[PluginFailure("broken = rpc_broken", "ImportError: no module x")],
    )
    text = "\n".join(listing(registry))
    assert text.index("a  usable") < text.index("b  not usable: no driver; install one")
    assert "rdma  rdma:// rdma6://  not usable: no card" in text
    assert "transports of payloads\n  fast  not usable: no device" in text
    assert "broken = rpc_broken  ImportError: no module x" in text


def test_a_probe_that_raises_is_shown_as_a_reason() -> None:
    def broken_probe() -> Probe:
        raise OSError("lost")

    text = "\n".join(listing(Registry({"a": ComputeBackend("a", broken_probe, lambda options: [])})))
    assert "not usable: its probe failed: OSError: lost" in text


def test_a_bad_size_is_a_usage_error() -> None:
    result = CliRunner().invoke(worker, ["--mem", "lots"])
    assert result.exit_code == 2
    assert "'lots' is not a size" in result.output


class _Warm:
    """A device that says what it was asked."""

    def __init__(self, said: list[str]) -> None:
        self._said = said

    def warm(self) -> str:
        self._said.append("warm")
        return "cpu: 3 kernels"

    def close(self) -> None:
        self._said.append("close")


def test_warm_alone_prepares_the_devices_and_exits(monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[str] = []
    backend_of = ComputeBackend("numba", lambda: Probe(True), lambda options: [_Warm(said)])
    monkeypatch.setattr("rpc_backend.registry.load_registry", lambda: Registry({"numba": backend_of}, {}))
    result = CliRunner().invoke(worker, ["--warm"])
    assert (result.exit_code, result.output) == (0, "warm cpu: 3 kernels\n")
    assert said == ["warm", "close"]


def test_a_worker_loads_nothing_that_takes_memory_and_is_not_used() -> None:
    program = (
        "import sys, rpc_backend.worker; from rpc_backend.registry import load_registry; load_registry()\n"
        "print(*{'asyncio', 'ssl', 'gguf', 'yaml', 'numba', 'llvmlite', 'jinja2', 'tokenizers'} & set(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True, timeout=60)
    assert done.stdout.split() == []
