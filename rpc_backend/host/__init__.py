"""The host: what a program or a command uses to run a model over workers.

Belongs here: the facade, the engine, tokenizer, chat templates, host sampling. Must not be here:
argument parsing and printing, which `cli` owns.
"""

from rpc_backend.host.devices import WorkersRequest
from rpc_backend.host.generation import Generation, StreamPiece, Timings
from rpc_backend.host.llm import LLM, GenerationStream, ModelRequest, plan_model
from rpc_backend.host.placement import LoadProgress
from rpc_backend.host.sampling import SamplerParams

__all__ = [
    "LLM", "Generation", "GenerationStream", "LoadProgress", "ModelRequest", "SamplerParams", "StreamPiece", "Timings",
    "WorkersRequest", "plan_model",
]  # fmt: skip
