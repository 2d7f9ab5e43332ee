"""Models: GGUF files, architectures, the KV cache and the graph of a step."""

from rpc_backend.gguf_file import GgufFile, GgufTensor
from rpc_backend.models.architectures import ARCHITECTURES, Architecture
from rpc_backend.models.cache import KV_TYPES, LayerCache, cache_spec
from rpc_backend.models.hyperparameters import Hyperparameters, Traits
from rpc_backend.models.model import Model, load_model
from rpc_backend.models.rope_parameters import Rope, RopeScaling
from rpc_backend.models.sampler_params import SamplerParams, uniform
from rpc_backend.models.sampling_graph import (
    MAX_K,
    SamplingShape,
    SamplingStep,
    build_sampling,
    can_sample_on_backend,
    sampling_values,
)
from rpc_backend.models.step import Step, build_step
from rpc_backend.models.step_inputs import StepArrays, padded_n_kv, step_arrays
from rpc_backend.models.step_shape import StepInputs, StepShape
from rpc_backend.models.weights import Place, Weight, WeightSpec

__all__ = [
    "ARCHITECTURES", "KV_TYPES", "MAX_K", "Architecture", "GgufFile", "GgufTensor", "Hyperparameters", "LayerCache",
    "Model", "Place", "Rope", "RopeScaling", "SamplerParams", "SamplingShape", "SamplingStep", "Step", "StepArrays",
    "StepInputs", "StepShape", "Traits", "Weight", "WeightSpec", "build_sampling", "build_step", "cache_spec",
    "can_sample_on_backend", "load_model", "padded_n_kv", "sampling_values", "step_arrays", "uniform",
]  # fmt: skip
