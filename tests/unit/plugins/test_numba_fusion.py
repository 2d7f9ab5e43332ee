"""Nodes computed together: which are found, what memory allows, and results bit for bit those of single kernels."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import numpy as np
import pytest

from rpc_backend.graph import Graph, Tensor, build, check_graph
from rpc_backend.graph.element_types import F16, F32
from rpc_backend.hookspecs import DeviceOptions
from rpc_backend.interfaces import Device, HostBuffer
from rpc_backend.registry import load_registry
from rpc_backend.testing.devices import NullDevice
from rpc_backend_numba.builder import PlanBuilder
from rpc_backend_numba.lowering.fusion import groups_of
from rpc_backend_numba.plan import NumbaPlan
from rpc_backend_reference.device import ReferenceDevice

EPS = 1e-5
RESULTS = ("sum", "norm", "product")
Chain = dict[str, Tensor]
Places = Callable[[Chain, HostBuffer], None]


def chain(n: int = 64, rows: int = 3, **kinds: Tensor) -> Chain:
    """ADD, RMS_NORM, MUL, with leaves a, b and weights, each of which can be given."""
    a, b = (kinds.get(name) or build.leaf(F32, (n, rows)) for name in ("a", "b"))
    weights = kinds.get("weights") or build.leaf(F32, (n,))
    total = build.add(a, b)
    norm = build.rms_norm(total, EPS)
    return {"a": a, "b": b, "weights": weights, "sum": total, "norm": norm, "product": build.mul(norm, weights)}


def placed(tensors: Sequence[Tensor], *, same: Sequence[Sequence[Tensor]] = ()) -> list[Tensor]:
    """Put tensors into one buffer, each apart but for those of a list in `same`; return the nodes."""
    buffer, end = HostBuffer(NullDevice(), 1 << 20), 0
    for tensor in tensors:
        if tensor.view_src is None:
            tensor.buffer, tensor.offset = buffer, end
            end += -(-tensor.nbytes // 64) * 64
    for first, *others in same:
        for other in others:
            other.offset = first.offset
    return [tensor for tensor in tensors if tensor.op is not None]


def found(nodes: Sequence[Tensor]) -> list[int]:
    return [len(positions) for positions, _ in groups_of(nodes)]


def rows_of(nodes: Sequence[Tensor]) -> PlanBuilder:
    builder = PlanBuilder(16)
    for positions, fusion in groups_of(nodes):
        builder.start_nodes(positions)
        assert fusion is not None
        fusion.emit(builder, [nodes[index] for index in positions])
    return builder


def test_a_sum_its_norm_and_the_product_are_one_row() -> None:
    nodes = placed([*chain().values()])

    assert found(nodes) == [3]
    (row,) = rows_of(nodes).rows
    assert row.kernel == "norm_chain.ADD_NORM_MUL"
    assert (row.nodes, row.node) == ((0, 1, 2), 2)
    assert len(row.writes) == 3, "all results are written, whoever reads them"


def test_a_norm_and_a_product_are_one_row() -> None:
    x, weights = build.leaf(F32, (64, 2)), build.leaf(F32, (64,))
    norm = build.rms_norm(x, EPS)
    nodes = placed([x, weights, norm, build.mul(norm, weights)])

    assert found(nodes) == [2]
    assert [row.kernel for row in rows_of(nodes).rows] == ["norm_chain.NORM_MUL"]


def test_views_between_them_do_not_matter() -> None:
    parts = chain()
    view = build.reshape(parts["sum"], (192,))
    nodes = placed([parts[name] for name in ("a", "b", "weights", "sum")] + [view, parts["norm"], parts["product"]])

    assert [list(positions) for positions, _ in groups_of(nodes)] == [[0, 2, 3]]


def test_a_sum_that_repeats_a_source_stays_alone() -> None:
    assert found(placed([*chain(b=build.leaf(F32, (64,))).values()])) == [1, 2]


@pytest.mark.parametrize(
    "kinds",
    [
        {"weights": build.leaf(F16, (64,))},
        {"weights": build.leaf(F32, (32,))},
        {"weights": build.leaf(F32, (1,))},
        {"a": build.leaf(F16, (64, 3)), "weights": build.leaf(F16, (64,))},
    ],
    ids=["half weights", "weights that repeat", "one weight", "half sources"],
)
def test_other_types_and_shapes_stay_alone(kinds: Chain) -> None:
    assert found(placed([*chain(**kinds).values()])) == [1, 1, 1]


def test_rows_with_gaps_stay_alone() -> None:
    whole = build.leaf(F32, (128, 3))
    spread = build.view(whole, (64, 3), (8, 512, 1536, 1536), 0)
    norm = build.rms_norm(spread, EPS)
    weights = build.leaf(F32, (64,))

    assert found(placed([whole, spread, weights, norm, build.mul(norm, weights)])[1:]) == [1, 1]


def test_what_is_not_of_one_another_stays_alone() -> None:
    parts = chain()
    other = build.rms_norm(parts["a"], EPS)
    product = build.mul(parts["norm"], parts["weights"])
    nodes = placed([parts["a"], parts["b"], parts["weights"], parts["sum"], parts["norm"], other, product])

    assert found(nodes) == [1, 1, 1, 1]


def test_something_between_keeps_them_apart() -> None:
    parts = chain()
    scaled = build.scale(parts["a"], 2.0)
    leaves = [parts["a"], parts["b"], parts["weights"]]

    assert found(placed([*leaves, parts["sum"], scaled, parts["norm"], parts["product"]])) == [1, 1, 2]


@pytest.mark.parametrize("result", RESULTS)
@pytest.mark.parametrize("source", ["a", "b"])
def test_results_over_sources_are_shared_by_whole_rows(result: str, source: str) -> None:
    parts = chain()
    (row,) = rows_of(placed([*parts.values()], same=[(parts[source], parts[result])])).rows

    assert [span.parts.count if span.parts else None for span in row.writes] == [3] * 3


def test_results_apart_from_sources_are_shared_in_pieces() -> None:
    parts = chain()
    (row,) = rows_of(placed([*parts.values()], same=[(parts["sum"], parts["norm"], parts["product"])])).rows

    assert [span.parts.count if span.parts else None for span in row.writes] == [6] * 3


@pytest.mark.parametrize(("source", "groups"), [("a", [1, 2]), ("sum", [1, 1, 1])])
def test_a_result_over_other_rows_of_a_source_is_made_alone(source: str, groups: list[int]) -> None:
    parts = chain()
    nodes = placed([*parts.values()])
    parts["product"].offset = parts[source].offset + 256  # a row further

    assert found(nodes) == groups


@pytest.mark.parametrize(("result", "groups"), [("sum", [1, 2]), ("norm", [1, 1, 1]), ("product", [1, 1, 1])])
def test_a_result_over_the_weights_is_made_alone(result: str, groups: list[int]) -> None:
    parts = chain(rows=1)

    assert found(placed([*parts.values()], same=[(parts["weights"], parts[result])])) == groups


# values


@pytest.fixture(params=[1, 3], ids=["one thread", "three threads"])
def device(request: pytest.FixtureRequest) -> Iterator[Device]:
    (made,) = load_registry().create_devices("numba", DeviceOptions(threads=request.param))
    yield made
    made.close()


def run(device: Device, parts: Chain, graphs: Sequence[Sequence[Tensor]], places: Places) -> None:
    """Place a chain on a device, fill its leaves, run graphs of its nodes."""
    buffer = device.alloc_buffer(1 << 17)
    assert isinstance(buffer, HostBuffer)
    places(parts, buffer)
    random = np.random.default_rng(5)
    for name in ("a", "b", "weights"):
        write(parts[name], random.standard_normal(parts[name].n_elements))
    for nodes in graphs:
        graph = Graph(nodes)
        check_graph(graph)
        device.compile(graph).run()


def apart(parts: Chain, buffer: HostBuffer) -> None:
    for index, tensor in enumerate(parts.values()):
        tensor.buffer, tensor.offset = buffer, 16384 * index


def over_a(parts: Chain, buffer: HostBuffer) -> None:
    apart(parts, buffer)
    for name in RESULTS:
        parts[name].offset = parts["a"].offset


def norm_over_b(parts: Chain, buffer: HostBuffer) -> None:
    apart(parts, buffer)
    parts["norm"].offset = parts["b"].offset


def write(tensor: Tensor, values: np.ndarray) -> None:
    buffer, offset = tensor.location()
    buffer.write(offset, memoryview(values.astype(np.float32).tobytes()))


def read(tensor: Tensor) -> np.ndarray:
    out = np.empty(tensor.n_elements, np.float32)
    buffer, offset = tensor.location()
    buffer.read_into(offset, memoryview(out).cast("B"))
    return out


@pytest.mark.parametrize("places", [apart, over_a, norm_over_b])
@pytest.mark.parametrize(("n", "rows"), [(64, 1), (96, 5), (75, 4), (7, 3), (1056, 2)])
def test_results_are_those_of_single_kernels(device: Device, n: int, rows: int, places: Places) -> None:
    together, alone = chain(n, rows), chain(n, rows)
    run(device, together, [[together[name] for name in RESULTS]], places)
    run(device, alone, [[alone[name]] for name in RESULTS], places)

    for name in RESULTS:
        np.testing.assert_array_equal(read(together[name]), read(alone[name]))


@pytest.mark.parametrize(("n", "rows"), [(64, 1), (96, 5), (75, 4)])
def test_results_agree_with_the_reference(device: Device, n: int, rows: int) -> None:
    ours, right = chain(n, rows), chain(n, rows)
    for parts, where in ((ours, device), (right, ReferenceDevice())):
        run(where, parts, [[parts[name] for name in RESULTS]], apart)

    for name in RESULTS:
        np.testing.assert_allclose(read(ours[name]), read(right[name]), rtol=1e-5, atol=1e-6)


def test_an_intermediate_result_that_is_read_twice_is_there(device: Device) -> None:
    parts = chain(96, 2)
    again = build.add(parts["norm"], parts["sum"])

    def places(chained: Chain, into: HostBuffer) -> None:
        apart({**chained, "again": again}, into)

    run(device, parts, [[*(parts[name] for name in RESULTS), again]], places)
    np.testing.assert_array_equal(read(again), read(parts["norm"]) + read(parts["sum"]))


def test_steps_name_all_nodes_of_a_row(device: Device) -> None:
    parts = chain(64, 1)
    buffer = device.alloc_buffer(1 << 17)
    assert isinstance(buffer, HostBuffer)
    apart(parts, buffer)
    plan = device.compile(Graph([parts[name] for name in RESULTS]))
    assert isinstance(plan, NumbaPlan)
    (step,) = plan.steps()

    assert step.kernel == "norm_chain.ADD_NORM_MUL"
    assert list(step.nodes) == [parts[name] for name in RESULTS]
