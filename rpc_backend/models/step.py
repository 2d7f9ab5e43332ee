"""A step: the graph that takes some tokens of some sequences through the whole model.

Belongs here: building the whole graph and its result. Must not be here: layers (`layers`,
`architectures`), the values of the inputs (`step_inputs`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields

from rpc_backend.errors import GraphError
from rpc_backend.graph import Graph, Tensor, build
from rpc_backend.models.cache import LayerCache, attention_cache, check_cache
from rpc_backend.models.layers import LayerBuilder
from rpc_backend.models.model import Model
from rpc_backend.models.sampling_graph import SamplingShape, SamplingStep, build_sampling
from rpc_backend.models.step_shape import StepInputs, StepShape


@dataclass(frozen=True, slots=True)
class Step:
    """A built step.

    Shapes: logits F32 [n_vocab, n_outputs]; None where no token's logits are asked, as in all but the last
    chunk of a prompt, and the graph then ends with the last layer's cache. With `sampling` the graph ends with the
    tokens chosen from the logits, which are not read. What steps hand over, as the shape says: those tokens looked up,
    F32 [n_embd, n_outputs], if the output matrix is the embedding, else themselves, I32 [n_outputs]; given as
    `next_input`, taken as the input `taken`.
    """

    shape: StepShape
    inputs: StepInputs
    logits: Tensor | None
    graph: Graph
    sampling: SamplingStep | None = None
    next_input: Tensor | None = None
    taken: Tensor | None = None

    @property
    def outputs(self) -> list[Tensor]:
        """The tensors that are read after the step."""
        if self.sampling is not None:
            return self.sampling.outputs
        return [] if self.logits is None else [self.logits]

    @property
    def kept(self) -> list[Tensor]:
        """The outputs, and what is handed over."""
        return [*self.outputs, *([] if self.next_input is None else [self.next_input])]

    def used_inputs(self) -> dict[str, Tensor]:
        """Return the inputs that the graph reads, by field name: the ones to place and to write, or to take.

        The one of `sampling_values` is called "sampling".
        """
        used = set(self.graph.tensors())
        named = {item.name: getattr(self.inputs, item.name) for item in fields(self.inputs)}
        if self.sampling is not None and self.sampling.input is not None:
            named["sampling"] = self.sampling.input
        return {name: tensor for name, tensor in named.items() if tensor in used}


def build_step(
    model: Model,
    weights: Mapping[str, Tensor],
    cache: Sequence[LayerCache],
    shape: StepShape,
    sampling: SamplingShape | None = None,
) -> Step:
    """Build the graph of one step over weights and cache, placed or not.

    `weights` holds one leaf per entry of `model.weights`, by name. With `sampling` each output row's token is chosen
    in the graph.

    Raises:
        GraphError: the shape does not fit the cache, a weight is not given, or `sampling` has another count of rows
            than the step has outputs.
        ConfigError: the cache has another count of layers than the model.
    """
    check_cache(cache, model.hparams.n_layer)
    shape.check(attention_cache(cache))
    missing = next((weight.name for weight in model.weights if weight.name not in weights), None)
    if missing is not None:
        raise GraphError(f"the weight {missing} of the model is not among those given")
    if sampling is not None and sampling.n_rows != shape.n_outputs:
        raise GraphError(f"{shape} has not the logits of {sampling.n_rows} rows to sample from")
    if sampling is None and shape.gives_next:
        raise GraphError(f"{shape} draws no tokens that it could give; give it a sampling")
    inputs = StepInputs.of_shape(shape, model.hparams)
    taken = (inputs.embd if model.is_tied else inputs.tokens) if shape.takes_next else None
    layers = LayerBuilder(model.hparams, weights, cache, shape, inputs, takes_embd=taken is inputs.embd)
    result = model.architecture.build(layers)
    if sampling is not None:
        drawn = build_sampling(result, sampling)
        following = _next_input(model, weights, drawn.tokens) if shape.gives_next else None
        outputs = drawn.outputs if following is None else [*drawn.outputs, following]
        return Step(shape, inputs, result, _graph(layers, outputs), drawn, following, taken)
    if shape.n_outputs:
        return Step(shape, inputs, result, _graph(layers, [result]), taken=taken)
    return Step(shape, inputs, None, _graph(layers, layers.last_stored), taken=taken)


def _next_input(model: Model, weights: Mapping[str, Tensor], tokens: Tensor) -> Tensor:
    """Tokens as the next step takes them: looked up here if the output matrix serves, which lies where they are."""
    output = weights["output.weight"]
    found = build.get_rows(output, tokens) if model.is_tied else build.reshape(tokens, tokens.ne[:1])
    found.name = "next_input"
    return found


def _graph(layers: LayerBuilder, outputs: Sequence[Tensor]) -> Graph:
    """The graph of states and outputs, in which the layers' neighbours come one after the other."""
    wanted = (*layers.states, *outputs)
    needed = set(Graph.of(*wanted).nodes)
    return Graph.of(*(tensor for tensor in layers.neighbours if tensor in needed), *wanted)
