"""The workers that a program starts for itself: `host.local_workers`."""

from __future__ import annotations

import subprocess
import sys
import time

import psutil
import pytest

from rpc_backend.client import connect
from rpc_backend.errors import ConnectError, PluginLoadError
from rpc_backend.host.local_workers import LocalWorkers
from rpc_backend.protocol.commands import PING
from rpc_backend.protocol.records import Empty
from rpc_backend.settings import Settings

SETTINGS = Settings(heartbeat_timeout_ms=2000)
MIB = 1 << 20


def test_workers_serve_until_they_are_closed():
    with LocalWorkers.start(2, backend="reference", memory="32MiB", settings=SETTINGS) as workers:
        assert len(set(workers.endpoints)) == 2
        for endpoint in workers.endpoints:
            with connect(endpoint, SETTINGS) as connection:
                assert connection.devices()[0].memory().total_nbytes == 32 * MIB
        pids = [worker.pid for worker in workers.workers]
    assert not any(psutil.pid_exists(pid) for pid in pids)
    workers.close()


def test_a_worker_that_does_not_start_says_why_and_leaves_none_behind():
    before = {child.pid for child in psutil.Process().children()}
    with pytest.raises(
        PluginLoadError, match=r"(?s)local worker 0 ended with code 1: .*no compute backend named 'refrence'"
    ):
        LocalWorkers.start(2, backend="refrence")
    assert {child.pid for child in psutil.Process().children()} <= before


def test_a_worker_that_takes_too_long_is_ended():
    before = {child.pid for child in psutil.Process().children()}
    with pytest.raises(ConnectError, match="local worker 0 did not serve in time"):
        LocalWorkers.start(1, backend="reference", timeout_s=0.01)
    assert {child.pid for child in psutil.Process().children()} <= before


def test_workers_end_with_a_killed_parent():
    script = (
        "import time; from rpc_backend.host.local_workers import LocalWorkers\n"
        "workers = LocalWorkers.start(2, backend='reference')\n"
        "print(*(worker.pid for worker in workers.workers), flush=True); time.sleep(60)\n"
    )
    with subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE) as parent:
        assert parent.stdout is not None
        pids = [int(pid) for pid in parent.stdout.readline().split()]
        assert len(pids) == 2
        assert all(psutil.pid_exists(pid) for pid in pids)
        parent.kill()
    deadline = time.monotonic() + 5
    while any(psutil.pid_exists(pid) for pid in pids):
        assert time.monotonic() < deadline, "workers outlived their parent"
        time.sleep(0.05)


def test_a_worker_that_hangs_is_ended_by_force():
    workers = LocalWorkers.start(1, backend="reference")
    connection = connect(workers.endpoints[0], SETTINGS)
    connection.call(PING, Empty())
    psutil.Process(workers.workers[0].pid).suspend()
    started = time.monotonic()
    workers.close()
    assert time.monotonic() - started < 5
    assert workers.workers[0].process.returncode == -9
    connection.close()
