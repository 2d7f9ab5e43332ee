"""Commands that compute graphs.

Belongs here: compiling and running. Must not be here: which plans are kept (`graph_cache`).
"""

from __future__ import annotations

from rpc_backend.graph import graph_digest
from rpc_backend.protocol.commands import GRAPH_COMPUTE, GRAPH_RECOMPUTE
from rpc_backend.protocol.records import Result
from rpc_backend.worker.calls import Call, Outcome, handles
from rpc_backend.worker.devices import check_supported
from rpc_backend.worker.state import WorkerState
from rpc_backend.worker.tasks import run_plan
from rpc_backend.worker.tensors import check_stream, decode_placed_graph


@handles(GRAPH_COMPUTE)
def graph_compute(state: WorkerState, call: Call) -> None:
    """Compile a graph, unless one of equal content is known, and run it."""
    check_stream(call, call.request.device)
    seat = state.seat(call.request.device)
    graphs = call.session.streams[seat.index].graphs
    digest = graph_digest(call.request.graph)
    plan = graphs.find(digest)
    if plan is None:
        graph, handles = decode_placed_graph(state, call.session, seat.index, call.request.graph)
        check_supported(seat.device, graph)
        plan = seat.device.compile(graph)
        graphs.add(digest, plan, handles)
    run_plan(plan, seat.stream)


@handles(GRAPH_RECOMPUTE)
def graph_recompute(state: WorkerState, call: Call) -> Outcome[Result]:
    """Say whether a graph is known, and then run it.

    The answer goes out before the graph runs, so that the client can queue what follows; an error of the run is
    an error of the stream, as with GRAPH_COMPUTE.
    """
    check_stream(call, call.request.device)
    seat = state.seat(call.request.device)
    plan = call.session.streams[seat.index].graphs.find(call.request.digest)
    if plan is None:
        return Outcome(Result(False))
    return Outcome(Result(True), afterwards=lambda: run_plan(plan, seat.stream))
