"""An open software device: its address, its thread, and the queue pairs that peers may reach.

Belongs here: who may send to which queue pair, and what each is attended for. Must not be here: the objects that a
program calls.
"""

from __future__ import annotations

import random
import threading
from dataclasses import dataclass

from rpc_transport_rdma.soft import addresses
from rpc_transport_rdma.soft.completions import CQ
from rpc_transport_rdma.soft.frames import Hello
from rpc_transport_rdma.soft.memory import LockedPages, RegionTable
from rpc_transport_rdma.soft.nic import READABLE, Nic
from rpc_transport_rdma.soft.options import SoftOptions
from rpc_transport_rdma.soft.queues import Queues
from rpc_transport_rdma.soft.receiver import Receiver
from rpc_transport_rdma.soft.sender import Sender
from rpc_transport_rdma.soft.values import QPCap
from rpc_transport_rdma.verbs import QPState

_FIRST_QPN, _LAST_QPN = 2, (1 << 24) - 1  # 0 and 1 are the management queue pairs
_MOST_CONNECTIONS = 256


@dataclass
class _Halves:
    """The connections of one queue pair."""

    sender: Sender
    receiver: Receiver | None = None


class OpenDevice:
    """Joins queue pairs with connections. `add`, `ring` and `stop` are for any thread."""

    def __init__(self, options: SoftOptions, locked: LockedPages) -> None:
        """Listen, and start the device's thread."""
        self.options, self.regions = options, RegionTable(locked)
        self._listener, self.gid, self.lid = addresses.listen(options.address)
        self._queues: dict[int, Queues] = {}
        self._halves: dict[int, _Halves] = {}
        self._connections: set[Receiver] = set()
        self._lock = threading.Lock()
        self._polls_left = options.vanish_after
        self._nic = Nic("soft-verbs", self._attend, self._shut)
        self._nic.ring(None)

    def add(self, cap: QPCap, queues: tuple[CQ, CQ], signal_all: bool, owner_pd: int) -> Queues:
        """Make the queues of a queue pair with a random number."""
        with self._lock:
            qp_num = random.randint(_FIRST_QPN, _LAST_QPN)
            while qp_num in self._queues:
                qp_num = random.randint(_FIRST_QPN, _LAST_QPN)
            made = Queues(qp_num, cap, queues, signal_all, owner_pd, self.regions, self.options, self)
            self._queues[qp_num] = made
        return made

    def ring(self, queues: Queues) -> None:
        """Have a queue pair attended."""
        self._nic.ring(queues)

    def attend_now(self, queues: Queues) -> None:
        """Attend a queue pair in the calling thread if that is possible."""
        self._nic.attend_now(queues)

    def poll_limit(self, asked: int) -> int:
        """Return how many completions one call of `poll` may hand out."""
        most = 1 if self.options.one_at_a_time else asked
        return most if self._polls_left is None else min(most, self._polls_left)

    def count_polled(self, count: int) -> None:
        """Vanish once as many completions were handed out as the options say."""
        if self._polls_left is not None and count:
            self._polls_left -= count
            if self._polls_left == 0:
                self._nic.vanish()

    def stop(self, wait: bool) -> None:
        """End the thread and close everything."""
        self._nic.stop(wait)

    # The device's thread

    def _attend(self, queues: Queues | None) -> None:
        if queues is None:
            self._nic.watch(self._listener.fileno(), READABLE, self._accept)
            return
        halves = self._halves.get(queues.qp_num)
        if halves is None:
            if queues.closed:
                self._queues.pop(queues.qp_num, None)
                return
            halves = self._halves[queues.qp_num] = _Halves(Sender(self._nic, queues, self.gid))
        if queues.closed:
            self._remove(queues.qp_num)
            return
        if queues.state == QPState.ERR:
            halves.sender.close()
        else:
            halves.sender.progress()
        if halves.receiver is not None:
            halves.receiver.progress()

    def _remove(self, qp_num: int) -> None:
        halves = self._halves.pop(qp_num)
        self._queues.pop(qp_num, None)
        halves.sender.close()
        if halves.receiver is not None:
            halves.receiver.close()

    def _accept(self, _: int) -> None:
        connection = addresses.accept(self._listener)
        if connection is None:
            return
        if len(self._connections) >= _MOST_CONNECTIONS:
            connection.close()
        else:
            self._connections.add(Receiver(self._nic, connection, self._find, self._left))

    def _find(self, hello: Hello, receiver: Receiver) -> Queues | None:
        """Return the queue pair that expects this sender: not ready, another peer or another start is silence."""
        queues = self._queues.get(hello.target)
        halves = self._halves.get(hello.target)
        if queues is None or halves is None or halves.receiver is not None or not queues.is_alive:
            return None
        path = queues.path
        expected = (path.qp_num, path.gid, path.receive_psn, self.gid)
        if (hello.source, hello.source_gid, hello.psn, hello.target_gid) != expected:
            return None
        halves.receiver = receiver
        return queues

    def _left(self, receiver: Receiver) -> None:
        self._connections.discard(receiver)
        for halves in self._halves.values():
            if halves.receiver is receiver:
                halves.receiver = None

    def _shut(self) -> None:
        for qp_num in list(self._halves):
            self._remove(qp_num)
        for receiver in list(self._connections):
            receiver.close()
        self._nic.forget(self._listener.fileno())
        self._listener.close()
