"""The worked example of docs/plugins.md, as its reader would use it."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from rpc_backend import connect
from rpc_backend.graph import Graph, build
from rpc_backend.graph.element_types import F32

ROOT = Path(__file__).resolve().parents[3]
TIMEOUT_S = 60


@pytest.fixture
def programs(project_wheel: Path, example_wheel: Path, fresh_environment: Callable[..., Path]) -> Path:
    """The programs of a fresh environment with the project and the example."""
    return fresh_environment(project_wheel, example_wheel)


@pytest.fixture
def endpoint(programs: Path, tmp_path: Path) -> Iterator[str]:
    """A worker with the example backend."""
    command = [programs / "zmq-rpc-worker", "--device", "example", "--listen", "tcp://127.0.0.1:0"]
    with subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.PIPE, text=True) as worker:
        assert worker.stdout is not None
        yield worker.stdout.readline().removeprefix("ready ").strip()
        worker.terminate()
        assert worker.wait(TIMEOUT_S) == 0


def test_it_is_under_100_lines() -> None:
    assert len((ROOT / "docs" / "example_plugin" / "rpc_backend_example.py").read_text().splitlines()) < 100


def test_a_worker_runs_a_graph_on_it(endpoint: str) -> None:
    weight, rows, bias = build.leaf(F32, (8, 3)), build.leaf(F32, (8, 5, 4)), build.leaf(F32, (3,))
    result = build.add(build.mul_mat(weight, rows), bias)
    graph = Graph.of(result)
    generator = np.random.default_rng(0)
    with connect(endpoint) as connection:
        (device,) = connection.devices()
        assert device.info.name.startswith("example")
        buffer = device.alloc_buffer(1 << 16)
        stream = device.create_stream()
        values = {}
        for index, tensor in enumerate(graph.tensors()):
            tensor.buffer, tensor.offset = buffer, index * 4096
        for leaf in (weight, rows, bias):
            values[leaf] = generator.standard_normal(leaf.ne[::-1], np.float32)
            stream.set_tensor(leaf, memoryview(values[leaf]).cast("B"))
        stream.compute(device.compile(graph))
        found = np.empty(result.ne[::-1], np.float32)
        stream.get_tensor(result, memoryview(found).cast("B"))
        assert not device.supports_op(build.rms_norm(rows, 1e-5))
    expected = values[rows] @ values[weight][0, 0].T + values[bias]
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5)


def test_the_suite_passes_on_it(programs: Path, tmp_path: Path) -> None:
    done = subprocess.run(
        [programs / "python", "-m", "rpc_backend.testing.backend_suite", "example"],
        cwd=tmp_path, timeout=TIMEOUT_S, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert "MUL_MAT" in done.stdout
