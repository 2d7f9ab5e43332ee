from __future__ import annotations

import signal
import socket
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

LOCAL = ("--device", "reference", "--listen", "tcp://127.0.0.1:0")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_it_says_ready_with_the_port_and_stops_cleanly(start, number):
    worker = start("worker", *LOCAL)
    host, port = worker.ready().removeprefix("tcp://").split(":")
    assert host == "127.0.0.1"
    with socket.create_connection((host, int(port)), timeout=5):
        pass
    assert worker.stop(number) == (0, "", "")


def test_it_serves_several_endpoints(start, tmp_path):
    path = tmp_path / "socket"
    worker = start("worker", *LOCAL, "--listen", f"ipc://{path}")
    assert worker.ready().startswith("tcp://127.0.0.1:")
    assert worker.ready() == f"ipc://{path}"
    assert worker.stop()[0] == 0


def test_it_ends_when_its_parent_does(start):
    worker = start("worker", *LOCAL, "--exit-on-stdin-close")
    worker.ready()
    assert worker.finish() == (0, "", "")  # closes standard input


def test_two_workers_on_one_port(start):
    endpoint = start("worker", *LOCAL).ready()
    status, out, err = start("worker", "--device", "reference", "--listen", endpoint).finish()
    assert (status, out) == (1, "")
    assert err.startswith("error: ")
    assert endpoint in err
    assert err.count("\n") == 1


@pytest.mark.parametrize("endpoint", ["tcp://0.0.0.0:0", "tcp://*:0", "tcp://[::]:0"])
def test_other_machines_need_insecure(start, endpoint):
    status, out, err = start("worker", "--device", "reference", "--listen", endpoint).finish()
    assert (status, out) == (1, "")
    assert "--insecure" in err


def test_insecure_serves_other_machines(start):
    worker = start("worker", "--device", "reference", "--listen", "tcp://0.0.0.0:0", "--insecure")
    assert worker.ready().startswith("tcp://0.0.0.0:")


@pytest.mark.parametrize(
    ("arguments", "status", "told"),
    [
        (["--lisen", "x"], 2, "--listen"),
        (["--device", "refernce"], 1, "did you mean 'reference'?"),
        (["--device", "reference:speed"], 1, "'speed' is not key=value"),
        (["--device", "reference:speed=9"], 1, "speed"),
        (["--device", "reference", "--device", "reference"], 1, "two devices are named"),
        (["--listen", "tcp://127.0.0.1"], 1, "'tcp://127.0.0.1'"),
        (["--listen", "tcp://127.0.0.1:65536"], 1, "'tcp://127.0.0.1:65536'"),
        (["--listen", "rdam://127.0.0.1:1", "--device", "reference"], 1, "rdam"),
        (["--mem", "many"], 2, "'many' is not a size"),
        (["--device", "reference", "--mem", "900TiB"], 1, "memory cap"),
        (["--device", "reference", "--proto-minor", "99"], 1, "protocol minor 99"),
        (["--device", "reference", "--peer-allow", "nothing"], 1, "'nothing'"),
        (["--device", "reference", "--peer-allow", "none", "--peer-allow", "tcp://a:1"], 1, "allows nobody"),
        (["--device", "reference", "--ticket-timeout", "0"], 2, "--ticket-timeout"),
        (["--threads", "-1"], 2, "--threads"),
    ],
)
def test_what_cannot_be_is_one_clear_line(start, arguments, status, told):
    found, out, err = start("worker", *arguments).finish()
    assert (found, out) == (status, "")
    assert err.startswith("error: ")
    assert told in err
    assert err.count("\n") == 1


def test_an_unknown_switch_is_named(start):
    status, _, err = start("worker", *LOCAL, environment={"ZMQ_RPC_CACHE_DRI": "x"}).finish()
    assert status == 1
    assert "ZMQ_RPC_CACHE_DRI" in err
    assert "did you mean ZMQ_RPC_CACHE_DIR?" in err


def test_the_memory_cap_is_what_clients_see(start):
    total = psutil.virtual_memory().total // 4
    worker = start("worker", *LOCAL, "--mem", str(total)).ready()
    status, out, err = start("main", "devices", "--workers", worker, "--json").finish()
    assert status == 0, err
    assert f'"total_nbytes": {total}' in out
    assert f'"free_nbytes": {total}' in out


def test_the_list_names_our_own_plugins(start):
    status, out, _ = start("worker", "--list").finish()
    assert status == 0
    assert {"reference", "numba", "tcp"} <= {line.split()[0] for line in out.splitlines()}


@pytest.mark.parametrize("module", ["rpc_backend.cli.worker", "rpc_backend.cli.main"])
def test_help_needs_no_heavy_import(module):
    code = f"import sys, {module}; print([name for name in ('numpy', 'zmq', 'rich', 'gguf') if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=30, check=True)
    assert done.stdout.strip() == "[]"


def test_it_runs_from_any_folder(start, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert start("worker", *LOCAL).ready()
    assert list(Path(tmp_path).iterdir()) == []
