"""Sampling in the graph: the tokens of the host's sampler, row by row."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from rpc_backend.errors import ConfigError, GraphError
from rpc_backend.graph import Graph, Tensor, build, check_graph
from rpc_backend.graph.element_types import F32
from rpc_backend.hookspecs import DeviceOptions
from rpc_backend.host.sampling import Sampler, log_probabilities
from rpc_backend.interfaces import Device
from rpc_backend.models import SamplerParams, SamplingShape, build_sampling, can_sample_on_backend, sampling_values
from rpc_backend.models.sampling_graph import MAX_K, SamplingField
from rpc_backend.registry import load_registry

Floats = npt.NDArray[np.float32]
OFF: dict[str, Any] = {"temperature": 1.0, "top_k": 0, "top_p": 1.0, "min_p": 0.0, "seed": 1}
GREEDY = SamplerParams(temperature=0.0)


class Graphs:
    """Runs sampling graphs on a device, each built once."""

    def __init__(self, device: Device) -> None:
        self.device = device
        self._build = functools.cache(self._built)

    def run(self, logits: Floats, shape: SamplingShape, values: Floats | None = None) -> dict[str, npt.NDArray[Any]]:
        """Return the outputs by name: tokens, best and perhaps log_probs."""
        leaf, step, plan = self._build(shape, logits.shape[1])
        _write(leaf, logits)
        if step.input is not None:
            assert values is not None
            _write(step.input, values)
        stream = self.device.create_stream()
        stream.compute(plan)
        return {tensor.name.removeprefix("sampled_"): _read(stream, tensor) for tensor in step.outputs}

    def sample(
        self, logits: Floats, params: Sequence[SamplerParams], uniforms: Sequence[float], **asked: Any
    ) -> dict[str, npt.NDArray[Any]]:
        shape = SamplingShape.covering(params, len(params), logits.shape[1], **asked)
        return self.run(logits, shape, sampling_values(params, uniforms))

    def _built(self, shape: SamplingShape, n_vocab: int) -> Any:
        leaf = build.leaf(F32, (n_vocab, shape.n_rows))
        step = build_sampling(leaf, shape)
        graph = Graph.of(*step.outputs)
        for tensor in graph.tensors():
            if tensor.view_src is None:
                tensor.buffer = self.device.alloc_buffer(tensor.nbytes)
        check_graph(graph)
        return leaf, step, self.device.compile(graph)


def _write(tensor: Tensor, values: Floats) -> None:
    assert values.dtype == np.float32
    assert values.shape == tensor.ne[1::-1]
    tensor.buffer.write(0, memoryview(values.tobytes()))


def _read(stream: Any, tensor: Tensor) -> npt.NDArray[Any]:
    assert tensor.n_elements == tensor.ne[0]
    out = np.empty(tensor.ne[0], tensor.type.dtype)
    stream.get_tensor(tensor, out.data.cast("B"))
    return out


@pytest.fixture(scope="module", params=["reference", "numba"])
def graphs(request: pytest.FixtureRequest) -> Graphs:
    return Graphs(load_registry().create_devices(request.param, DeviceOptions(threads=1))[0])


def samplers_of(params: Sequence[SamplerParams]) -> tuple[list[Sampler], list[float]]:
    """A host sampler for each row, and the number that its first draw uses."""
    return [Sampler(one) for one in params], [float(Sampler(one).next_uniform()) for one in params]


def random_params(random: np.random.Generator, n_rows: int) -> list[SamplerParams]:
    return [
        SamplerParams(
            temperature=float(random.choice([0, 1e-5, 0.3, 1, 2.5, 900])),
            top_k=int(random.choice([1, 2, 5, 40, 100])),
            top_p=float(random.choice([0, 0.3, 0.9, 0.99999999, 1])),
            min_p=float(random.choice([0, 1e-6, 0.05, 0.5, 1])),
            seed=int(random.integers(1 << 60)),
        )
        for _ in range(n_rows)
    ]


def random_logits(random: np.random.Generator, n_rows: int, n_vocab: int) -> Floats:
    """Rows of any steepness; of some the values are few, of some tokens are masked."""
    logits = random.normal(size=(n_rows, n_vocab)) * 10.0 ** random.uniform(-2, 1.5, (n_rows, 1))
    logits[::3] = np.round(logits[::3])
    logits[1::4, random.permutation(n_vocab)[: n_vocab // 3]] = -np.inf
    return logits.astype(np.float32)


class _OneNumber(Sampler):
    """A host sampler whose draws all use one number."""

    def __init__(self, params: SamplerParams, number: np.float32) -> None:
        super().__init__(params)
        self._number = number

    def next_uniform(self) -> np.float32:
        return self._number


@pytest.mark.parametrize("n_vocab", [1, 50, 1200])
def test_thousands_of_rows_are_chosen_as_on_the_host(graphs: Graphs, n_vocab: int) -> None:
    random = np.random.default_rng(n_vocab)
    for _ in range(120):
        params, logits = random_params(random, 16), random_logits(random, 16, n_vocab)
        samplers, uniforms = samplers_of(params)
        found = graphs.sample(logits, params, uniforms)
        expected = [sampler.sample(row) for sampler, row in zip(samplers, logits, strict=True)]
        assert found["tokens"].tolist() == expected
        assert np.array_equal(found["best"], logits.max(axis=1))


def test_every_boundary_of_a_draw_is_the_same(graphs: Graphs) -> None:
    """Uniform numbers as near as can be to where one token ends and the next begins."""
    random = np.random.default_rng(4)
    row = (random.normal(size=60) * 3).astype(np.float32)
    params = SamplerParams(temperature=0.9, top_k=32, top_p=1.0, min_p=0.0, seed=1)
    order = np.sort(row)[::-1][:32]
    shares = np.cumsum(np.exp(((order - order[0]) * params.inverse_temperature).astype(np.float64)))
    near = np.round(shares[:-1] / shares[-1] * 2**24) + np.arange(-2, 3)[:, None]
    numbers = (np.clip(near.ravel(), 0, 2**24 - 1) * 2.0**-24).astype(np.float32)
    expected = [_OneNumber(params, number).sample(row) for number in numbers]
    found = graphs.sample(np.tile(row, (len(numbers), 1)), [params] * len(numbers), numbers.tolist())
    assert found["tokens"].tolist() == expected
    assert len(set(expected)) > 20


@pytest.mark.parametrize("extreme", [0.0, 1 - 2.0**-24])
def test_the_least_and_largest_numbers_draw_first_and_last(graphs: Graphs, extreme: float) -> None:
    logits = np.zeros((4, 300), np.float32)
    params = [SamplerParams(**OFF | {"top_k": k}) for k in (1, 7, 64, 100)]
    found = graphs.sample(logits, params, [extreme] * 4)
    assert found["tokens"].tolist() == ([0] * 4 if extreme == 0 else [0, 6, 63, 99])


def test_a_batch_of_greedy_rows_needs_no_input(graphs: Graphs) -> None:
    logits = np.array([[1, 3, 3, 0], [-2, -2, -5, -2], [-np.inf, 4, 5, 5]], np.float32)
    shape = SamplingShape.covering([GREEDY] * 3, 3, 4)
    assert shape == SamplingShape(3, greedy=True)
    assert build_sampling(build.leaf(F32, (4, 3)), shape).input is None
    found = graphs.run(logits, shape)
    assert (found["tokens"].tolist(), found["best"].tolist()) == ([1, 0, 2], [3, -2, 5])
    assert list(found) == ["tokens", "best"]


def test_greedy_and_idle_rows_among_others_take_the_lowest_best(graphs: Graphs) -> None:
    logits = np.array([[1, 3, 3, 0]] * 3, np.float32)
    values = sampling_values([GREEDY, None, SamplerParams(temperature=0.7, top_k=40)], [0.999, 0.0, 0.6])
    assert graphs.run(logits, SamplingShape(3, 4), values)["tokens"].tolist() == [1, 1, 2]


@pytest.mark.parametrize("greedy", [False, True])
def test_log_probabilities_are_over_the_whole_vocabulary(graphs: Graphs, greedy: bool) -> None:
    random = np.random.default_rng(9)
    logits = random_logits(random, 16, 300)
    params = [GREEDY] * 16 if greedy else random_params(random, 16)
    found = graphs.sample(logits, params, random.random(16).tolist(), log_probs=True)
    expected = log_probabilities(logits)[np.arange(16), found["tokens"]]
    np.testing.assert_allclose(found["log_probs"], expected, atol=2e-5)


def test_a_hot_draw_far_from_the_best_keeps_its_log_probability(graphs: Graphs) -> None:
    logits = np.array([[0.0, -300.0]], np.float32)
    params = SamplerParams(**OFF | {"temperature": 1000.0, "top_k": 2})
    found = graphs.sample(logits, [params], [0.99], log_probs=True)
    assert (found["tokens"].tolist(), found["log_probs"].tolist()) == ([1], [-300.0])


@pytest.mark.parametrize("greedy", [False, True])
@pytest.mark.parametrize("bad", [np.nan, -np.nan, np.inf])
def test_a_row_that_nothing_can_be_chosen_from_is_told_by_its_best(graphs: Graphs, bad: float, greedy: bool) -> None:
    logits = np.tile(np.arange(50, dtype=np.float32), (4, 1))
    logits[1, 3], logits[2] = bad, -np.inf
    params = [GREEDY if greedy else SamplerParams(seed=1)] * 4
    found = graphs.sample(logits, params, [0.5] * 4, log_probs=True)
    assert np.isfinite(found["best"]).tolist() == [True, False, False, True]
    assert np.all((found["tokens"] >= 0) & (found["tokens"] < 50))
    assert found["tokens"][0] == found["tokens"][3]


class TestShapes:
    def test_few_shapes_cover_many_parameters(self) -> None:
        def k(*top_ks: int, n_vocab: int = 5000) -> int:
            return SamplingShape.covering([SamplerParams(top_k=top_k) for top_k in top_ks], 4, n_vocab).k

        assert [k(1), k(8), k(9), k(40), k(3, 64), k(65), k(1024)] == [8, 8, 16, 64, 64, 128, 1024]
        assert [k(40, n_vocab=50), k(3, n_vocab=5), k(0, n_vocab=50), k(9999, n_vocab=1024)] == [50, 5, 50, 1024]

    def test_only_rows_that_draw_decide(self) -> None:
        rows = [GREEDY, SamplerParams(top_k=20), SamplerParams(temperature=0.0, top_k=900)]
        assert SamplingShape.covering(rows, 3, 5000, log_probs=True) == SamplingShape(3, 32, log_probs=True)
        assert SamplingShape.covering([], 3, 5000).greedy

    def test_what_the_graph_cannot_do_stays_on_the_host(self) -> None:
        assert can_sample_on_backend(SamplerParams(), 49152)
        assert can_sample_on_backend(SamplerParams(top_k=MAX_K), 49152)
        assert can_sample_on_backend(SamplerParams(top_k=0), MAX_K)
        assert can_sample_on_backend(SamplerParams(temperature=0.0, top_k=0), 49152)
        assert can_sample_on_backend(SamplerParams(repetition_penalty=1.1, penalty_last_n=0), 49152)
        refused = (
            SamplerParams(top_k=0),
            SamplerParams(top_k=MAX_K + 1),
            SamplerParams(repetition_penalty=1.1),
            SamplerParams(temperature=0.0, repetition_penalty=1.1),
        )
        for params in refused:
            assert not can_sample_on_backend(params, 49152)
            with pytest.raises(ConfigError, match="sample on the host"):
                SamplingShape.covering([GREEDY, params], 2, 49152)

    @pytest.mark.parametrize(
        ("ne", "shape", "complaint"),
        [
            ((50, 3), SamplingShape(2, 8), "not the logits of 2 rows"),
            ((50, 3, 2), SamplingShape(3, 8), "not the logits of 3 rows"),
            ((50, 0), SamplingShape(0, greedy=True), "not the logits of 0 rows"),
            ((50, 3), SamplingShape(3, 0), "0 candidates of 50 tokens; it must be 1 to 50"),
            ((50, 3), SamplingShape(3, 51), "51 candidates of 50"),
            ((5000, 3), SamplingShape(3, 1025), "1025 candidates of 5000 tokens; it must be 1 to 1024"),
        ],
    )
    def test_a_shape_that_does_not_fit_is_refused(
        self, ne: tuple[int, ...], shape: SamplingShape, complaint: str
    ) -> None:
        with pytest.raises(GraphError, match=complaint):
            build_sampling(build.leaf(F32, ne), shape)

    def test_values_of_rows(self) -> None:
        params = [SamplerParams(temperature=0.5, top_k=0, top_p=1.0, min_p=0.0), None, SamplerParams(top_k=7)]
        values = sampling_values(params, [0.25, 0.0, 0.75])
        assert (values.dtype, values.shape) == (np.float32, (3, len(SamplingField)))
        assert values[0].tolist() == [2, MAX_K, 2, -np.inf, 0.25]
        assert values[1, SamplingField.TOP_K] == 1
        assert values[2].tolist() == [np.float32(1 / 0.8), 7, np.float32(0.95), np.float32(np.log(0.05)), 0.75]
        with pytest.raises(ConfigError, match="2 uniform numbers for 3 rows"):
            sampling_values(params, [0.25, 0.0])
