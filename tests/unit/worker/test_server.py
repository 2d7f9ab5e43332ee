from __future__ import annotations

import pytest

from rpc_backend.errors import ConfigError
from rpc_backend.protocol import parse_endpoint
from rpc_backend.testing.devices import NullDevice
from rpc_backend.worker import Worker, WorkerConfig


def no_transport(scheme: str):
    raise AssertionError(f"{scheme} is not needed before the start")


def made(endpoint: str = "tcp://127.0.0.1:0", **options) -> Worker:
    config = WorkerConfig((parse_endpoint(endpoint, listen=True),), **options)
    return Worker(config, [NullDevice()], no_transport)


@pytest.mark.parametrize("endpoint", ["tcp://0.0.0.0:0", "tcp://*:0", "tcp://[::]:0", "tcp://192.168.1.2:0"])
def test_other_machines_are_not_served_without_keys(endpoint):
    with pytest.raises(ConfigError, match="--insecure"):
        made(endpoint)
    made(endpoint, insecure=True)


def test_a_cap_above_the_memory_is_refused_before_the_start():
    with pytest.raises(ConfigError, match="does not fit device null"):
        made(memory_cap_nbytes={0: 1 << 40})


def test_wait_ends_with_its_timeout_or_with_stop():
    worker = made()
    assert not worker.wait(0.01)
    worker.stop()
    assert worker.wait(0.01)
    assert worker.wait()


def test_closing_a_worker_that_never_started():
    worker = made()
    worker.close()
    worker.close()
    worker.serve_forever()
    assert worker.endpoints == []
