"""Deaths: processes that are killed or stopped are noticed, in time, once, and as the right one."""

import os
import signal
import subprocess
import sys
import threading
import time

import pytest

from rpc_backend.errors import WorkerLostError
from rpc_backend.fabric import FabricOptions, connect, listen
from rpc_backend.protocol import parse_endpoint
from rpc_backend.registry import load_registry

WAIT_S = 20
HEARTBEAT_MS = 1000
SMALL_S = 0.7

CLIENT = """
import sys, time
from rpc_backend.fabric import FabricOptions, connect
from rpc_backend.protocol import parse_endpoint
from rpc_backend.registry import load_registry
endpoint = parse_endpoint(sys.argv[1])
channel = connect(endpoint, load_registry().transport_for(endpoint.scheme), on_message=print, on_lost=print,
                  options=FabricOptions(heartbeat_timeout_ms=%d))
channel.send([sys.argv[2].encode()])
if "bulk" in sys.argv:
    while True:
        channel.send([b"bulk", bytes(8 << 20)]).wait(60)
time.sleep(60)
"""
WORKER = """
import sys, time
from rpc_backend.fabric import FabricOptions, listen
from rpc_backend.protocol import parse_endpoint
from rpc_backend.registry import load_registry
listener = listen([parse_endpoint(sys.argv[1], listen=True)], load_registry().transport_for,
                  on_message=lambda peer, frames: listener.send(peer, frames), on_peer_lost=print,
                  options=FabricOptions(heartbeat_timeout_ms=%d))
print(listener.names[0], flush=True)
time.sleep(60)
"""


@pytest.fixture
def start():
    """Start a program as a child that is surely gone afterwards."""
    children = []

    def run(program, *arguments):
        child = subprocess.Popen(
            [sys.executable, "-c", program % HEARTBEAT_MS, *arguments], stdout=subprocess.PIPE, text=True
        )
        children.append(child)
        return child

    yield run
    for child in children:
        child.kill()
        child.communicate(timeout=WAIT_S)


class Worker:
    """A listener that knows which peer said which name, and when each was lost."""

    def __init__(self, text):
        self.names, self.lost, self.changed, self.bulk = {}, {}, threading.Condition(), 0
        self.listener = listen(
            [parse_endpoint(text, listen=True)], load_registry().transport_for,
            on_message=self.on_message, on_peer_lost=self.on_peer_lost,
            options=FabricOptions(heartbeat_timeout_ms=HEARTBEAT_MS),
        )  # fmt: skip

    def on_message(self, peer, frames):
        with self.changed:
            if len(frames) > 1:
                self.bulk += 1
            else:
                self.names[peer] = bytes(frames[0]).decode()
            self.changed.notify_all()

    def on_peer_lost(self, peer):
        with self.changed:
            assert self.names[peer] not in self.lost, "a loss is reported once"
            self.lost[self.names[peer]] = time.monotonic()
            self.changed.notify_all()

    def wait_for(self, condition):
        with self.changed:
            assert self.changed.wait_for(condition, WAIT_S), (self.names, self.lost)

    def wait_known(self, *names):
        self.wait_for(lambda: set(names) <= set(self.names.values()))


@pytest.fixture(params=["tcp", "ipc"])
def worker(request, tmp_path):
    made = Worker("127.0.0.1:0" if request.param == "tcp" else f"ipc://{tmp_path}/socket")
    yield made
    made.listener.close()


def test_a_killed_client_is_noticed_at_once_and_the_others_stay(worker, start):
    victim, other = (start(CLIENT, worker.listener.names[0], name) for name in ("victim", "other"))
    worker.wait_known("victim", "other")
    killed_at = time.monotonic()
    victim.kill()
    worker.wait_for(lambda: "victim" in worker.lost)
    assert worker.lost["victim"] - killed_at < SMALL_S
    assert other.poll() is None
    peer = next(peer for peer, name in worker.names.items() if name == "victim")
    assert worker.listener.send(peer, [bytes(1 << 20)]).wait(WAIT_S) is None, "to nobody: dropped, not kept"
    assert list(worker.lost) == ["victim"]


def test_a_client_killed_in_the_middle_of_large_messages(worker, start):
    victim = start(CLIENT, worker.listener.names[0], "victim", "bulk")
    worker.wait_for(lambda: worker.bulk > 3)
    victim.kill()
    worker.wait_for(lambda: "victim" in worker.lost)


def test_a_stopped_client_is_noticed_within_the_heartbeat_timeout(worker, start):
    victim = start(CLIENT, worker.listener.names[0], "victim")
    worker.wait_known("victim")
    time.sleep(HEARTBEAT_MS / 1000 * 1.5)
    assert worker.lost == {}, "an idle client that lives is not lost"
    stopped_at = time.monotonic()
    victim.send_signal(signal.SIGSTOP)
    worker.wait_for(lambda: "victim" in worker.lost)
    assert worker.lost["victim"] - stopped_at < HEARTBEAT_MS / 1000 + SMALL_S


def test_descriptors_used_again_are_not_confused(worker, start):
    steady = start(CLIENT, worker.listener.names[0], "steady")
    worker.wait_known("steady")
    for name in ("a", "b", "c"):
        child = start(CLIENT, worker.listener.names[0], name)
        worker.wait_known(name)
        child.kill()
        worker.wait_for(lambda name=name: name in worker.lost)
    fds = [worker.listener._table.peers[peer].fd for peer, name in worker.names.items() if name == "steady"]
    assert len(fds) == 1
    assert set(worker.lost) == {"a", "b", "c"}
    assert steady.poll() is None


def connect_to(child, on_lost):
    endpoint = parse_endpoint(child.stdout.readline().strip())
    arrived = threading.Event()
    channel = connect(
        endpoint, load_registry().transport_for(endpoint.scheme), on_message=lambda frames: arrived.set(),
        on_lost=on_lost, options=FabricOptions(heartbeat_timeout_ms=HEARTBEAT_MS),
    )  # fmt: skip
    channel.send([b"hello"])
    assert arrived.wait(WAIT_S)
    return channel


@pytest.mark.parametrize(
    ("number", "within_s"), [(signal.SIGKILL, SMALL_S), (signal.SIGSTOP, HEARTBEAT_MS / 1000 + SMALL_S)]
)
@pytest.mark.parametrize("scheme", ["tcp", "ipc"])
def test_a_dead_or_stopped_worker_is_noticed_once(start, tmp_path, number, within_s, scheme):
    child = start(WORKER, "127.0.0.1:0" if scheme == "tcp" else f"ipc://{tmp_path}/socket")
    lost = []
    told = threading.Event()
    channel = connect_to(child, lambda error: (lost.append(error), told.set()))
    before = time.monotonic()
    child.send_signal(number)
    assert told.wait(WAIT_S)
    assert time.monotonic() - before < within_s
    with pytest.raises(WorkerLostError, match=channel.name):
        channel.send([b"x"])
    time.sleep(0.2)
    assert len(lost) == 1
    assert isinstance(lost[0], WorkerLostError)


def test_bytes_under_way_to_a_stopped_worker_are_given_up(start):
    child = start(WORKER, "127.0.0.1:0")
    told = threading.Event()
    channel = connect_to(child, lambda error: told.set())
    os.kill(child.pid, signal.SIGSTOP)
    ticket = channel.send([bytes(64 << 20)])
    assert told.wait(WAIT_S)
    ticket.wait(WAIT_S)
    start_s = time.monotonic()
    channel.abort()
    assert time.monotonic() - start_s < SMALL_S
