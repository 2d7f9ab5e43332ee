"""Model architectures: one file each, and the table of all of them.

Adding one is a file and a row here.
"""

from rpc_backend.models.architectures.architecture import Architecture
from rpc_backend.models.architectures.gemma import Gemma
from rpc_backend.models.architectures.gemma2 import Gemma2
from rpc_backend.models.architectures.gemma3 import Gemma3
from rpc_backend.models.architectures.gpt_oss import GptOss
from rpc_backend.models.architectures.granite import Granite
from rpc_backend.models.architectures.llama import Llama
from rpc_backend.models.architectures.olmo2 import Olmo2
from rpc_backend.models.architectures.phi3 import Phi3
from rpc_backend.models.architectures.qwen2 import Qwen2
from rpc_backend.models.architectures.qwen2moe import Qwen2Moe
from rpc_backend.models.architectures.qwen3 import Qwen3
from rpc_backend.models.architectures.qwen3moe import Qwen3Moe
from rpc_backend.models.architectures.qwen35 import Qwen35

ARCHITECTURES: dict[str, type[Architecture]] = {
    "llama": Llama,
    "qwen2": Qwen2,
    "qwen3": Qwen3,
    "qwen2moe": Qwen2Moe,
    "qwen3moe": Qwen3Moe,
    "gemma": Gemma,
    "gemma2": Gemma2,
    "gemma3": Gemma3,
    "phi3": Phi3,
    "olmo2": Olmo2,
    "granite": Granite,
    "gpt-oss": GptOss,
    "qwen35": Qwen35,
}

__all__ = ["ARCHITECTURES", "Architecture"]
