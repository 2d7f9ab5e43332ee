"""Commands about the connection itself.

Belongs here: greeting, goodbye, signs of life, counts. Must not be here: memory or compute.
"""

from __future__ import annotations

from dataclasses import replace

from rpc_backend.fabric import offer_records, read_offers
from rpc_backend.protocol.commands import DEVICE_COUNT, GOODBYE, HELLO, PING, STATS, SYNCHRONIZE
from rpc_backend.protocol.negotiation import Greeting, negotiate
from rpc_backend.protocol.records import Count, Empty, HelloReply, Stats
from rpc_backend.worker.calls import Call, Outcome, handles
from rpc_backend.worker.state import WorkerState


@handles(HELLO)
def hello(state: WorkerState, call: Call) -> Outcome[HelloReply]:
    """Open a session, if both sides have common ground."""
    ours = state.greeting
    agreement = negotiate(Greeting.of(call.request), ours)
    offers = read_offers(call.request.links) if agreement.has_links else []
    session = state.sessions.open(call.link.peer, agreement)
    state.weights.refresh()
    reply = HelloReply(
        major=ours.major,
        minor=ours.minor,
        op_digest=ours.op_digest,
        build=ours.build,
        abilities=list(ours.abilities),
        session=session.id,
        epoch=session.epoch,
        devices=[[seat.device.info.name, seat.device.info.description, seat.device.info.kind] for seat in state.seats],
        max_payload_nbytes=state.config.max_payload_nbytes,
        max_queued_nbytes=state.config.max_queued_nbytes,
        links=offer_records(call.link.take_up(offers)),
    )
    return Outcome(reply, afterwards=lambda: call.link.agree(agreement.minor))


@handles(GOODBYE)
def goodbye(state: WorkerState, call: Call) -> None:
    """Close the session; what it has queued is dropped, what it holds is freed."""
    state.end_session(call.link.peer, "the client said GOODBYE")


@handles(PING)
def ping(state: WorkerState, call: Call) -> Empty:
    """Answer at once."""
    return Empty()


@handles(STATS)
def stats(state: WorkerState, call: Call) -> Stats:
    """Give the counters."""
    carried = {
        name: [counts.links, counts.payloads_in, counts.nbytes_in, counts.payloads_out, counts.nbytes_out]
        for name, counts in state.carried().items()
    }
    counts = state.counters.snapshot(len(state.sessions))
    return replace(counts, weights=state.weights.counts(), carried=carried)


@handles(DEVICE_COUNT)
def device_count(state: WorkerState, call: Call) -> Count:
    """Count the devices."""
    return Count(len(state.seats))


@handles(SYNCHRONIZE)
def synchronize(state: WorkerState, call: Call) -> Empty:
    """Answer: all before it on the stream has run."""
    state.seat(call.stream).stream.synchronize()
    return Empty()
