"""One graph, planned and compiled: set inputs, run, read outputs.

Belongs here: the state of an execution. Must not be here: planning, or how a step is done.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from rpc_backend.errors import DeviceError, GraphError, RpcBackendError
from rpc_backend.graph import Tensor
from rpc_backend.scheduler.materialize import Materialization
from rpc_backend.scheduler.plan import GraphPlan
from rpc_backend.scheduler.steps import Bytes, Read, Step, perform
from rpc_backend.scheduler.workspace import Workspace


class Execution:
    """A graph that is ready to run on the devices of a scheduler, any number of times.

    Inputs keep their values from run to run. Outputs can be read until another execution of the same scheduler runs.
    """

    def __init__(self, plan: GraphPlan, workspace: Workspace) -> None:
        self.plan = plan
        self._workspace = workspace
        self._inputs: dict[Tensor, Bytes] = {
            item.tensor: np.zeros(item.tensor.nbytes, np.uint8) for item in plan.inputs
        }
        self._unset = dict.fromkeys(self._inputs)
        self._changed = dict.fromkeys(self._inputs)
        self._outputs = set(plan.outputs)
        self._closed = False
        self._made = self._materialize()
        workspace.users[self] = None

    def set_input(self, tensor: Tensor, values: npt.NDArray[Any]) -> None:
        """Give an input its values for the runs to come; they are copied.

        Shapes: as many elements as the tensor, in its memory order (numpy's axes are `ne` reversed), of the
        tensor's element type (BF16 as uint16, a quantised type as its bytes).

        Raises:
            GraphError: no input of this graph, or other element type or size.
        """
        memory = self._inputs.get(tensor)
        if memory is None:
            raise GraphError(f"{tensor} is no input of this graph; inputs: {_names(self._inputs)}")
        _check_array(tensor, values)
        memory[:] = np.ascontiguousarray(values).reshape(-1).view(np.uint8)
        self._unset.pop(tensor, None)
        self._changed[tensor] = None

    def run(self) -> None:
        """Run the graph once.

        Raises:
            GraphError: an input was never set.
            ComputeError: a node failed. The execution can be run again.
            RpcBackendError: other failures of a device or of the way to it.
        """
        for step in self.steps():
            perform(self._workspace, step)
        self._workspace.owner = self

    def steps(self) -> list[Step]:
        """Return what the next run does, in order: writes of inputs, then transfers and splits.

        An input that the devices still hold is not written again. From here on the compute buffers belong to
        nobody, until a run completes.

        Raises:
            GraphError: an input was never set.
        """
        self._check_open()
        if self._unset:
            raise GraphError(f"inputs were never set: {_names(self._unset)}")
        if self._made.generation != self._workspace.generation:
            self._made.close()
            self._made = self._materialize()
        stale = self._changed if self._workspace.owner is self else self._inputs
        writes = [write for tensor in stale for write in self._made.writes[tensor]]
        self._workspace.owner = None
        self._changed = {}
        return [*writes, *self._made.steps]

    def get_output(self, tensor: Tensor, out: npt.NDArray[Any] | None = None) -> npt.NDArray[Any]:
        """Read an output of the last run, into `out` if given.

        Shapes: `ne` reversed, in the tensor's element type (BF16 as uint16); a quantised tensor comes as flat bytes.

        Raises:
            GraphError: no output of this graph, no run to read from, an unfit `out`, or a tensor with gaps.
            ComputeError: a node of the run failed, where devices compute after `run` has returned.
        """
        self._check_open()
        if tensor not in self._outputs:
            raise GraphError(f"{tensor} is no output of this graph; outputs: {_names(self.plan.outputs)}")
        if self._workspace.owner is not self:
            raise GraphError(f"there is no {tensor} to read: the last thing that ran was not this execution")
        if not tensor.is_contiguous:
            raise GraphError(f"{tensor} has gaps between its elements; make it contiguous (CONT) to read it")
        result = _empty_array(tensor) if out is None else out
        _check_array(tensor, result)
        if not result.flags.c_contiguous or not result.flags.writeable:
            raise GraphError(f"the array for {tensor} must be contiguous and writeable")
        device, placed = self._made.tensor(tensor)
        try:
            perform(self._workspace, Read(device, placed, result.reshape(-1).view(np.uint8)))
        except RpcBackendError:
            self._workspace.owner = None
            raise
        return result

    def close(self) -> None:
        """Give back the compiled plans. A second call does nothing."""
        if not self._closed:
            self._closed = True
            self._workspace.users.pop(self, None)
            self._made.close()

    def _materialize(self) -> Materialization:
        self._workspace.reserve(self.plan.compute_nbytes)
        return Materialization(self.plan, self._workspace, self._inputs)

    def _check_open(self) -> None:
        self._workspace.check_open()
        if self._closed:
            raise DeviceError("the execution is closed")


def _empty_array(tensor: Tensor) -> npt.NDArray[Any]:
    if tensor.type.dtype is None:
        return np.empty(tensor.nbytes, np.uint8)
    return np.empty(tensor.ne[::-1], tensor.type.dtype)


def _check_array(tensor: Tensor, array: npt.NDArray[Any]) -> None:
    dtype = tensor.type.dtype or np.dtype(np.uint8)
    if array.dtype != dtype or array.nbytes != tensor.nbytes:
        raise GraphError(
            f"{tensor} takes {tensor.nbytes} bytes of {dtype}, the array has {array.nbytes} bytes of {array.dtype}"
        )


def _names(tensors: Mapping[Tensor, object] | tuple[Tensor, ...]) -> str:
    return ", ".join(str(tensor) for tensor in tensors) or "none"
