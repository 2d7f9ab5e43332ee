"""Graph plans: a pure function from a graph, device facts and a placement to splits, copies and memory."""

from rpc_backend.scheduler.plan.planner import plan_graph
from rpc_backend.scheduler.plan.records import Copy, DeviceFacts, GraphPlan, Input, Slot, Split

__all__ = ["Copy", "DeviceFacts", "GraphPlan", "Input", "Slot", "Split", "plan_graph"]
