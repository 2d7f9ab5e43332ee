"""What the end-to-end tests share."""

from __future__ import annotations

import pytest

from rpc_backend.errors import ModelFileError
from rpc_backend.host.model_source import find_model


@pytest.fixture(scope="session")
def demo_model():
    """The path of the demo model; skips where its package is not installed."""
    try:
        return find_model("demo")
    except ModelFileError as error:
        pytest.skip(str(error))
