"""Tensors that other workers sent, until the task comes that waits for them.

Belongs here: tickets, who waits, how much is kept. Must not be here: links (`peers`), or tasks (`tasks`).

A ticket is named by whoever planned the transfer: 16 unguessable bytes, which are all that a sender or receiver must
know. What is kept counts towards what the sender's session may have waiting, and goes with that session.
"""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import astuple, dataclass

from rpc_backend.errors import DeadlineError, LimitError, SessionError
from rpc_backend.protocol import decode_error, encode_error
from rpc_backend.protocol.records import Failure
from rpc_backend.worker.sessions import Session

_MAX_BURIED = 1024
_LETTER_OVERHEAD_NBYTES = 512


@dataclass(frozen=True, slots=True)
class _Letter:
    """What came under a ticket: bytes, or why there are none."""

    content: memoryview | Failure
    sender: Session
    nbytes: int


@dataclass(frozen=True, slots=True)
class _Waiter:
    """Who waits for a ticket, since when."""

    wake: Callable[[], None]
    since_s: float


class Mailbox:
    """The tickets of one worker. Any thread may call it; `wake` is called without its lock held."""

    def __init__(self, limit_nbytes: int, timeout_s: float, *, clock: Callable[[], float] = time.monotonic) -> None:
        """`limit_nbytes` is what one session may have waiting, `timeout_s` how long a task waits for a ticket."""
        self._limit_nbytes = limit_nbytes
        self._timeout_s = timeout_s
        self._clock = clock
        self._lock = threading.Lock()
        self._letters: dict[bytes, _Letter] = {}
        self._waiters: dict[bytes, _Waiter] = {}
        self._buried: OrderedDict[bytes, None] = OrderedDict()

    def __len__(self) -> int:
        return len(self._letters)

    def put(self, ticket: bytes, data: memoryview, sender: Session) -> None:
        """Keep bytes that came; nobody will ask for a buried ticket, so its bytes are dropped.

        Raises:
            LimitError: the sender has too much waiting. Whoever waits for the ticket is told.
            SessionError: other bytes are kept under this ticket already.
        """
        try:
            earlier = self._add(ticket, data, data.nbytes + _LETTER_OVERHEAD_NBYTES, sender)
        except LimitError as error:
            self.fail(ticket, encode_error(error), sender)
            raise
        if earlier is not None and not isinstance(earlier.content, Failure):
            raise SessionError("a tensor came under a ticket that is in use; a ticket is used once")

    def fail(self, ticket: bytes, failure: Failure, sender: Session) -> None:
        """Keep why nothing will come, unless something came. Raises LimitError as `put`."""
        nbytes = sum(len(text) for text in astuple(failure) if isinstance(text, str))
        self._add(ticket, failure, nbytes + _LETTER_OVERHEAD_NBYTES, sender)

    def wait_s(self, tickets: Iterable[bytes], wake: Callable[[], None]) -> float:
        """Return how long a task may still wait for its tickets: 0 if all came, one failed, or the time is up.

        `wake` is called once when one of those that are missing comes.
        """
        with self._lock:
            missing = []
            for ticket in tickets:
                letter = self._letters.get(ticket)
                if letter is None:
                    missing.append(ticket)
                elif isinstance(letter.content, Failure):
                    return 0.0
            if not missing:
                return 0.0
            now_s = self._clock()
            waiters = [self._waiters.setdefault(ticket, _Waiter(wake, now_s)) for ticket in missing]
            return max(0.0, min(waiter.since_s for waiter in waiters) + self._timeout_s - now_s)

    def take(self, tickets: Sequence[bytes]) -> list[memoryview]:
        """Return the bytes of all tickets of a task, in order; none of them can be asked for again.

        Raises:
            DeadlineError: one has not come.
            RpcBackendError: what its sender said.
        """
        letters = self.bury(tickets)
        contents: list[memoryview] = []
        for index, letter in enumerate(letters):
            if letter is None:
                raise DeadlineError(
                    f"input {index} of the task, due from another worker, did not come within {self._timeout_s:g} s"
                )
            if isinstance(letter.content, Failure):
                raise decode_error(letter.content)
            contents.append(letter.content)
        return contents

    def bury(self, tickets: Sequence[bytes]) -> list[_Letter | None]:
        """Return what came under tickets, and drop whatever still comes."""
        with self._lock:
            letters = [self._letters.pop(ticket, None) for ticket in tickets]
            for ticket in tickets:
                self._waiters.pop(ticket, None)
                self._buried[ticket] = None
            while len(self._buried) > _MAX_BURIED:
                self._buried.popitem(last=False)
        for letter in letters:
            if letter is not None:
                letter.sender.unqueue(letter.nbytes)
        return letters

    def drop_sender(self, sender: Session) -> None:
        """Forget all that a session sent."""
        with self._lock:
            gone = [ticket for ticket, letter in self._letters.items() if letter.sender is sender]
            letters = [self._letters.pop(ticket) for ticket in gone]
        for letter in letters:
            sender.unqueue(letter.nbytes)

    def _add(self, ticket: bytes, content: memoryview | Failure, nbytes: int, sender: Session) -> _Letter | None:
        """Keep a letter and wake who waits for it; return the one that is there already, which stays."""
        sender.queue(nbytes, self._limit_nbytes)
        with self._lock:
            earlier = self._letters.get(ticket)
            is_kept = earlier is None and ticket not in self._buried
            if is_kept:
                self._letters[ticket] = _Letter(content, sender, nbytes)
            waiter = self._waiters.pop(ticket, None) if is_kept else None
        if not is_kept:
            sender.unqueue(nbytes)
        if waiter is not None:
            waiter.wake()
        return earlier
