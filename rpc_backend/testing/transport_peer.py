"""The other end of a connection in a process of its own, so that it can be killed, or measured.

Belongs here: the process, and starting it. Must not be here: checks.

A server echoes, or answers a message whose header is `sink` with a header only. A client sends large messages for as
long as it lives.
"""

from __future__ import annotations

import subprocess
import sys
import threading
from types import TracebackType

import click

from rpc_backend.interfaces import PeerId
from rpc_backend.testing.transport_arena import MIB, WAIT_S, Client, Server, Way, echo

SINK, GIVE = b"sink", b"give "
_PAYLOAD_NBYTES = 8 * MIB
GIFT = memoryview(b"\1" * (64 * MIB))


class PeerProcess:
    """A server (role `serve`) or a client (role `flood`) in another process; it ends with the block."""

    def __init__(self, role: str, endpoint: str, transport: str) -> None:
        """Start it and wait until it serves or has greeted; `endpoint` is then where it does."""
        command = [sys.executable, "-m", "rpc_backend.testing.transport_peer", role, endpoint, transport]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        timer = threading.Timer(WAIT_S, self._process.kill)
        timer.start()
        try:
            assert self._process.stdout is not None
            self.endpoint = self._process.stdout.readline().removeprefix("ready ").strip()
        finally:
            timer.cancel()
        if not self.endpoint:
            self.kill()
            raise AssertionError(f"the other end ({role} {endpoint} {transport}) did not start")

    def kill(self) -> None:
        """End it at once. A second call does nothing."""
        self._process.kill()
        self._process.communicate()

    def __enter__(self) -> PeerProcess:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.kill()


@click.command()
@click.argument("role", type=click.Choice(["serve", "flood"]))
@click.argument("endpoint")
@click.argument("transport")
def main(role: str, endpoint: str, transport: str) -> None:
    """Run until standard input ends."""
    if role == "serve":
        with Server(Way("peer", endpoint, transport), _answer) as server:
            click.echo(f"ready {server.endpoint}")
            sys.stdin.read()
        return
    with Client(endpoint, transport) as client:
        click.echo(f"ready {endpoint}")
        payload = bytes(_PAYLOAD_NBYTES)
        while not client.lost.items:
            client.send(SINK, payload).wait(WAIT_S)


def _answer(server: Server, peer: PeerId, frames: list[memoryview]) -> None:
    head = bytes(frames[0][:64])
    if head == SINK:
        server.listener.send(peer, [SINK])
    elif head.startswith(GIVE):
        server.listener.send(peer, [head, GIFT[: int(head.removeprefix(GIVE))]])
    else:
        echo(server, peer, frames)


if __name__ == "__main__":
    main()
