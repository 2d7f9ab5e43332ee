"""Measure large messages over the RDMA shim against tcp://, between two processes of this machine.

    python tools/measure_rdma.py [--rounds N] [--write]

Each round sends the same 64 MiB message some times each way over both, in alternating order, answered by a header; the
figure of a round is its rate, the result the median over rounds of the ratio within a round. With `--write` the
table goes into docs/measurements.md.
"""

from __future__ import annotations

import argparse
import statistics
import time
from dataclasses import dataclass

from rpc_backend.testing.transport_arena import MIB, Client
from rpc_backend.testing.transport_peer import GIVE, SINK, PeerProcess
from tables import PAGE, section, write_part

NBYTES = 64 * MIB
ARMS = {"tcp": "tcp", "rdma": "rdma:provider=soft"}


@dataclass(frozen=True, slots=True)
class Rate:
    """Bytes per second of one round, to the server and from it."""

    up: float
    down: float


def measure(client: Client, repeats: int) -> Rate:
    """Send and fetch a message `repeats` times."""
    payload = b"\1" * NBYTES
    client.on_message = lambda frames: client.came.put([frames[0].tobytes(), *frames[1:]])
    times = []
    for request in ((SINK, payload), (GIVE + b"%d" % NBYTES,)):
        started = time.perf_counter()
        for _ in range(repeats):
            client.ask(*request)
            client.came.items.clear()
        times.append(time.perf_counter() - started)
    up, down = (repeats * NBYTES / seconds for seconds in times)
    return Rate(up, down)


def main() -> None:
    parser = argparse.ArgumentParser(description="Measure large messages over the RDMA shim against tcp://.")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--repeats", type=int, default=4)
    parser.add_argument("--write", action="store_true")
    options = parser.parse_args()
    rates: dict[str, list[Rate]] = {name: [] for name in ARMS}
    with (
        PeerProcess("serve", "tcp://127.0.0.1:0", ARMS["tcp"]) as plain,
        PeerProcess("serve", "tcp://127.0.0.1:0", ARMS["rdma"]) as beside,
        Client(plain.endpoint, ARMS["tcp"]) as tcp,
        Client(beside.endpoint, ARMS["rdma"]) as rdma,
    ):
        assert rdma.channel.carrier.name == "rdma-soft", "the link is not up"
        clients = [("tcp", tcp), ("rdma", rdma)]
        for client in (tcp, rdma):
            measure(client, 1)
        for number in range(options.rounds):
            for name, client in clients[:: 1 if number % 2 else -1]:
                rates[name].append(measure(client, options.repeats))
    lines = table(rates)
    print("\n".join(lines))
    if options.write:
        write_part(PAGE, "rdma", lines)


def table(rates: dict[str, list[Rate]]) -> list[str]:
    """Return the part of the page."""
    rows = [["direction", "tcp:// GB/s", "RDMA shim GB/s", "median ratio", "lowest to highest"]]
    for direction, title in (("up", "client to worker"), ("down", "worker to client")):
        tcp, rdma = ([getattr(rate, direction) for rate in rates[name]] for name in ("tcp", "rdma"))
        ratios = sorted(mine / other for mine, other in zip(rdma, tcp, strict=True))
        medians = [f"{statistics.median(values) / 1e9:.2f}" for values in (tcp, rdma)]
        spread = f"{ratios[0]:.2f} to {ratios[-1]:.2f}"
        rows.append([title, *medians, f"{statistics.median(ratios):.2f}", spread])
    note = (
        f"Between two processes of one machine, software model with its shared-memory carrier; {len(rates['tcp'])} "
        "rounds, the two alternated; one message of 64 MiB at a time. Made by `python tools/measure_rdma.py --write`."
    )
    return [*section("64 MiB messages over the RDMA shim", rows), note]


if __name__ == "__main__":
    main()
