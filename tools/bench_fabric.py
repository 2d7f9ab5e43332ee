"""Measure the fabric on this machine: round trips and bulk transfers between two processes.

    python tools/bench_fabric.py [--scheme tcp|ipc] [--round-trips N] [--upload-mib N] [--chunk-kib N]

Prints one JSON object. Units: microseconds, and GB/s of 10^9 bytes.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import multiprocessing.connection
import queue
import statistics
import tempfile
import time
from collections import deque
from typing import Any

import numpy as np

from rpc_backend.fabric import ClientChannel, connect, listen
from rpc_backend.interfaces import Ticket
from rpc_backend.protocol import parse_endpoint
from rpc_backend.registry import load_registry

WAIT_S = 30.0
WINDOW = 4
ECHO, STORE, FETCH = b"echo", b"store", b"fetch"


def serve(endpoint: str, place_nbytes: int, pipe: multiprocessing.connection.Connection) -> None:
    """Echo small messages, copy uploads to their place once, send them back on demand."""
    place = np.zeros(place_nbytes, np.uint8)

    def on_message(peer: bytes, frames: list[memoryview]) -> None:
        if frames[0] == STORE:
            offset = int.from_bytes(frames[1], "little")
            place[offset : offset + frames[2].nbytes] = np.frombuffer(frames[2], np.uint8)
        elif frames[0] == FETCH:
            offset, nbytes = (int.from_bytes(frame, "little") for frame in frames[1:])
            listener.send(peer, [frames[1], place.data[offset : offset + nbytes]])
            return
        listener.send(peer, frames[:2])

    listener = listen(
        [parse_endpoint(endpoint, listen=True)], load_registry().transport_for,
        on_message=on_message, on_peer_lost=lambda peer: None,
    )  # fmt: skip
    pipe.send(listener.names[0])
    pipe.recv()
    listener.close()


def round_trips_us(channel: ClientChannel, inbox: queue.SimpleQueue[list[memoryview]], n: int) -> dict[str, float]:
    """Time single round trips of 64 bytes."""
    times: list[float] = []
    for _ in range(n):
        start = time.perf_counter()
        channel.send([ECHO, bytes(64)])
        inbox.get(timeout=WAIT_S)
        times.append((time.perf_counter() - start) * 1e6)
    cuts = statistics.quantiles(times, n=100)
    return {"p50_us": round(cuts[49], 1), "p90_us": round(cuts[89], 1), "p99_us": round(cuts[98], 1)}


def stream_us(channel: ClientChannel, inbox: queue.SimpleQueue[list[memoryview]], n: int) -> float:
    """Time per message when `n` small ones are sent before the first answer is awaited."""
    start = time.perf_counter()
    for _ in range(n):
        channel.send([ECHO, bytes(64)])
    for _ in range(n):
        inbox.get(timeout=WAIT_S)
    return round((time.perf_counter() - start) / n * 1e6, 2)


def upload_gbps(
    channel: ClientChannel, inbox: queue.SimpleQueue[list[memoryview]], data: np.ndarray[Any, Any], chunk: int
) -> float:
    """Send `data` in chunks, a few under way at a time, until the last is in its place."""
    start = time.perf_counter()
    under_way: deque[Ticket] = deque()
    offsets = range(0, data.nbytes, chunk)
    for offset in offsets:
        if len(under_way) == WINDOW:
            under_way.popleft().wait(WAIT_S)
        frames = [STORE, offset.to_bytes(8, "little"), data.data[offset : offset + chunk]]
        under_way.append(channel.send(frames))
    for _ in offsets:
        inbox.get(timeout=WAIT_S)
    return round(data.nbytes / (time.perf_counter() - start) / 1e9, 3)


def download_gbps(
    channel: ClientChannel, inbox: queue.SimpleQueue[list[memoryview]], out: np.ndarray[Any, Any], chunk: int
) -> float:
    """Fetch all chunks, asked for at once, and copy each to its place."""
    start = time.perf_counter()
    offsets = range(0, out.nbytes, chunk)
    for offset in offsets:
        channel.send([FETCH, offset.to_bytes(8, "little"), chunk.to_bytes(8, "little")])
    for _ in offsets:
        where, payload = inbox.get(timeout=WAIT_S)
        offset = int.from_bytes(where, "little")
        out[offset : offset + payload.nbytes] = np.frombuffer(payload, np.uint8)
    return round(out.nbytes / (time.perf_counter() - start) / 1e9, 3)


def measure(endpoint: str, options: argparse.Namespace) -> dict[str, Any]:
    """Run all measurements against a new process."""
    nbytes, chunk = options.upload_mib << 20, options.chunk_kib << 10
    here, there = multiprocessing.Pipe()
    process = multiprocessing.get_context("spawn").Process(target=serve, args=(endpoint, nbytes, there), daemon=True)
    process.start()
    inbox: queue.SimpleQueue[list[memoryview]] = queue.SimpleQueue()
    bound = parse_endpoint(here.recv())
    channel = connect(
        bound, load_registry().transport_for(bound.scheme),
        on_message=inbox.put, on_lost=print,
    )  # fmt: skip
    data = np.random.default_rng(1).integers(0, 256, nbytes, np.uint8)
    out = np.zeros_like(data)
    round_trips_us(channel, inbox, 200)
    result = {
        "endpoint": str(bound),
        "round_trip": round_trips_us(channel, inbox, options.round_trips),
        "stream_us_per_message": stream_us(channel, inbox, options.round_trips),
        "upload_GBps": [upload_gbps(channel, inbox, data, chunk) for _ in range(3)],
        "download_GBps": [download_gbps(channel, inbox, out, chunk) for _ in range(3)],
    }
    assert np.array_equal(data, out), "the bytes that came back are not those sent"
    channel.close()
    here.send("end")
    process.join(WAIT_S)
    return result


def main() -> None:
    """Read the options and print the result."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--scheme", choices=("tcp", "ipc"), default="tcp")
    parser.add_argument("--round-trips", type=int, default=2000)
    parser.add_argument("--upload-mib", type=int, default=256)
    parser.add_argument("--chunk-kib", type=int, default=2048)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        endpoint = "tcp://127.0.0.1:0" if options.scheme == "tcp" else f"ipc://{folder}/bench"
        print(json.dumps(measure(endpoint, options), indent=2))


if __name__ == "__main__":
    main()
