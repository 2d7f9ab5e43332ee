"""Commands that order the streams of a session.

Belongs here: marking and waiting. Must not be here: the counts (`worker.events`), or how a lane waits (`lanes`).
"""

from __future__ import annotations

import math
from functools import partial

from rpc_backend.protocol import decode_error
from rpc_backend.protocol.commands import EVENT_RECORD, EVENT_WAIT
from rpc_backend.worker.calls import Call, handles
from rpc_backend.worker.state import WorkerState


def _ask(state: WorkerState, call: Call) -> int:
    return call.session.events.ask(call.request.event)


def _asked(state: WorkerState, call: Call) -> int:
    return call.session.events.asked(call.request.event)


def _wait_s(state: WorkerState, call: Call) -> float:
    wake = partial(state.wake, call.stream, call.session.id)
    # The mark was asked for before this wait, on a stream that goes on: it is passed in the end.
    return 0.0 if call.session.events.is_passed(call.request.event, call.mark, wake) else math.inf


@handles(EVENT_RECORD, despite_error=True, arrive=_ask)
def event_record(state: WorkerState, call: Call) -> None:
    """Mark the point in the stream where all before it has run, or failed."""
    call.session.events.mark(call.request.event, call.mark, call.session.streams[call.stream].failure)


@handles(EVENT_WAIT, arrive=_asked, wait_s=_wait_s)
def event_wait(state: WorkerState, call: Call) -> None:
    """Go on, the mark is passed; if the other stream had failed there, what follows here cannot be right either."""
    failure = call.session.events.failure(call.request.event)
    if failure is not None:
        raise decode_error(failure)
