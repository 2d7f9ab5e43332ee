"""Model architectures: one file each, and the table of all of them.

Adding one is a file and a row here.
"""

from rpc_backend.models.architectures.architecture import Architecture
from rpc_backend.models.architectures.llama import Llama
from rpc_backend.models.architectures.qwen2 import Qwen2
from rpc_backend.models.architectures.qwen3 import Qwen3

ARCHITECTURES: dict[str, type[Architecture]] = {"llama": Llama, "qwen2": Qwen2, "qwen3": Qwen3}

__all__ = ["ARCHITECTURES", "Architecture"]
