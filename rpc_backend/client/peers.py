"""Which other workers a worker can send to, as agreed with both.

Belongs here: the agreement, made once per pair. Must not be here: what is sent, or when.
"""

from __future__ import annotations

import logging
import threading
import weakref

from rpc_backend.client.dispatcher import Dispatcher
from rpc_backend.errors import RpcBackendError
from rpc_backend.protocol.commands import COPY_TENSOR_TO, PEER_ADMIT, PEER_CONNECT
from rpc_backend.protocol.peer_secrets import make_secret
from rpc_backend.protocol.records import PeerAdmit, PeerConnect

_ANSWER_TIMEOUT_S = 30.0
_LOG = logging.getLogger(__name__)


class Peers:
    """The ways from the worker of one connection to others. Any thread may call it."""

    def __init__(self, dispatcher: Dispatcher) -> None:
        self._dispatcher = dispatcher
        self._lock = threading.Lock()
        self._ways: weakref.WeakKeyDictionary[Dispatcher, bool] = weakref.WeakKeyDictionary()

    def open(self, target: Dispatcher) -> bool:
        """Return whether the worker can send to another one; ask both the first time. Waits for their answers."""
        if not _may(self._dispatcher) or not _may(target):
            return False
        with self._lock:
            if target not in self._ways:
                self._ways[target] = self._ask(target)
            return self._ways[target]

    def is_open(self, target: Dispatcher) -> bool:
        """Whether the worker is known to be able to send to another one; asks nobody."""
        return self._ways.get(target, False)

    def give_up(self, target: Dispatcher, reason: str) -> None:
        """Take the way through this process from now on."""
        if self._ways.get(target, False):
            self._ways[target] = False
            _LOG.warning("%s to %s: tensors go through this process: %s", self._dispatcher.name, target.name, reason)

    def _ask(self, target: Dispatcher) -> bool:
        secret = make_secret()
        try:
            target.call(PEER_ADMIT, PeerAdmit(secret), timeout_s=_ANSWER_TIMEOUT_S)
            request = PeerConnect(target.name, secret)
            stands = self._dispatcher.call(PEER_CONNECT, request, timeout_s=_ANSWER_TIMEOUT_S).result
            reason = "the first cannot or may not connect to the second; see its log"
        except RpcBackendError as error:  # an older worker; one that is gone is noticed by what is sent to it
            stands, reason = False, str(error)
        if not stands:
            _LOG.warning("%s to %s: tensors go through this process: %s", self._dispatcher.name, target.name, reason)
        return stands


def _may(dispatcher: Dispatcher) -> bool:
    return dispatcher.minor >= COPY_TENSOR_TO.since and dispatcher.settings.p2p
