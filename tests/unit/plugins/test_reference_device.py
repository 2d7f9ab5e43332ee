"""The reference device: memory, plans, errors, options."""

from __future__ import annotations

import subprocess
import sys
import time

import numpy as np
import pytest

from rpc_backend.errors import ComputeError, ConfigError, GraphError, OutOfMemoryError, UnsupportedOpError
from rpc_backend.graph import OPS, Graph, build
from rpc_backend.graph.element_types import F32, I8, I32, Q4_K, Q8_0
from rpc_backend.hookspecs import DeviceOptions
from rpc_backend.interfaces import HostBuffer
from rpc_backend.registry import load_registry
from rpc_backend_reference import ops_math
from rpc_backend_reference.device import ReferenceDevice
from rpc_backend_reference.ops import KERNELS, Kernel


def _placed(graph: Graph) -> Graph:
    device = ReferenceDevice()
    for tensor in graph.tensors():
        if tensor.view_src is None:
            tensor.buffer = device.alloc_buffer(tensor.nbytes)
    return graph


def test_every_operation_of_the_table_has_a_kernel():
    assert set(KERNELS) == set(OPS)


def test_it_is_registered_and_says_what_it_is():
    (device,) = load_registry().create_devices("reference", DeviceOptions(threads=4))
    assert (device.info.name, device.info.kind, device.info.is_host) == ("reference", "cpu", True)
    free, total = device.memory()
    assert 0 < free <= total
    device.close()
    device.close()


def test_unknown_options_are_refused_by_name():
    with pytest.raises(ConfigError, match="no options, it was given abacus, speed"):
        load_registry().create_devices("reference", DeviceOptions(extra={"speed": "9", "abacus": "1"}))


def test_loading_the_plugin_imports_nothing_heavy():
    code = "import sys, rpc_backend_reference; sys.exit('gguf' in sys.modules or 'psutil' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False, timeout=60).returncode == 0


@pytest.mark.parametrize("nbytes", [-1, 2**50, 2**63, 2**64])
def test_memory_that_is_not_there_is_refused_with_both_figures(nbytes):
    with pytest.raises(OutOfMemoryError, match=rf"cannot allocate {nbytes} bytes on device reference, \d+ are free"):
        ReferenceDevice().alloc_buffer(nbytes)


def test_a_plan_is_replayed_with_new_inputs():
    a = build.leaf(F32, (2,))
    graph = _placed(Graph.of(build.scale(build.scale(a, 2.0), 1.0, 1.0)))
    device = ReferenceDevice()
    plan, stream, out = device.compile(graph), device.create_stream(), np.zeros(2, "<f4")
    for values in ([1.0, 2.0], [-3.0, 0.5]):
        stream.set_tensor(a, np.array(values, "<f4").data)
        stream.compute(plan)
        stream.get_tensor(graph.nodes[-1], out.data)
        assert out.tolist() == [2 * value + 1 for value in values]


def test_an_operation_it_cannot_run_is_named():
    graph = Graph.of(build.cpy(build.leaf(F32, (256,)), build.leaf(Q4_K, (256,))))
    with pytest.raises(UnsupportedOpError, match=r"cannot run <CPY .* of F32, Q4_K"):
        ReferenceDevice().compile(graph)


def test_what_it_supports():
    device = ReferenceDevice()
    ids, weights = build.leaf(I32, (3,)), build.leaf(Q4_K, (256, 4))
    assert not device.supports_op(weights)
    assert device.supports_op(build.get_rows(weights, ids))
    assert not device.supports_op(build.get_rows(build.leaf(I8, (4, 4)), ids))
    assert not device.supports_op(build.mul_mat(build.leaf(I8, (4, 4)), build.leaf(F32, (4, 4))))
    assert not device.supports_op(build.set_rows(weights, build.leaf(F32, (256, 3)), ids))
    assert device.supports_op(build.set_rows(build.leaf(Q8_0, (256, 4)), build.leaf(F32, (256, 3)), ids))
    q, k = build.leaf(F32, (4, 3)), build.leaf(I8, (4, 5))
    assert not device.supports_op(build.flash_attn_ext(q, k, k, None, 1.0))


def test_empty_results_are_skipped():
    a = build.leaf(F32, (4, 0))
    ReferenceDevice().compile(_placed(Graph.of(build.mul_mat(build.leaf(F32, (4, 2)), a), build.sum_rows(a)))).run()


def test_attention_to_nothing_gives_zeros():
    q, k = build.leaf(F32, (4, 3)), build.leaf(F32, (4, 0))
    graph = _placed(Graph.of(build.flash_attn_ext(q, k, k, None, 1.0)))
    graph.nodes[0].buffer.fill(0, 48, 255)
    ReferenceDevice().compile(graph).run()
    assert not np.any(graph.nodes[0].buffer.bytes)


def test_a_failure_inside_numpy_is_a_compute_error_with_its_cause(monkeypatch):
    def explode(node):
        raise ValueError("shapes do not match")

    monkeypatch.setitem(KERNELS, "ADD", Kernel(explode))
    a = build.leaf(F32, (4,))
    plan = ReferenceDevice().compile(_placed(Graph.of(build.add(a, a))))
    with pytest.raises(ComputeError, match=r"shapes do not match \(device reference, op ADD\)") as caught:
        plan.run()
    assert isinstance(caught.value.__cause__, ValueError)


def test_a_graph_that_is_not_placed_is_refused():
    a = build.leaf(F32, (4,))
    with pytest.raises(GraphError, match="is not placed in host memory"):
        ReferenceDevice().compile(Graph.of(build.add(a, a))).run()


def test_embedding_rows_of_a_large_quantised_table_are_quick():
    table, ids = build.leaf(Q8_0, (576, 49152)), build.leaf(I32, (512,))
    device = ReferenceDevice()
    memory = np.zeros(table.nbytes, np.uint8)
    memory.flags.writeable = False
    table.buffer = HostBuffer(device, table.nbytes, memory=memory)
    graph = Graph.of(build.get_rows(table, ids))
    ids.buffer, graph.nodes[0].buffer = device.alloc_buffer(ids.nbytes), device.alloc_buffer(graph.nodes[0].nbytes)
    ids.buffer.write(0, np.arange(512, dtype="<i4").data)
    plan, times = device.compile(graph), []
    for _ in range(5):
        start = time.perf_counter()
        plan.run()
        times.append(time.perf_counter() - start)
    assert min(times) < 0.05


def test_tiling_takes_empty_shapes():
    assert ops_math.tiled(np.ones((1, 1, 1, 1)), (1, 1, 0, 4)).shape == (1, 1, 0, 4)
