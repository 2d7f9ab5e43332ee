"""The graph of a step: its form, and its numbers against llama.cpp's through the reference backend."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from rpc_backend.errors import ConfigError, GraphError
from rpc_backend.graph import Tensor, build, check_graph
from rpc_backend.graph.element_types import F16, F32
from rpc_backend.hookspecs import DeviceOptions
from rpc_backend.interfaces import Device
from rpc_backend.models import (
    GgufFile,
    Model,
    SamplerParams,
    SamplingShape,
    Step,
    StepArrays,
    StepShape,
    build_step,
    cache_spec,
    load_model,
    padded_n_kv,
    sampling_values,
    step_arrays,
)
from rpc_backend.registry import load_registry
from rpc_backend.testing.gguf_writer import write_tiny_model

GOLDEN = Path(__file__).parents[2] / "data" / "golden"
ALIGNMENT = 64
LOWEST_LOGPROB = -12.0  # entries below this carry no weight and are not compared
CLOSE = 1e-3  # keys and values are rounded to F16, which a last bit can tip; logits are about 1
FLOAT_LIMIT, QUANTISED_LIMIT, DIVERGENCE_LIMIT = 0.005, 0.12, 0.0005

Logits = npt.NDArray[np.float32]


class Runner:
    """A model placed on a device, with a cache: runs steps and knows each sequence's length."""

    def __init__(self, device: Device, model: Model, n_ctx_seq: int, n_seq: int = 1, **options: Any) -> None:
        self.device, self.model = device, model
        self.n_ctx_seq, self.lengths = n_ctx_seq, [0] * n_seq
        self.flash_attn = options.get("flash_attn", True)
        self.weights = {item.name: build.leaf(item.type, item.ne, item.name) for item in model.weights}
        self.cache = cache_spec(model.hparams, n_ctx_seq, n_seq, options.get("kv_type", F16))
        leaves = [tensor for layer in self.cache for tensor in (layer.k, layer.v)]
        place(device, [*self.weights.values(), *leaves])
        for item in model.weights:
            write(self.weights[item.name], item.data)
        self._steps: dict[StepShape, Step] = {}

    def run(self, tokens: Sequence[Sequence[int]], n_slots: int = 0, first_seq: int = 0, **asked: Any) -> Logits:
        """Run one step: logits [n_outputs, n_vocab], by default of the last token of each sequence."""
        n_tokens = n_slots or max(map(len, tokens))
        lengths = self.lengths[first_seq : first_seq + len(tokens)]
        n_kv = padded_n_kv(max(map(sum, zip(lengths, map(len, tokens), strict=True))), self.n_ctx_seq, 32)
        n_outputs = asked.get("n_outputs", len(tokens))
        shape = StepShape(first_seq, len(tokens), n_tokens, n_kv, n_outputs, self.flash_attn)
        arrays = step_arrays(shape, tokens, lengths, self.n_ctx_seq, asked.get("output_rows"), self.model.hparams)
        for index, own in enumerate(tokens, first_seq):
            self.lengths[index] += len(own)
        return self._compute(shape, arrays)

    def _compute(self, shape: StepShape, arrays: StepArrays) -> Logits:
        step = self._steps.get(shape) or self._steps.setdefault(shape, self._prepare(shape))
        for name, tensor in step.used_inputs().items():
            write(tensor, getattr(arrays, name))
        stream = self.device.create_stream()
        stream.compute(self.device.compile(step.graph))
        out = np.empty((shape.n_outputs, self.model.hparams.n_vocab), np.float32)
        if step.logits is not None:
            stream.get_tensor(step.logits, out.data.cast("B"))
        return out

    def _prepare(self, shape: StepShape) -> Step:
        step = build_step(self.model, self.weights, self.cache, shape)
        nodes = [node for node in step.graph.nodes if node.view_src is None]
        place(self.device, [*step.used_inputs().values(), *nodes])
        check_graph(step.graph)
        return step


def place(device: Device, tensors: Sequence[Tensor]) -> None:
    """Put tensors one behind the other into a new buffer, cleared."""
    offset = 0
    for tensor in tensors:
        tensor.offset = offset
        offset += -(-tensor.nbytes // ALIGNMENT) * ALIGNMENT
    buffer = device.alloc_buffer(offset)
    buffer.fill(0, offset, 0)
    for tensor in tensors:
        tensor.buffer = buffer


def write(tensor: Tensor, values: npt.NDArray[Any]) -> None:
    buffer, offset = tensor.location()
    assert values.nbytes == tensor.nbytes
    buffer.write(offset, np.ascontiguousarray(values).data.cast("B"))


@pytest.fixture(scope="module")
def device() -> Device:
    """The reference backend's device."""
    return load_registry().create_devices("reference", DeviceOptions())[0]


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Model:
    """A tiny llama with every optional tensor."""
    return load_model(GgufFile.open(write_tiny_model(tmp_path_factory.mktemp("tiny") / "m.gguf", optional=True)))


@pytest.fixture(scope="module", params=["llama", "gemma2", "olmo2", "phi3", "gpt-oss", "qwen35"])
def varied(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Model:
    """A tiny model of each kind of layer: dense, with windows, with norms behind, fused, with experts, with states."""
    return load_model(GgufFile.open(write_tiny_model(tmp_path_factory.mktemp("tiny") / "m.gguf", request.param)))


def unplaced(model: Model) -> dict[str, Tensor]:
    return {weight.name: build.leaf(weight.type, weight.ne, weight.name) for weight in model.weights}


def log_softmax(logits: Logits) -> npt.NDArray[np.float64]:
    wide = logits.astype(np.float64)
    shifted = wide - wide.max()
    return shifted - np.log(np.exp(shifted).sum())


def golden_logprobs(device: Device, name: str, case: int, **options: Any) -> tuple[npt.NDArray[Any], npt.NDArray[Any]]:
    """Feed a golden case, the prompt in chunks of 64 as it was recorded: ours and llama.cpp's log-probabilities."""
    model = load_model(GgufFile.open(GOLDEN / f"{name}.gguf"))
    record = json.loads((GOLDEN / f"{name}.golden.json").read_text())[case]
    runner, prompt = Runner(device, model, 256, **options), record["prompt_tokens"]
    chunks = [prompt[start : start + 64] for start in range(0, len(prompt), 64)]
    for chunk in chunks[:-1]:
        runner.run([chunk], n_outputs=0)
    ours = [runner.run([chunks[-1]])]
    ours += [runner.run([[token]]) for token in record["forced_tokens"][:-1]]
    return np.array([log_softmax(row[0]) for row in ours]), np.array([step["logprobs"] for step in record["steps"]])


def worst_and_divergence(ours: npt.NDArray[Any], theirs: npt.NDArray[Any]) -> tuple[float, float]:
    compared = theirs > LOWEST_LOGPROB
    divergence = (np.exp(theirs) * (theirs - ours)).sum(axis=1)
    return float(np.abs(ours - theirs)[compared].max()), float(divergence.mean())


@pytest.mark.parametrize("case", [0, 1, 2])
@pytest.mark.parametrize("name", ["llama-f32", "llama-f16"])
def test_floats_agree_with_llama_cpp(device: Device, name: str, case: int) -> None:
    worst, _ = worst_and_divergence(*golden_logprobs(device, name, case))
    assert worst < FLOAT_LIMIT


@pytest.mark.parametrize("case", [0, 1, 2])
@pytest.mark.parametrize("name", ["llama-q4_0", "llama-q4_1", "llama-q8_0", "llama-Q4_K_M", "qwen2-q8_0", "qwen3-q8_0"])
def test_quantised_models_agree_with_llama_cpp(device: Device, name: str, case: int) -> None:
    worst, divergence = worst_and_divergence(*golden_logprobs(device, name, case))
    assert worst < QUANTISED_LIMIT
    assert divergence < DIVERGENCE_LIMIT


@pytest.mark.parametrize("options", [{"flash_attn": False}, {"kv_type": F32}], ids=["plain", "f32-cache"])
def test_other_attention_agrees_with_llama_cpp(device: Device, options: dict[str, Any]) -> None:
    worst, _ = worst_and_divergence(*golden_logprobs(device, "llama-f32", 1, **options))
    assert worst < FLOAT_LIMIT


def test_plain_and_fused_attention_agree(device: Device, varied: Model) -> None:
    prompt = [[5, 6, 7, 8, 9]]
    fused = Runner(device, varied, 64).run(prompt, n_outputs=5)
    plain = Runner(device, varied, 64, flash_attn=False).run(prompt, n_outputs=5)
    np.testing.assert_allclose(fused, plain, atol=CLOSE)


def test_a_prompt_in_one_step_equals_token_by_token(device: Device, varied: Model) -> None:
    prompt = [11, 45, 99, 3, 250, 17]
    whole = Runner(device, varied, 64).run([prompt], n_outputs=len(prompt))
    single = Runner(device, varied, 64)
    one_by_one = np.concatenate([single.run([[token]]) for token in prompt])
    np.testing.assert_allclose(whole, one_by_one, atol=CLOSE)


def test_output_rows_pick_tokens(device: Device, varied: Model) -> None:
    prompt = [[11, 45, 99, 3], [7, 8, 9, 10]]
    everything = Runner(device, varied, 64, 2).run(prompt, n_outputs=8)
    picked = Runner(device, varied, 64, 2).run(prompt, n_outputs=3, output_rows=[6, 0, 3])
    np.testing.assert_allclose(picked, everything[[6, 0, 3]], atol=CLOSE)


def test_sequences_do_not_see_each_other(device: Device, varied: Model) -> None:
    alone = [Runner(device, varied, 64).run([tokens]) for tokens in ([1, 2, 3], [9, 8, 7])]
    together = Runner(device, varied, 64, 3).run([[1, 2, 3], [9, 8, 7]], first_seq=1)
    np.testing.assert_allclose(together, np.concatenate(alone), atol=CLOSE)


def test_padding_and_idle_sequences_change_nothing(device: Device, varied: Model) -> None:
    alone, batch = Runner(device, varied, 64), Runner(device, varied, 64, 2)
    first = [alone.run([[1, 2, 3]]), alone.run([[4]])]
    batch.run([[1, 2, 3], []], n_slots=5)  # two slots of padding, five of an idle sequence
    batch.run([[], [9, 8, 7, 6]])  # the first sequence idles
    np.testing.assert_allclose(batch.run([[4], [5]])[0], first[1][0], atol=CLOSE)
    other = Runner(device, varied, 64)
    other.run([[9, 8, 7, 6]])
    np.testing.assert_allclose(batch.run([[], [40]])[1], (other.run([[5]]), other.run([[40]]))[1][0], atol=CLOSE)


def test_a_chunk_without_outputs_ends_at_the_cache(device: Device, tiny: Model) -> None:
    runner = Runner(device, tiny, 64)
    assert runner.run([[1, 2, 3]], n_outputs=0).shape == (0, 261)
    (step,) = runner._steps.values()
    assert step.logits is None
    assert [node.name for node in step.graph.nodes[-1:]] == ["cache_v_stored-1"]
    assert "ffn_out-1" not in {node.name for node in step.graph.nodes}
    whole = Runner(device, tiny, 64).run([[1, 2, 3, 4]])
    np.testing.assert_allclose(runner.run([[4]]), whole, atol=CLOSE)


def build_tiny(model: Model, shape: StepShape, n_ctx_seq: int = 64, n_seq: int = 4) -> Step:
    return build_step(model, unplaced(model), cache_spec(model.hparams, n_ctx_seq, n_seq), shape)


def test_attention_reads_what_this_step_wrote(tiny: Model) -> None:
    step = build_tiny(tiny, StepShape(1, 2, 3, 32, 2))
    order = {node.name: place for place, node in enumerate(step.graph.nodes)}
    for layer in range(tiny.hparams.n_layer):
        assert order[f"cache_k_stored-{layer}"] < order[f"kqv-{layer}"]
        assert order[f"cache_v_stored-{layer}"] < order[f"kqv-{layer}"]


def test_rows_are_dropped_behind_the_last_attention(tiny: Model) -> None:
    nodes = {node.name: node for node in build_tiny(tiny, StepShape(0, 2, 8, 32, 2)).graph.nodes}
    assert nodes["attn_out-1"].ne[1] == 16
    assert nodes["ffn_gate-1"].ne[1] == 2
    assert nodes["result_output"].ne == (261, 2, 1, 1)


def test_equal_shapes_build_equal_graphs(tiny: Model) -> None:
    def form(step: Step) -> list[tuple[object, ...]]:
        return [(node.op, node.ne, node.nb, node.op_params, node.view_offs, node.name) for node in step.graph.nodes]

    shape = StepShape(0, 2, 1, 32, 2)
    assert form(build_tiny(tiny, shape)) == form(build_tiny(tiny, StepShape(0, 2, 1, 32, 2)))
    assert form(build_tiny(tiny, shape)) != form(build_tiny(tiny, StepShape(1, 2, 1, 32, 2)))


def test_every_weight_is_used(tiny: Model, varied: Model) -> None:
    for model in (tiny, varied):
        weights = unplaced(model)
        step = build_step(model, weights, cache_spec(model.hparams, 64, 1), StepShape(0, 1, 1, 32, 1))
        assert set(weights.values()) <= set(step.graph.tensors())


def test_a_long_prompt_in_chunks_equals_the_whole(device: Device, varied: Model) -> None:
    prompt = [(7 * place + 3) % 256 for place in range(40)]  # longer than the windows
    whole = Runner(device, varied, 64).run([prompt])
    chunked = Runner(device, varied, 64)
    for start in range(0, 36, 12):
        chunked.run([prompt[start : start + 12]], n_slots=13, n_outputs=0)  # one slot of padding
    np.testing.assert_allclose(chunked.run([prompt[36:]]), whole, atol=CLOSE)


def test_a_cleared_sequence_starts_anew(device: Device, varied: Model) -> None:
    fresh, used = Runner(device, varied, 64), Runner(device, varied, 64)
    used.run([[9, 8, 7, 6]])
    used.lengths[0] = 0
    np.testing.assert_allclose(used.run([[1, 2, 3]]), fresh.run([[1, 2, 3]]), atol=CLOSE)


def test_used_inputs_leave_out_what_no_node_reads(tiny: Model) -> None:
    assert set(build_tiny(tiny, StepShape(0, 2, 1, 32, 2)).used_inputs()) == {"tokens", "positions", "kv_rows", "mask"}
    assert "output_rows" in build_tiny(tiny, StepShape(0, 2, 4, 32, 2)).used_inputs()


def test_a_step_ends_with_the_tokens_sampled_from_its_logits(device: Device, tiny: Model) -> None:
    prompt, params, number = [[5, 6, 7], [8, 9, 10]], SamplerParams(top_k=20, temperature=2.0), 0.625
    runner = Runner(device, tiny, 64, 2)
    logits = runner.run(prompt)
    shape = StepShape(0, 2, 3, 32, 2)
    step = build_step(tiny, runner.weights, runner.cache, shape, SamplingShape(2, 32, log_probs=True))
    nodes = [node for node in step.graph.nodes if node.view_src is None]
    place(device, [*step.used_inputs().values(), *nodes])
    check_graph(step.graph)
    arrays = step_arrays(shape, prompt, [0, 0], 64)
    for name, tensor in step.used_inputs().items():
        values = sampling_values([params] * 2, [number] * 2) if name == "sampling" else getattr(arrays, name)
        write(tensor, values)
    stream = device.create_stream()
    stream.compute(device.compile(step.graph))
    tokens, best, log_probs = np.empty(2, np.int32), np.empty(2, np.float32), np.empty(2, np.float32)
    for tensor, out in zip(step.outputs, (tokens, best, log_probs), strict=True):
        stream.get_tensor(tensor, out.data.cast("B"))
    np.testing.assert_allclose(best, logits.max(axis=1), atol=CLOSE)
    expected = [log_softmax(row)[token] for row, token in zip(logits, tokens, strict=True)]
    np.testing.assert_allclose(log_probs, expected, atol=CLOSE)
    assert all(np.count_nonzero(row > row[token]) < 20 for row, token in zip(logits, tokens, strict=True))


def test_greedy_steps_have_no_sampling_input(tiny: Model) -> None:
    weights, cache = unplaced(tiny), cache_spec(tiny.hparams, 64, 2)
    step = build_step(tiny, weights, cache, StepShape(0, 2, 1, 32, 2), SamplingShape(2, greedy=True))
    assert set(step.used_inputs()) == {"tokens", "positions", "kv_rows", "mask"}
    assert [tensor.name for tensor in step.outputs] == ["sampled_tokens", "sampled_best"]
    assert step.logits is not None
    assert step.logits not in step.outputs


@pytest.mark.parametrize("tied", [False, True])
def test_a_step_takes_what_the_one_before_gives(tmp_path: Path, tied: bool) -> None:
    model = load_model(GgufFile.open(write_tiny_model(tmp_path / "m.gguf", tied=tied)))
    assert model.is_tied is tied
    weights, cache = unplaced(model), cache_spec(model.hparams, 64, 2)
    shape, sampling = StepShape(0, 2, 1, 32, 2, gives_next=True), SamplingShape(2, greedy=True)
    first = build_step(model, weights, cache, shape, sampling)
    assert first.next_input is not None
    assert (first.kept, first.taken) == ([*first.outputs, first.next_input], None)
    assert set(first.used_inputs()) == {"tokens", "positions", "kv_rows", "mask"}
    following = build_step(model, weights, cache, replace(shape, takes_next=True), sampling)
    assert following.taken is not None
    assert (following.taken.type, following.taken.ne) == (first.next_input.type, first.next_input.ne)
    assert set(following.used_inputs()) == {"embd" if tied else "tokens", "positions", "kv_rows", "mask"}
    assert (weights["token_embd.weight"] in following.graph.tensors()) is not tied
    if tied:
        assert first.next_input.sources == (weights["output.weight"], first.outputs[0])
    else:
        assert first.next_input.view_src is first.outputs[0]
    with pytest.raises(GraphError, match="draws no tokens"):
        build_step(model, weights, cache, shape)


def test_sampling_needs_as_many_rows_as_outputs(tiny: Model) -> None:
    weights, cache = unplaced(tiny), cache_spec(tiny.hparams, 64, 2)
    for n_outputs, n_rows in ((2, 1), (0, 0), (0, 2)):
        with pytest.raises(GraphError, match=f"not the logits of {n_rows} rows"):
            build_step(tiny, weights, cache, StepShape(0, 2, 1, 32, n_outputs), SamplingShape(n_rows, 8))


@pytest.mark.parametrize(
    ("shape", "complaint"),
    [
        (StepShape(0, 0, 1, 32, 0), "no tokens"),
        (StepShape(0, 1, 0, 32, 0), "no tokens"),
        (StepShape(0, 1, 2, 32, 3), "more outputs than tokens"),
        (StepShape(0, 1, 2, 32, -1), "more outputs"),
        (StepShape(3, 2, 1, 32, 1), "does not have"),
        (StepShape(-1, 2, 1, 32, 1), "does not have"),
        (StepShape(0, 1, 1, 65, 1), "65 cells of a cache of 64"),
        (StepShape(0, 1, 1, 0, 1), "0 cells"),
        (StepShape(0, 1, 2, 32, 1, takes_next=True), "one token of each sequence"),
        (StepShape(0, 2, 1, 32, 1, gives_next=True), "one token of each sequence"),
    ],
)
def test_a_shape_that_does_not_fit_is_refused(tiny: Model, shape: StepShape, complaint: str) -> None:
    with pytest.raises(GraphError, match=complaint):
        build_tiny(tiny, shape)


def test_missing_weights_and_caches_are_refused(tiny: Model) -> None:
    weights, shape = unplaced(tiny), StepShape(0, 1, 1, 32, 1)
    with pytest.raises(ConfigError, match="1 layers, the model 2"):
        build_step(tiny, weights, cache_spec(tiny.hparams, 64, 1)[:1], shape)
    del weights["blk.1.ffn_up.weight"]
    with pytest.raises(GraphError, match=r"blk\.1\.ffn_up\.weight"):
        build_step(tiny, weights, cache_spec(tiny.hparams, 64, 1), shape)
