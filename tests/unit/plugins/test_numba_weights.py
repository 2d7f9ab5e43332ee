"""Weights that are interleaved in place: nobody but a product can tell."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import numpy as np
import pytest

from rpc_backend.errors import DeviceError, GraphError
from rpc_backend.graph import Graph, Tensor, build, check_graph, element_type
from rpc_backend.graph.element_types import F32, I32
from rpc_backend.hookspecs import DeviceOptions
from rpc_backend.interfaces import BufferUsage, Device
from rpc_backend.registry import load_registry
from rpc_backend.testing.backend_suite.leaves import Leaves
from rpc_backend_numba.formats import FORMATS
from rpc_backend_numba.weights import Region, WeightsBuffer

Bytes = np.ndarray
LENGTH, ROWS = 512, 37


@pytest.fixture(scope="module", params=["auto", "portable"])
def device(request: pytest.FixtureRequest) -> Iterator[Device]:
    options = DeviceOptions(threads=2, extra={"cpu_features": request.param})
    made = load_registry().create_devices("numba", options)[0]
    yield made
    made.close()


class Matrix:
    """Weights in a buffer of their own, between bytes that must stay as they are."""

    def __init__(
        self, device: Device, name: str = "Q4_1", usage: BufferUsage = BufferUsage.WEIGHTS, n: int = 1
    ) -> None:
        self.device = device
        self.tensor = build.leaf(element_type(name), (LENGTH, ROWS, n))
        self.tensor.buffer, self.tensor.offset = device.alloc_buffer(self.tensor.nbytes + 192, usage), 64
        self.plain = _weights(name, n)
        self.write(0, self.plain)

    @property
    def is_interleaved(self) -> bool:
        assert isinstance(self.tensor.buffer, WeightsBuffer)
        return Region.of(self.tensor) in self.tensor.buffer.interleaved

    def write(self, offset: int, data: Bytes) -> None:
        self.tensor.buffer.write(64 + offset, memoryview(np.ascontiguousarray(data)).cast("B"))

    def read(self, offset: int, nbytes: int) -> Bytes:
        out = np.empty(nbytes, np.uint8)
        self.tensor.buffer.read_into(64 + offset, out.data)
        return out

    def raw(self) -> Bytes:
        return self.tensor.buffer.bytes[64 : 64 + self.tensor.nbytes]


def _weights(name: str, n: int = 1, seed: int = 5) -> Bytes:
    leaves = Leaves(seed=seed)
    leaves.weight(element_type(name), (LENGTH, ROWS, n, 1))
    return np.frombuffer(leaves.made[0].contents[0], np.uint8).copy()


def _columns(device: Device, count: int, n: int = 1) -> Tensor:
    columns = build.leaf(F32, (LENGTH, count, n))
    columns.buffer = device.alloc_buffer(columns.nbytes)
    values = np.random.default_rng(count).standard_normal(columns.n_elements).astype(np.float32)
    columns.buffer.write(0, memoryview(values).cast("B"))
    return columns


class Run:
    """A compiled graph with one output."""

    def __init__(self, device: Device, output: Tensor) -> None:
        graph = Graph.of(output)
        for tensor in graph.tensors():
            if tensor.view_src is None and tensor.buffer is None:
                tensor.buffer = device.alloc_buffer(tensor.nbytes)
        check_graph(graph)
        self.output, self.plan, self.stream = output, device.compile(graph), device.create_stream()

    def __call__(self) -> np.ndarray:
        self.stream.compute(self.plan)
        out = np.empty(self.output.n_elements, np.float32)
        buffer, offset = self.output.location()
        buffer.read_into(offset, memoryview(out).cast("B"))
        return out


def _product(matrix: Matrix, count: int = 3) -> Run:
    columns = _columns(matrix.device, count, matrix.tensor.ne[2])
    return Run(matrix.device, build.mul_mat(matrix.tensor, columns))


def _rows(matrix: Matrix, *indices: int) -> Run:
    places = build.leaf(I32, (len(indices),))
    places.buffer = matrix.device.alloc_buffer(places.nbytes)
    places.buffer.write(0, memoryview(np.array(indices, np.int32)).cast("B"))
    return Run(matrix.device, build.get_rows(matrix.tensor, places))


@pytest.mark.parametrize("name", sorted(FORMATS))
def test_interleaving_loses_no_byte(device: Device, name: str) -> None:
    matrix = Matrix(device, name, n=2)
    noise = np.random.default_rng(7).integers(0, 256, matrix.tensor.nbytes, np.uint8)
    matrix.write(0, noise)
    _product(matrix)()

    assert matrix.is_interleaved
    assert not np.array_equal(matrix.raw(), noise)
    np.testing.assert_array_equal(matrix.read(0, len(noise)), noise)
    np.testing.assert_array_equal(np.sort(matrix.raw()), np.sort(noise))


@pytest.mark.parametrize("name", sorted(FORMATS))
@pytest.mark.parametrize("count", [1, 2, 5, 16, 23])
def test_a_product_is_the_same_to_the_bit(device: Device, name: str, count: int) -> None:
    plain = _product(Matrix(device, name, BufferUsage.ANY), count)()

    np.testing.assert_array_equal(_product(Matrix(device, name), count)(), plain)


@pytest.mark.parametrize("name", sorted(FORMATS))
def test_a_table_of_rows_is_read_as_it_lies(device: Device, name: str) -> None:
    indices = 0, 1, 15, 16, 31, 32, 36
    expected = _rows(Matrix(device, name, BufferUsage.ANY), *indices)()
    matrix = Matrix(device, name)
    rows = _rows(matrix, *indices)
    np.testing.assert_array_equal(rows(), expected)
    assert not matrix.is_interleaved

    _product(matrix)()
    np.testing.assert_array_equal(rows(), expected)
    assert matrix.is_interleaved


@pytest.mark.parametrize(("offset", "nbytes"), [(0, 1), (3, 5000), (5119, 2), (9000, 2840), (11839, 1), (0, 11840)])
def test_any_range_reads_as_it_was_written(device: Device, offset: int, nbytes: int) -> None:
    matrix = Matrix(device)
    _product(matrix)()

    np.testing.assert_array_equal(matrix.read(offset, nbytes), matrix.plain[offset : offset + nbytes])
    assert matrix.is_interleaved


def test_what_lies_around_is_not_touched(device: Device) -> None:
    matrix = Matrix(device)
    matrix.tensor.buffer.write(0, memoryview(bytes(range(64))))
    _product(matrix)()

    assert matrix.read(-64, 64).tolist() == list(range(64))
    assert not matrix.read(len(matrix.plain), 128).any()


def test_a_partial_write_is_seen_by_the_next_run(device: Device) -> None:
    matrix, other = Matrix(device), Matrix(device)
    run, changed = _product(matrix), _weights("Q4_1", seed=6)
    before = run()
    changed[:3000], changed[4000:] = matrix.plain[:3000], matrix.plain[4000:]
    matrix.write(3000, changed[3000:4000])

    np.testing.assert_array_equal(matrix.read(0, len(changed)), changed)
    after = run()
    other.write(0, changed)
    np.testing.assert_array_equal(after, _product(other)())
    assert not np.array_equal(before, after)
    assert matrix.is_interleaved


def test_a_whole_overwrite_a_fill_and_a_copy_are_seen_too(device: Device) -> None:
    matrix, source = Matrix(device), Matrix(device)
    run, changed = _product(matrix), _weights("Q4_1", seed=6)
    before = run()
    matrix.write(0, changed)
    np.testing.assert_array_equal(matrix.raw(), changed)
    assert not np.array_equal(run(), before)

    matrix.tensor.buffer.fill(0, matrix.tensor.buffer.nbytes, 0)
    assert not run().any()

    _product(source)()
    assert matrix.tensor.buffer.copy_from(64, source.tensor.buffer, 64, len(changed))
    np.testing.assert_array_equal(run(), before)
    np.testing.assert_array_equal(source.read(0, len(changed)), source.plain)


def test_interleaved_weights_can_be_copied_to_any_buffer(device: Device) -> None:
    matrix, target = Matrix(device), Matrix(device, usage=BufferUsage.ANY)
    target.write(0, np.zeros_like(matrix.plain))
    _product(matrix)()

    assert target.tensor.buffer.copy_from(64, matrix.tensor.buffer, 64, len(matrix.plain))
    np.testing.assert_array_equal(target.raw(), matrix.plain)


def test_a_write_outside_changes_nothing(device: Device) -> None:
    matrix = Matrix(device)
    _product(matrix)()

    with pytest.raises(GraphError, match="outside"):
        matrix.write(len(matrix.plain), np.zeros(500, np.uint8))
    assert matrix.is_interleaved


def _view_product(matrix: Matrix) -> Run:
    part = build.view(matrix.tensor, (LENGTH, 20), matrix.tensor.nb, 3 * matrix.tensor.nb[1])
    return Run(matrix.device, build.mul_mat(part, _columns(matrix.device, 3)))


def _decode(matrix: Matrix) -> Run:
    return Run(matrix.device, build.cpy(matrix.tensor, build.leaf(F32, (LENGTH, ROWS))))


@pytest.mark.parametrize("make", [_view_product, _decode])
@pytest.mark.parametrize("order", ["first", "after"])
def test_another_use_makes_weights_plain_for_good(device: Device, make, order: str) -> None:
    whole, part = _product(Matrix(device)), make(Matrix(device, usage=BufferUsage.ANY))
    expected, expected_part = whole(), part()
    matrix = Matrix(device)
    if order == "first":
        other, run = make(matrix), _product(matrix)
    else:
        run = _product(matrix)
        run()
        assert matrix.is_interleaved
        other = make(matrix)

    for _ in range(2):
        np.testing.assert_array_equal(run(), expected)
        np.testing.assert_array_equal(other(), expected_part)
        assert not matrix.is_interleaved
    np.testing.assert_array_equal(matrix.raw(), matrix.plain)


def test_weights_that_a_graph_writes_stay_plain(device: Device) -> None:
    matrix, values = Matrix(device), build.leaf(F32, (LENGTH, ROWS))
    run = _product(matrix)
    run()
    copy = Run(device, build.cpy(values, matrix.tensor))
    copy.stream.compute(copy.plan)

    assert not run().any()
    assert not matrix.is_interleaved


def test_a_buffer_that_holds_weights_and_results_alike(device: Device) -> None:
    """As clients allocate who cannot tell what a buffer is for: few ranges are kept of the many that must be plain."""
    expected = _product(Matrix(device))()
    matrix = Matrix(device)
    columns = _columns(device, 3)
    steps = [build.mul_mat(matrix.tensor, columns)]
    for _ in range(20):
        steps.append(build.add(steps[-1], steps[0]))
    memory = device.alloc_buffer(len(steps) * steps[0].nbytes, BufferUsage.WEIGHTS)
    for number, step in enumerate(steps):
        step.buffer, step.offset = memory, number * step.nbytes
    run = Run(device, steps[-1])
    for _ in range(2):
        np.testing.assert_allclose(run().ravel(), 21 * expected.ravel(), rtol=1e-5)
        assert matrix.is_interleaved
        assert isinstance(memory, WeightsBuffer)
        assert memory.pinned == {(0, memory.nbytes)}


def test_a_new_buffer_knows_nothing_of_the_old(device: Device) -> None:
    matrix = Matrix(device)
    run = _product(matrix)
    first = run()
    matrix.tensor.buffer.close()
    with pytest.raises(DeviceError, match="closed"):
        run()
    with pytest.raises(DeviceError, match="closed"):
        matrix.read(0, 1)

    again = Matrix(device)
    assert not again.is_interleaved
    np.testing.assert_array_equal(_product(again)(), first)


def test_plans_and_readers_at_the_same_time(device: Device) -> None:
    matrix = Matrix(device)
    runs = [_product(matrix, 3), _product(matrix, 1)]
    expected = [run() for run in runs]
    failures: list[str] = []

    def compute(number: int) -> None:
        for _ in range(50):
            if not np.array_equal(runs[number](), expected[number]):
                failures.append(f"plan {number}")

    def read_and_write() -> None:
        for step in range(50):
            if not np.array_equal(matrix.read(100, 9000), matrix.plain[100:9100]):
                failures.append("read")
            matrix.write(64 * step, matrix.plain[64 * step : 64 * step + 64])

    workers = [threading.Thread(target=compute, args=(number,)) for number in (0, 1)]
    workers.append(threading.Thread(target=read_and_write))
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join(30)
    assert not failures
    assert not any(worker.is_alive() for worker in workers)
