"""The work of a stream that went out and is not finished.

Belongs here: its order, and how much there is of it. Must not be here: sending, waiting.
"""

from __future__ import annotations

from collections import deque

from rpc_backend.client.work import Work

_FENCE_EVERY_COMMANDS = 1024


class Flight:
    """Work in the order of sending. Not safe for threads.

    Answers come in that order: once one piece is answered, all before it are.
    """

    def __init__(self, window_nbytes: int) -> None:
        """`window_nbytes` is how much may be under way without an answer to come for it."""
        self._window_nbytes = window_nbytes
        self._works: deque[Work] = deque()
        self.nbytes = 0
        self.n_runs = 0
        self._n_answerable = 0
        self._unanswerable_nbytes = 0
        self._n_unanswerable = 0

    def __bool__(self) -> bool:
        return bool(self._works)

    @property
    def first(self) -> Work:
        return self._works[0]

    @property
    def last(self) -> Work:
        return self._works[-1]

    @property
    def is_questioning(self) -> bool:
        """Whether nothing may be sent before an answer to the last piece."""
        return bool(self._works) and self._works[-1].is_question

    @property
    def is_answerable(self) -> bool:
        """Whether any piece will be answered."""
        return self._n_answerable > 0

    @property
    def needs_fence(self) -> bool:
        """Whether much has gone out since the last piece that will be answered."""
        return self._unanswerable_nbytes >= self._window_nbytes or self._n_unanswerable >= _FENCE_EVERY_COMMANDS

    def append(self, work: Work) -> None:
        """A piece went out."""
        self._works.append(work)
        self.nbytes += work.nbytes
        self.n_runs += work.is_run
        if work.answers:
            self._n_answerable += 1
            self._unanswerable_nbytes = self._n_unanswerable = 0
        else:
            self._unanswerable_nbytes += work.nbytes
            self._n_unanswerable += 1

    def find(self, sequence: int) -> Work | None:
        """Return the run without an answer that is the request of this number, which is not 0."""
        return next((work for work in self._works if work.sequence == sequence and sequence), None)

    def take_first(self) -> Work:
        """Remove the first piece: it is answered."""
        return self._remove(self._works.popleft())

    def take_refused(self) -> list[Work]:
        """Remove the first piece, which was refused, and the runs after it, which are then refused too."""
        first = self._works[0]
        refused = [work for work in self._works if work is first or work.is_run]
        self._works = deque(work for work in self._works if not (work is first or work.is_run))
        return [self._remove(work) for work in refused]

    def _remove(self, work: Work) -> Work:
        work.attempt += 1
        self.nbytes -= work.nbytes
        self.n_runs -= work.is_run
        self._n_answerable -= bool(work.answers)
        return work
