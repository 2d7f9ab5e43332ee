"""What goes where, decided before anything is allocated.

Belongs here: joining a model with a layer split and the scratch its step graphs need. Must not be here:
effects on devices, beyond asking them what they are.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from rpc_backend.errors import OutOfMemoryError
from rpc_backend.graph import ElementType, Tensor, build
from rpc_backend.graph.element_types import I32
from rpc_backend.host.context import ContextLimits
from rpc_backend.host.placement import Bytes, leaf_sizes
from rpc_backend.models import LayerCache, Model, Step, build_step, cache_spec
from rpc_backend.scheduler import DeviceMemory, LayerSplit, ModelSizes, Scheduler, SplitRequest, plan_layers

_LOG = logging.getLogger(__name__)

HOST = 0
"""Index of the host's own device among a model's devices; those of the split follow it."""


@dataclass(frozen=True, slots=True)
class ModelPlan:
    """A model's leaves and the device of each; device 0 is the host's own."""

    model: Model
    limits: ContextLimits
    split: LayerSplit
    weights: dict[str, Tensor]
    cache: list[LayerCache]
    placement: dict[Tensor, int]
    compute_nbytes: list[int]

    def weights_on(self, device: int) -> list[tuple[Tensor, Bytes]]:
        """Return the weights of a device with their bytes in the model file."""
        leaves = ((self.weights[weight.name], weight.data) for weight in self.model.weights)
        return [(leaf, data) for leaf, data in leaves if self.placement[leaf] == device]

    def caches_on(self, device: int) -> list[Tensor]:
        """Return the cache leaves of a device."""
        leaves = (leaf for layer in self.cache for leaf in (layer.k, layer.v))
        return [leaf for leaf in leaves if self.placement[leaf] == device]


def make_plan(
    model: Model,
    limits: ContextLimits,
    cache_types: tuple[ElementType, ElementType],
    request: SplitRequest,
    scheduler: Scheduler,
) -> ModelPlan:
    """Choose a device of `scheduler` (the first is the host's own) for every weight and cache; check that all fits.

    `cache_types` are the element types of cached keys and values.

    Raises:
        SplitError: the asked split does not fit the model or the devices.
        OutOfMemoryError: a device has too little memory; the message has both figures.
        UnsupportedOpError: a device lacks an operation and no other can take it.
    """
    weights = {weight.name: build.leaf(weight.type, weight.ne, weight.name) for weight in model.weights}
    limits = replace(limits, run_ahead=limits.run_ahead and _can_run_ahead(model, weights, scheduler))
    cache = cache_spec(model.hparams, limits.n_cells, limits.n_seq, *cache_types)
    leaves = _Leaves(model, limits, weights, cache, scheduler)
    try:
        return _planned(leaves, request)
    except OutOfMemoryError as error:
        if not leaves.has_input:
            raise
        _LOG.info("the token embedding stays on the host, and no step runs ahead: %s", error.message)
        return _planned(replace(leaves, limits=replace(limits, run_ahead=False)), request)


def _planned(leaves: _Leaves, request: SplitRequest) -> ModelPlan:
    model, scheduler = leaves.model, leaves.scheduler
    on_first = leaves.placement([0] * model.hparams.n_layer, 0)
    compute = leaves.compute_nbytes(on_first)
    bound = compute[1]
    memories = [DeviceMemory(device.info.name, device.memory().free_nbytes, bound) for device in scheduler.devices[1:]]
    split = plan_layers(leaves.sizes(), memories, request)
    placement = leaves.placement(split.layer_devices, split.output_device)
    if placement != on_first:
        compute = leaves.compute_nbytes(placement)
    split = split.with_scratch(compute[1:])
    return ModelPlan(model, leaves.limits, split, leaves.weights, leaves.cache, placement, compute)


@dataclass(frozen=True)
class _Leaves:
    """A model's leaves, and what its step graphs need for a given placement of them."""

    model: Model
    limits: ContextLimits
    weights: dict[str, Tensor]
    cache: list[LayerCache]
    scheduler: Scheduler

    def placement(self, layer_devices: Sequence[int], output_device: int) -> dict[Tensor, int]:
        """Give every leaf its device: a layer's to its own, the output's to the last, the input's to the host.

        Where tokens go from the last device to the first, the embedding lies there, unless the last looks them up.
        """
        homes = {"input": HOST, "output": output_device + 1, **{i: d + 1 for i, d in enumerate(layer_devices)}}
        if self.has_input:
            homes["input"] = layer_devices[0] + 1
        found = {self.weights[weight.name]: homes[weight.place] for weight in self.model.weights}
        for layer, pair in enumerate(self.cache):
            found[pair.k] = found[pair.v] = layer_devices[layer] + 1
        return found

    @property
    def has_input(self) -> bool:
        """Whether the token embedding lies on a device of the split."""
        return self.limits.run_ahead and not self.model.is_tied

    def sizes(self) -> ModelSizes:
        """Return what each layer, the output, and the input if it does not lie with the host, take on a device."""
        tensors = [*self.weights.values(), *(leaf for pair in self.cache for leaf in (pair.k, pair.v))]
        nbytes = dict(zip(tensors, leaf_sizes(self.scheduler.devices[HOST + 1], tensors), strict=True))
        weights: dict[str | int, int] = dict.fromkeys(["input", "output", *range(len(self.cache))], 0)
        for weight in self.model.weights:
            weights[weight.place] += nbytes[self.weights[weight.name]]
        layers = tuple(weights[layer] for layer in range(len(self.cache)))
        caches = tuple(nbytes[pair.k] + nbytes[pair.v] for pair in self.cache)
        return ModelSizes(layers, caches, weights["input"] if self.has_input else 0, weights["output"])

    def compute_nbytes(self, placement: Mapping[Tensor, int]) -> list[int]:
        """Return the scratch that each device needs for the largest steps."""
        plans = [self.scheduler.plan_memory(step.graph, placement, step.kept) for step in self._largest_steps]
        return [max(sizes) for sizes in zip(*plans, strict=True)]

    @cached_property
    def _largest_steps(self) -> list[Step]:
        shapes = self.limits.largest_steps(self.model.hparams.n_vocab)
        return [build_step(self.model, self.weights, self.cache, shape, sampling) for shape, sampling in shapes]


def _can_run_ahead(model: Model, weights: Mapping[str, Tensor], scheduler: Scheduler) -> bool:
    """Whether tokens can go from the last device to the first, and be looked up on one of them.

    A split that leaves one of these out is looked at again by the context.
    """
    first, last = HOST + 1, len(scheduler.devices) - 1
    name, place = ("output.weight", last) if model.is_tied else ("token_embd.weight", first)
    look_up = build.get_rows(weights[name], build.leaf(I32, (1,)))
    return scheduler.can_hand_over(last, first) and scheduler.devices[place].supports_op(look_up)
