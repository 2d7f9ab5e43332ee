"""Commands that compute graphs.

Belongs here: compiling and running. Must not be here: which plans are kept (`graph_cache`).
"""

from __future__ import annotations

from rpc_backend.errors import ComputeError, ErrorContext, RpcBackendError, UnsupportedOpError
from rpc_backend.graph import Graph, graph_digest
from rpc_backend.interfaces import Device, Plan
from rpc_backend.protocol.commands import GRAPH_COMPUTE, GRAPH_RECOMPUTE
from rpc_backend.protocol.records import Result
from rpc_backend.worker.calls import Call, Outcome, handles
from rpc_backend.worker.state import Seat, WorkerState
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
        _check_supported(seat.device, graph)
        plan = seat.device.compile(graph)
        graphs.add(digest, plan, handles)
    _run(seat, plan)


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
    return Outcome(Result(True), afterwards=lambda: _run(seat, plan))


def _check_supported(device: Device, graph: Graph) -> None:
    for node, supported in zip(graph.nodes, device.supports_ops(graph.nodes), strict=True):
        if not supported:
            name = node.op.name if node.op else ""
            kinds = ", ".join(source.type.name for source in node.sources)
            raise UnsupportedOpError(
                f"device {device.info.name} does not run {node} of {kinds}",
                context=ErrorContext(device=device.info.name, op=name),
            )


def _run(seat: Seat, plan: Plan) -> None:
    try:
        seat.stream.compute(plan)
        seat.stream.synchronize()
    except (RpcBackendError, MemoryError):
        raise
    except Exception as error:
        raise ComputeError(f"{type(error).__name__}: {error}") from error
