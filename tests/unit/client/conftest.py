"""A worker with two devices in the same thread."""

from __future__ import annotations

import pytest

from rpc_backend.client import Connection
from rpc_backend.testing.devices import FailingDevice, NullDevice
from rpc_backend.testing.inline_worker import InlineWorker


@pytest.fixture
def backends() -> list[FailingDevice]:
    """The devices behind the worker, of 1 MiB each."""
    return [FailingDevice(NullDevice(name, 1 << 20, refused_ops=["SUB"])) for name in ("zero", "one")]


@pytest.fixture
def worker(backends) -> InlineWorker:
    return InlineWorker(backends)


@pytest.fixture
def connection(worker) -> Connection:
    return worker.connect()
