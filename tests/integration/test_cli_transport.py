"""`--transport` as users meet it: used, missing, mistaken."""

from __future__ import annotations

import json

import pytest

NOWHERE = {"ZMQ_RPC_TRANSPORT": "rdma:device=none7"}  # no machine has it, with or without the package
WORKER = ("--listen", "tcp://127.0.0.1:0", "--device", "reference", "--transport")


def devices(start, endpoint, *options, environment=None):
    status, out, err = start(
        "main", "devices", "--json", "--workers", endpoint, *options, environment=environment
    ).finish()
    assert status == 0, err
    return [row["payloads"] for row in json.loads(out)["devices"]], err


def test_both_sides_have_it_and_devices_says_so(start):
    endpoint = start("worker", *WORKER, "rdma:provider=soft").ready()
    assert devices(start, endpoint, "--transport", "rdma:provider=soft") == (["rdma-soft"], "")
    switch = {"ZMQ_RPC_TRANSPORT": "rdma:provider=soft"}
    assert devices(start, endpoint, environment=switch) == (["rdma-soft"], "")
    assert devices(start, endpoint, "--transport", "tcp", environment=switch) == (["fabric"], "")
    assert devices(start, endpoint) == (["fabric"], "")


def test_a_worker_without_it_is_named_in_one_line(start):
    endpoint = start("worker", *WORKER, "tcp").ready()
    carriers, err = devices(start, endpoint, "--transport", "rdma:provider=soft")
    assert carriers == ["fabric"]
    assert err.count("\n") == 1
    assert f"payloads to {endpoint} travel inside the fabric: the worker cannot take up rdma-soft" in err


def test_what_is_missing_here_is_named_in_one_line(start):
    endpoint = start("worker", *WORKER, "rdma:provider=soft").ready()
    carriers, err = devices(start, endpoint, environment=NOWHERE)
    assert carriers == ["fabric"]
    assert err.count("\n") == 1
    assert "travel inside the fabric: rdma: " in err


def test_a_worker_that_lacks_a_part_says_which_and_serves(start):
    worker = start("worker", *WORKER, "rdma:device=none7")
    assert devices(start, worker.ready()) == (["fabric"], "")
    _, _, err = worker.stop()
    assert "payloads travel inside the fabric, rdma cannot be used: " in err


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("rdmaa", "did you mean 'rdma'"),
        ("rdma:provider=hard", "provider is verbs or soft"),
        ("rdma:provider=soft,colour=red", "unknown option 'colour'"),
        ("rdma:soft", "not key=value"),
    ],
)
@pytest.mark.parametrize("command", ["worker", "devices"])
def test_mistakes_are_errors(start, command, text, words):
    arguments = ("worker", *WORKER, text) if command == "worker" else ("main", "devices", "--transport", text)
    status, _, err = start(*arguments).finish()
    assert status == 1
    assert words in err
