"""A random graph gives the same values however its leaves are placed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from hypothesis import given, settings
from hypothesis import strategies as st

from rpc_backend.graph import Graph, Tensor, build, element_type
from rpc_backend.scheduler import Scheduler

F32 = element_type("F32")
Array = npt.NDArray[Any]


@st.composite
def recipes(draw: st.DrawFn) -> list[tuple[str, int, int, int]]:
    kinds = st.sampled_from(["add", "mul_mat", "scale", "view", "cpy"])
    index = st.integers(0, 30)
    return draw(st.lists(st.tuples(kinds, index, index, index), min_size=1, max_size=20))


def built(recipe: Sequence[tuple[str, int, int, int]], caches: list[Tensor], inputs: list[Tensor]) -> Graph:
    """All tensors are 4 × 4, except the caches of eight rows, which are used through overlapping windows."""
    windows = [build.view(cache, [4, 4], offset_bytes=offset) for cache in caches for offset in (0, 32, 64)]
    pool, writable, nodes = [*inputs, *windows], list(windows), []
    for kind, first, second, third in recipe:
        a, b = pool[first % len(pool)], pool[second % len(pool)]
        if kind == "cpy":
            nodes.append(build.scale(a, 0.5))
            node = build.cpy(nodes[-1], writable[third % len(writable)])
        elif kind == "view":
            nodes.append(build.transpose(a))
            node = build.cont(nodes[-1])
        elif kind == "scale":
            node = build.scale(a, 0.5)
            writable.append(build.view(node, [4, 4]))
        else:
            node = build.mul_mat(a, b) if kind == "mul_mat" else build.add(a, b)
        nodes.append(node)
        pool.append(node)
    return Graph(nodes)


@settings(max_examples=60, deadline=None)
@given(recipes(), st.lists(st.integers(0, 2), min_size=3, max_size=3))
def test_random_graphs_give_equal_values_anywhere(
    checked: Callable[..., list[Any]], recipe: list[tuple[str, int, int, int]], where: list[int]
) -> None:
    results = []
    for homes in ([0, 0, 0], where):
        devices = checked(3, isolated=homes is where)
        results.append(_values(recipe, devices, homes))
    for one, other in zip(*results, strict=True):
        np.testing.assert_array_equal(one, other)


def _values(recipe: list[tuple[str, int, int, int]], devices: list[Any], homes: list[int]) -> list[Array]:
    random = np.random.default_rng(3)
    leaves = [devices[home].put(f"w{home}", random.standard_normal((8, 4)).astype(np.float32)) for home in homes]
    inputs = [build.leaf(F32, [4, 4], name) for name in "xy"]
    graph = built(recipe, leaves, inputs)
    with Scheduler(devices) as scheduler:
        outputs = [graph.nodes[-1]]
        execution = scheduler.prepare(graph, outputs=outputs)
        for item in execution.plan.inputs:
            execution.set_input(item.tensor, np.full((4, 4), 1.5 if item.tensor.name == "x" else -2, np.float32))
        execution.run()
        values = [execution.get_output(output) for output in outputs]
    for leaf in leaves:
        content = np.empty((8, 4), np.float32)
        leaf.buffer.read_into(0, content.data.cast("B"))
        values.append(content)
    return values
