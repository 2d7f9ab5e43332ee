"""Loading twice: what crosses the wire when a worker has the weights already, with real workers."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest
import xxhash

from rpc_backend.client import connect
from rpc_backend.client.connection import Connection
from rpc_backend.errors import RpcBackendError
from rpc_backend.protocol import commands as c
from rpc_backend.protocol import records as r
from rpc_backend.settings import Settings
from rpc_backend.testing.gguf_writer import write_tiny_model
from rpc_backend.testing.raw_client import leaf_record

SETTINGS = Settings(heartbeat_timeout_ms=2000)
MIB = 1 << 20
Start = Callable[..., object]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model of some megabytes, so that the smallest tensors do not count."""
    return write_tiny_model(tmp_path_factory.mktemp("model") / "m.gguf", n_layer=2, n_embd=384, n_ff=1024, head=64)


class Session:
    """One client with one buffer of weights."""

    def __init__(self, endpoint: str, nbytes: int) -> None:
        self.connection: Connection = connect(endpoint, SETTINGS)
        self.nbytes = nbytes
        request = r.AllocBuffer(0, nbytes, "weights")
        self.handle = self.connection.call(c.ALLOC_BUFFER, request).handle
        self.record = leaf_record(self.handle, nbytes)

    def has(self, data: bytes) -> bool:
        request = r.TensorHash(self.record, 0, len(data), xxhash.xxh3_128(data).digest())
        return self.connection.call(c.SET_TENSOR_HASH, request).result

    def write(self, data: bytes) -> None:
        for start in range(0, len(data), MIB):
            part = data[start : start + MIB]
            self.connection.dispatcher.post(c.SET_TENSOR, r.TensorRange(self.record, start, len(part)), payload=part)
        self.connection.call(c.SYNCHRONIZE, r.Empty())

    def counts(self) -> dict[str, int]:
        return self.connection.call(c.STATS, r.Empty()).weights

    def __enter__(self) -> Session:
        return self

    def __exit__(self, *_: object) -> None:
        self.connection.close()


def wait_until(condition: Callable[[], bool], what: str) -> None:
    deadline_s = time.monotonic() + 10
    while not condition():
        assert time.monotonic() < deadline_s, what
        time.sleep(0.02)


def serve(start: Start, *options: str | Path) -> str:
    return start("worker", "--listen", "tcp://127.0.0.1:0", "--device", "reference", *options).ready()


def load(model: Path, endpoint: str, start: Start) -> tuple[list[int], int]:
    """Load a model and generate with it; return the tokens, and the bytes of weights that came to the worker."""
    before = uploaded_nbytes(endpoint)
    arguments = ["run", "--model", model, "--workers", endpoint, "--prompt", "abab"]
    arguments += ["--max-tokens", "4", "--temperature", "0", "--json"]
    status, out, err = start("main", *arguments).finish()
    assert status == 0, err
    return json.loads(out)["tokens"], uploaded_nbytes(endpoint) - before


def uploaded_nbytes(endpoint: str) -> int:
    with connect(endpoint, SETTINGS) as watcher:
        return watcher.call(c.STATS, r.Empty()).commands.get("SET_TENSOR", [0, 0, 0])[1]


def test_a_second_load_moves_less_than_a_hundredth(start, model, tmp_path):
    endpoint = serve(start, "--cache", tmp_path / "cache")
    first, first_nbytes = load(model, endpoint, start)
    second, second_nbytes = load(model, endpoint, start)

    assert second == first
    assert first_nbytes > 0.9 * model.stat().st_size
    assert second_nbytes < first_nbytes / 100

    # The folder outlives its worker, and another one may use it.
    third, third_nbytes = load(model, serve(start, "--cache", tmp_path / "cache"), start)
    assert third == first
    assert third_nbytes < first_nbytes / 100


def test_a_load_with_model_files_moves_less_than_a_hundredth(start, model, tmp_path):
    plain, plain_nbytes = load(model, serve(start), start)
    found, found_nbytes = load(model, serve(start, "--models", model.parent), start)

    assert found == plain
    assert found_nbytes < plain_nbytes / 100
    assert model.with_name("m.gguf.digests").exists()


def test_damaged_entries_are_sent_again_and_the_tokens_stay(start, model, tmp_path):
    cache = tmp_path / "cache"
    first, _ = load(model, serve(start, "--cache", cache), start)
    one, two, three = sorted(cache.glob("*.weights"), key=lambda path: -path.stat().st_size)[:3]
    one.write_bytes(one.read_bytes()[:-1])
    two.write_bytes(bytes(two.stat().st_size))
    flipped = bytearray(three.read_bytes())
    flipped[1000] ^= 4
    three.write_bytes(flipped)
    lost_nbytes = sum(int(path.stem.split("-")[1]) for path in (one, two, three))

    again, again_nbytes = load(model, serve(start, "--cache", cache), start)
    assert again == first
    assert lost_nbytes < again_nbytes < 1.05 * lost_nbytes + 100_000
    status, out, _ = start("main", "cache", "verify", "--cache", cache, "--json").finish()
    assert (status, json.loads(out)["damaged"]) == (0, 0)


def test_a_worker_that_is_killed_while_it_stores_leaves_a_folder_that_works(start, tmp_path):
    cache, weight = tmp_path / "cache", os.urandom(64 * MIB)
    worker = start("worker", "--listen", "tcp://127.0.0.1:0", "--device", "reference", "--cache", cache)
    with Session(worker.ready(), len(weight)) as session:
        assert not session.has(weight)
        killer = threading.Thread(target=kill_at_first_file, args=(cache, worker.process))
        killer.start()
        with suppress(RpcBackendError):  # it may be killed before the last of it
            session.write(weight)
        killer.join()
    worker.process.wait()
    left = list(cache.iterdir())

    endpoint = serve(start, "--cache", cache)
    assert all(path.suffix == ".weights" for path in cache.iterdir()), left
    with Session(endpoint, len(weight)) as session:
        if not session.has(weight):
            session.write(weight)
        wait_until(lambda: session.has(weight), "the weight was not stored")


def kill_at_first_file(folder: Path, process: subprocess.Popen[str]) -> None:
    deadline_s = time.monotonic() + 10
    while not any(folder.iterdir()) and time.monotonic() < deadline_s:
        time.sleep(0.0005)
    process.send_signal(signal.SIGKILL)


def test_two_workers_store_and_read_one_folder_at_the_same_time(start, tmp_path):
    cache = tmp_path / "cache"
    weights = [os.urandom(MIB + 4 * number) for number in range(8)]
    endpoints = [serve(start, "--cache", cache) for _ in range(2)]

    def upload(endpoint: str) -> None:
        for weight in weights:
            with Session(endpoint, len(weight)) as session:
                if not session.has(weight):
                    session.write(weight)

    threads = [threading.Thread(target=upload, args=(endpoint,)) for endpoint in endpoints]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    wait_until(lambda: len(list(cache.glob("*.weights"))) == len(weights), "not all of them were stored")
    assert {xxhash.xxh3_128(path.read_bytes()).digest() for path in cache.glob("*.weights")} == {
        xxhash.xxh3_128(weight).digest() for weight in weights
    }
    assert not list(cache.glob("*.tmp"))


def test_a_limit_holds_over_loads(start, tmp_path):
    cache, limit_nbytes = tmp_path / "cache", 3 * MIB
    endpoint = serve(start, "--cache", cache, "--cache-limit", str(limit_nbytes))
    weights = [os.urandom(MIB) for _ in range(5)]
    for weight in weights:
        with Session(endpoint, MIB) as session:
            assert not session.has(weight)
            session.write(weight)
        assert sum(path.stat().st_size for path in cache.iterdir()) <= limit_nbytes
    with Session(endpoint, MIB) as session:
        assert [session.has(weight) for weight in weights] == [False, False, True, True, True]


def test_a_full_disk_is_one_warning_and_an_uncached_load(start, tmp_path):
    disk = tmp_path / "disk"
    disk.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=2m", "tmpfs", disk],
        check=False,
        capture_output=True,
        text=True,
        timeout=10,
    )
    if mounted.returncode != 0:
        pytest.skip(f"no small disk can be made here: {mounted.stderr.strip()}")
    try:
        weights = [os.urandom(MIB), os.urandom(8 * MIB), os.urandom(8 * MIB)]
        worker = start("worker", "--listen", "tcp://127.0.0.1:0", "--device", "reference", "--cache", disk)
        with Session(worker.ready(), 8 * MIB) as session:
            for weight in weights:
                assert not session.has(weight)
                session.write(weight)
            wait_until(lambda: not list(disk.glob("*.tmp")) and session.counts()["nbytes_stored"] == MIB, "no end")
            assert [session.has(weight) for weight in weights] == [True, False, False]
        status, _, err = worker.stop()
        assert status == 0
        assert err.count("WARNING") == 1
        assert "No space left" in err
    finally:
        subprocess.run(["umount", disk], check=True, timeout=10)


def test_other_clients_and_heartbeats_go_on_while_a_weight_is_read(start, tmp_path):
    weight = bytes(512 * MIB)
    (tmp_path / f"{xxhash.xxh3_128_hexdigest(weight)}-{len(weight)}.weights").write_bytes(weight)
    endpoint = serve(start, "--cache", tmp_path)
    with Session(endpoint, len(weight)) as session, connect(endpoint, SETTINGS) as other:
        results = []
        reader = threading.Thread(target=lambda: results.append(session.has(weight)))
        began_s = time.monotonic()
        reader.start()
        pings = []
        while reader.is_alive():
            ping_s = time.monotonic()
            other.call(c.PING, r.Empty())
            pings.append(time.monotonic() - ping_s)
        took_s = time.monotonic() - began_s
        assert results == [True]
        assert len(pings) > 3
        assert max(pings) < max(0.5, took_s / 2)
