"""The device: options, plans, errors, and that kernels compile once."""

from __future__ import annotations

import logging
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

import rpc_backend_numba
from rpc_backend.errors import ComputeError, ConfigError, DeviceError, OutOfMemoryError, UnsupportedOpError
from rpc_backend.graph import Graph, Tensor, build, check_graph
from rpc_backend.graph.element_types import F32, I8, I32, Q8_0
from rpc_backend.graph.ops import Unary
from rpc_backend.hookspecs import DeviceOptions
from rpc_backend.interfaces import Device
from rpc_backend.registry import load_registry
from rpc_backend_numba import threads
from rpc_backend_numba.cache import KernelCache
from rpc_backend_numba.library import KernelLibrary
from rpc_backend_numba.targets import choose_target
from rpc_backend_numba.threads import ComputeThreads

MakeDevice = Callable[..., Device]


@pytest.fixture
def make_device() -> Iterator[MakeDevice]:
    made: list[Device] = []

    def make(**options: object) -> Device:
        made.extend(load_registry().create_devices("numba", DeviceOptions(**{"threads": 1, **options})))  # type: ignore[arg-type]
        return made[-1]

    yield make
    for device in made:
        device.close()


def place(device: Device, output: Tensor) -> Graph:
    graph = Graph.of(output)
    for tensor in graph.tensors():
        if tensor.view_src is None and tensor.buffer is None:
            tensor.buffer = device.alloc_buffer(tensor.nbytes)
    check_graph(graph)
    return graph


def values_of(tensor: Tensor) -> np.ndarray:
    out = np.empty(tensor.n_elements, np.float32)
    buffer, offset = tensor.location()
    buffer.read_into(offset, memoryview(out).cast("B"))
    return out


def put(tensor: Tensor, values: np.ndarray) -> None:
    buffer, offset = tensor.location()
    buffer.write(offset, memoryview(np.ascontiguousarray(values).tobytes()))


def chain(x: Tensor) -> Tensor:
    """Rows that depend on each other, more than one way."""
    for _ in range(5):
        normed = build.rms_norm(x, 1e-6)
        x = build.add(build.unary(Unary.SILU, normed), build.mul(x, normed))
    return x


def run_chain(device: Device) -> np.ndarray:
    x = build.leaf(F32, (96, 17))
    output = chain(x)
    graph = place(device, output)
    put(x, np.random.default_rng(0).standard_normal(96 * 17).astype(np.float32))
    plan = device.compile(graph)
    stream = device.create_stream()
    for _ in range(20):
        stream.compute(plan)
    return values_of(output)


def test_results_do_not_depend_on_threads(make_device: MakeDevice) -> None:
    one = run_chain(make_device(threads=1))

    assert np.all(np.isfinite(one))
    np.testing.assert_array_equal(run_chain(make_device(threads=3)), one)


def test_threads_work_without_native_semaphores(make_device: MakeDevice, monkeypatch: pytest.MonkeyPatch) -> None:
    one = run_chain(make_device(threads=1))
    monkeypatch.setattr(threads, "_native_calls", lambda: None)

    np.testing.assert_array_equal(run_chain(make_device(threads=2)), one)


def test_closing_ends_the_threads(make_device: MakeDevice) -> None:
    device = make_device(threads=3)
    run_chain(device)
    device.close()
    device.close()

    with pytest.raises(DeviceError, match="closed"):
        run_chain(device)


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"extra": {"cpu": "fast"}}, "no option 'cpu'; it has cpu_features"),
        ({"extra": {"cpu_features": "mmx"}}, "'mmx' is not known"),
        ({"threads": -1}, "threads=-1 is below 0"),
    ],
)
def test_unknown_options_are_errors(make_device: MakeDevice, options: dict[str, object], text: str) -> None:
    with pytest.raises(ConfigError, match=text):
        make_device(**options)


def test_the_description_names_what_it_uses(make_device: MakeDevice) -> None:
    device = make_device(threads=1, extra={"cpu_features": "portable"})

    assert "portable kernels, threads: 1" in device.info.description


@pytest.mark.parametrize("extra", [{}, {"cpu_features": "portable"}])
def test_the_setting_chooses_instructions_unless_the_device_does(
    make_device: MakeDevice, extra: dict[str, str]
) -> None:
    setting = "portable" if not extra else "sse9"
    device = make_device(threads=1, cpu_features=setting, extra=extra)

    assert "portable kernels" in device.info.description


def test_an_operation_it_cannot_run_is_named(make_device: MakeDevice) -> None:
    device = make_device()
    output = build.get_rows(build.leaf(I8, (8, 4)), build.leaf(I32, (2,)))

    with pytest.raises(UnsupportedOpError, match=r"GET_ROWS .* of I8, I32"):
        device.compile(place(device, output))


def test_more_memory_than_there_is(make_device: MakeDevice) -> None:
    device = make_device()

    for nbytes in (-1, 2**62):
        with pytest.raises(OutOfMemoryError, match=f"cannot allocate {nbytes} bytes"):
            device.alloc_buffer(nbytes)


@pytest.mark.parametrize("index", [-1, 5, 2**31 - 1, -(2**31)])
def test_a_row_index_from_outside_is_an_error_and_the_plan_lives(make_device: MakeDevice, index: int) -> None:
    device = make_device()
    table, rows = build.leaf(Q8_0, (32, 5)), build.leaf(I32, (3,))
    output = build.get_rows(table, rows)
    plan = device.compile(place(device, output))
    stream = device.create_stream()
    put(table, np.zeros(table.nbytes, np.uint8))
    put(rows, np.array([0, index, 4], np.int32))

    with pytest.raises(ComputeError, match=f"GET_ROWS: row index {index} is not one of the 5 rows 0 to 4") as caught:
        stream.compute(plan)
    assert caught.value.context.op == "GET_ROWS"

    put(rows, np.array([4, 0, 4], np.int32))
    stream.compute(plan)
    np.testing.assert_array_equal(values_of(output), np.zeros(96))


def test_a_plan_over_a_closed_buffer_does_not_run(make_device: MakeDevice) -> None:
    device = make_device()
    x = build.leaf(F32, (8,))
    plan = device.compile(place(device, build.scale(x, 2.0)))
    x.buffer.close()

    with pytest.raises(DeviceError, match="closed"):
        device.create_stream().compute(plan)


def test_kernels_compile_once_and_say_so(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "rpc_backend_numba")
    target = choose_target()
    first = KernelLibrary(target, KernelCache(tmp_path)).addresses(["run"])

    messages = [record.getMessage() for record in caplog.records]
    assert messages[0] == "compiling 1 kernels for this CPU, once: run"
    assert messages[1].startswith("compiled them in ")
    caplog.clear()
    again = KernelLibrary(target, KernelCache(tmp_path)).addresses(["run"])
    assert first.keys() == again.keys()
    assert not caplog.records


def test_a_damaged_kernel_is_compiled_again(tmp_path: Path) -> None:
    target = choose_target()
    KernelLibrary(target, KernelCache(tmp_path)).addresses(["run"])
    path = tmp_path / "run.o"
    damaged = path.read_bytes()[:-1]
    path.write_bytes(damaged)

    library = KernelLibrary(target, KernelCache(tmp_path))
    ComputeThreads(library, 1).run(np.zeros((0, 3), np.int64))
    assert KernelCache(tmp_path).read("run") is not None


def test_a_cached_start_does_not_import_numba(make_device: MakeDevice) -> None:
    run_chain(make_device(threads=2))  # all kernels are on disk now
    program = (
        "import sys; from rpc_backend.registry import load_registry; from rpc_backend.hookspecs import DeviceOptions\n"
        "load_registry().create_devices('numba', DeviceOptions(threads=2)); assert 'numba' not in sys.modules"
    )

    subprocess.run([sys.executable, "-c", program], check=True, timeout=60)


def test_the_package_imports_nothing_heavy() -> None:
    program = "import sys, rpc_backend_numba; assert not {'numba', 'llvmlite'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60)
    assert rpc_backend_numba.rpc_register_backends is not None
