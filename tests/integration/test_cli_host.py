from __future__ import annotations

import json
import signal
import socket
import time

import psutil
import pytest

from rpc_backend.graph import OPS

REFERENCE = ("--device", "reference")
WORKER = (*REFERENCE, "--listen", "tcp://127.0.0.1:0")
PROMPT = ("--prompt", "abab cab")
GREEDY = (*PROMPT, "--temperature", "0")


def free_port():
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return found.getsockname()[1]


def run(start, tiny_model, *arguments, stdin=None):
    return start("main", "run", "--model", tiny_model, *REFERENCE, *arguments).finish(stdin)


def run_json(start, tiny_model, *arguments):
    status, out, err = run(start, tiny_model, *arguments, "--json")
    assert status == 0, err
    return json.loads(out)


def test_the_split_does_not_change_the_tokens(start, tiny_model):
    answers = [
        run_json(start, tiny_model, *GREEDY, "--max-tokens", "6", "--workers", workers)
        for workers in ("none", "local:1", "local:2")
    ]
    assert len(answers[0]["tokens"]) == 6
    assert answers[0]["tokens"] == answers[1]["tokens"] == answers[2]["tokens"]
    assert [len(answer["wire"]) for answer in answers] == [0, 1, 2]


def test_json_counts_the_wire_and_the_time(start, tiny_model):
    answer = run_json(start, tiny_model, *GREEDY, "--max-tokens", "3", "--workers", "local:1")
    assert set(answer) == {"text", "tokens", "timings", "wire"}
    assert set(answer["timings"]) == {"load_s", "prompt_tokens", "prompt_tps", "decode_tokens", "decode_tps"}
    assert answer["timings"]["load_s"] > 0
    (wire,) = answer["wire"].values()
    assert set(wire) >= {"messages", "bytes_out", "bytes_in", "commands"}
    assert wire["bytes_out"] > tiny_model.stat().st_size // 4  # most of the weights went there


def test_text_goes_to_stdout_and_the_rest_to_stderr(start, tiny_model):
    status, out, err = run(start, tiny_model, "--workers", "none", "--max-tokens", "4", stdin="abab cab\n")
    assert status == 0, err
    assert out.endswith("\n")
    assert "decode 3 tokens" in err


def test_a_seed_repeats_the_text(start, tiny_model):
    sampled = (*PROMPT, "--temperature", "1.5", "--max-tokens", "8", "--workers", "none", "--seed")
    tokens = [run_json(start, tiny_model, *sampled, seed)["tokens"] for seed in ("1", "1", "2")]
    assert tokens[0] == tokens[1] != tokens[2]


@pytest.mark.parametrize(
    ("arguments", "status", "told"),
    [
        (["--model", "/nowhere/m.gguf"], 1, "/nowhere/m.gguf"),
        (["--workers", "none", "--split", "layers:1,2"], 1, "layers:1,2"),
        (["--workers", "none", "--split", "sideways"], 1, "sideways"),
        (["--workers", "none", "--ctx", "100000"], 1, "100000"),
        (["--workers", "local:zero"], 1, "local:zero"),
        (["--workers", "127.0.0.1"], 1, "'127.0.0.1'"),
        (["--workers", "none", "--temperature", "-1"], 1, "temperature"),
        (["--workers", "none", "--ctx", "4"], 1, "context"),
        (["--wrokers", "none"], 2, "--workers"),
        (["--kv-type", "f8"], 2, "f8"),
        (["--system", "x"], 2, "--chat"),
        (["--workers", "none", "--prompt", ""], 1, "prompt"),
    ],
)
def test_what_cannot_be_is_one_clear_line(start, tiny_model, arguments, status, told):
    found, out, err = run(start, tiny_model, *PROMPT, *arguments)
    assert (found, out) == (status, "")
    assert err.startswith("error: ")
    assert told in err
    assert err.count("\n") == 1


def test_a_worker_that_is_not_there_is_named(start, tiny_model, monkeypatch):
    monkeypatch.setenv("ZMQ_RPC_CONNECT_TIMEOUT_MS", "500")
    endpoint = f"tcp://127.0.0.1:{free_port()}"
    status, out, err = run(start, tiny_model, *PROMPT, "--workers", endpoint)
    assert (status, out) == (1, "")
    assert endpoint in err
    assert err.count("\n") == 1


@pytest.mark.parametrize("greeting", [b"", b"HTTP/1.1 400 Bad Request\r\n\r\n", bytes(range(256)) * 16])
def test_something_else_on_that_port_is_named(start, monkeypatch, greeting):
    monkeypatch.setenv("ZMQ_RPC_CONNECT_TIMEOUT_MS", "1000")
    with socket.create_server(("127.0.0.1", 0)) as stranger:
        endpoint = f"tcp://127.0.0.1:{stranger.getsockname()[1]}"
        command = start("main", "devices", "--workers", endpoint)
        stranger.settimeout(20)
        with stranger.accept()[0] as connection:
            connection.sendall(greeting)
            status, out, err = command.finish()
    assert (status, out) == (1, "")
    assert endpoint in err
    assert err.count("\n") == 1


def test_wait_gives_a_worker_time_to_come_up(start, monkeypatch):
    monkeypatch.setenv("ZMQ_RPC_CONNECT_TIMEOUT_MS", "500")
    endpoint = f"tcp://127.0.0.1:{free_port()}"
    waiting = start("main", "devices", "--workers", endpoint, "--wait", "25")
    time.sleep(1.0)
    start("worker", *REFERENCE, "--listen", endpoint).ready()
    status, out, err = waiting.finish()
    assert status == 0, err
    assert endpoint in out


def devices(start, *workers):
    status, out, err = start("main", "devices", "--workers", ",".join(workers), "--json").finish()
    assert status == 0, err
    return json.loads(out)["devices"]


def test_ctrl_c_stops_the_text_and_frees_the_worker(start, tiny_model):
    worker = start("worker", *WORKER).ready()
    before = devices(start, worker)[0]["free_nbytes"]
    long = ("--max-tokens", "400", "--temperature", "5", "--top-k", "0", "--top-p", "1", "--min-p", "0")
    running = start("main", "run", "--model", tiny_model, "--workers", worker, *PROMPT, *long, "--stop", "never")
    assert running.process.stdout is not None
    running.process.stdout.read(1)
    started = time.monotonic()
    status, _, err = running.stop(signal.SIGINT)
    assert status == 130
    assert time.monotonic() - started < 3
    assert "Traceback" not in err
    assert devices(start, worker)[0]["free_nbytes"] == pytest.approx(before, rel=0.01)


def test_ctrl_c_ends_the_workers_that_the_command_started(start, tiny_model):
    running = start(
        "main", "run", "--model", tiny_model, *REFERENCE, "--workers", "local:2", *PROMPT, "--max-tokens", "400"
    )
    running.process.stdout.read(1)
    workers = psutil.Process(running.process.pid).children(recursive=True)
    assert len(workers) == 2
    assert running.stop(signal.SIGINT)[0] == 130
    assert psutil.wait_procs(workers, timeout=5)[1] == []


def test_a_killed_command_takes_its_workers_along(start, tiny_model):
    running = start(
        "main", "run", "--model", tiny_model, *REFERENCE, "--workers", "local:2", *PROMPT, "--max-tokens", "400"
    )
    running.process.stdout.read(1)
    workers = psutil.Process(running.process.pid).children(recursive=True)
    running.process.kill()
    assert psutil.wait_procs(workers, timeout=8)[1] == []


def test_devices_are_listed_for_people_and_programs(start):
    worker = start("worker", *WORKER).ready()
    status, out, err = start("main", "devices", "--workers", worker).finish()
    assert status == 0, err
    assert worker in out
    assert "ALIGNMENT" in out
    (row,) = devices(start, worker)
    assert row["worker"] == worker
    assert row["kind"] == "cpu"
    assert 0 < row["free_nbytes"] <= row["total_nbytes"]
    assert row["alignment"] >= 1


def test_operations_of_devices_are_a_table(start):
    workers = [start("worker", *WORKER).ready() for _ in range(2)]
    arguments = ("devices", "--workers", ",".join(workers), "--ops")
    status, out, err = start("main", *arguments).finish()
    assert status == 0, err
    title, *rows = (line.split() for line in out.splitlines())
    assert title == ["OPERATION", *(f"reference@{worker}" for worker in workers)]
    assert ["FLASH_ATTN_EXT", "yes", "yes"] in rows
    assert [row[0] for row in rows] == list(OPS)
    status, out, _ = start("main", *arguments, "--json").finish()
    assert (status, json.loads(out)["devices"]) == (0, title[1:])


def test_devices_of_this_process(start):
    status, out, err = start("main", "devices", "--workers", "none", *REFERENCE).finish()
    assert status == 0, err
    assert "this process" in out


def test_the_plan_is_printed_and_nothing_is_uploaded(start, tiny_model):
    workers = [start("worker", *WORKER, "--mem", size).ready() for size in ("64MiB", "128MiB")]
    before = devices(start, *workers)
    arguments = ("plan", "--model", tiny_model, "--workers", ",".join(workers), "--split", "layers:1,3")
    status, out, err = start("main", *arguments).finish()
    assert status == 0, err
    assert "1-3 output" in out
    status, out, err = start("main", *arguments, "--json").finish()
    assert status == 0, err
    assert json.loads(out)["layer_devices"] == [0, 1, 1, 1]
    assert [row["free_nbytes"] for row in devices(start, *workers)] == [row["free_nbytes"] for row in before]


def test_a_model_that_does_not_fit_is_refused_before_upload(start, tiny_model):
    worker = start("worker", *WORKER, "--mem", "100k").ready()
    status, _, err = start("main", "run", "--model", tiny_model, "--workers", worker, *PROMPT).finish()
    assert status == 1
    assert "bytes" in err
    assert devices(start, worker)[0]["free_nbytes"] == 100_000
