"""Plans and runs graphs over several devices; splits a model's layers between them."""

from rpc_backend.scheduler.execution import Execution
from rpc_backend.scheduler.executor import Scheduler, device_facts
from rpc_backend.scheduler.handover import Given, Handover
from rpc_backend.scheduler.layer_split import DeviceMemory, DeviceShare, LayerSplit, ModelSizes, plan_layers
from rpc_backend.scheduler.plan import Copy, DeviceFacts, GraphPlan, Input, Slot, Split, plan_graph
from rpc_backend.scheduler.run import Run
from rpc_backend.scheduler.split_request import SplitKind, SplitRequest, parse_split
from rpc_backend.text import human_nbytes

__all__ = [
    "Copy", "DeviceFacts", "DeviceMemory", "DeviceShare", "Execution", "Given", "GraphPlan", "Handover", "Input",
    "LayerSplit", "ModelSizes", "Run", "Scheduler", "Slot", "Split", "SplitKind", "SplitRequest", "device_facts",
    "human_nbytes", "parse_split", "plan_graph", "plan_layers",
]  # fmt: skip
