"""One graph, planned and compiled: start runs of it, or set inputs, run and read outputs step by step.

Belongs here: the state of an execution. Must not be here: planning, or how a run or a step is done.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from rpc_backend.errors import DeviceError, GraphError, RpcBackendError
from rpc_backend.graph import Tensor
from rpc_backend.scheduler.chain import NOTHING_TAKEN, Chain
from rpc_backend.scheduler.handover import NO_HANDOVER, Given, Handover
from rpc_backend.scheduler.materialize import Materialization
from rpc_backend.scheduler.plan import GraphPlan
from rpc_backend.scheduler.run import Run
from rpc_backend.scheduler.steps import Read, Step, Write, perform, perform_all, recover
from rpc_backend.scheduler.values import Bytes, check_array, check_readable, empty_array, names
from rpc_backend.scheduler.workspace import Workspace

_NOTHING = memoryview(b"")


class Execution:
    """A graph that is ready to run on the devices of a scheduler, any number of times.

    There are two ways. `start` takes all inputs and returns at once; many runs, of this and other executions, may be
    under way. `set_input`, `run` and `get_output` go step by step, after all runs under way: inputs keep their values
    from run to run, and outputs can be read until something else runs.
    """

    def __init__(self, plan: GraphPlan, workspace: Workspace, handover: Handover) -> None:
        self.plan = plan
        self._workspace = workspace
        self._handover = handover
        self._inputs: dict[Tensor, Bytes] = {
            item.tensor: np.zeros(item.tensor.nbytes, np.uint8) for item in plan.inputs
        }
        self._takes = [
            (tensor, tensor.type.dtype or np.dtype(np.uint8), memory.size) for tensor, memory in self._inputs.items()
        ]
        self._unset = dict.fromkeys(self._inputs)
        self._changed = dict.fromkeys(self._inputs)
        self._outputs = set(plan.outputs)
        self._closed = False
        self._made = self._materialize()
        workspace.users[self] = None

    @property
    def hands_over(self) -> bool:
        """Whether runs can give and take what they were prepared to; if not, `start` refuses."""
        return self._made.chain is not None

    def start(self, inputs: Mapping[Tensor, npt.NDArray[Any]], taken: Mapping[Tensor, Given] = NOTHING_TAKEN) -> Run:
        """Start a run with these inputs, all of them, and return at once; the values are copied.

        On each device runs take their turns in the order of their starts, so a later run finds what an earlier one
        left in memory. A graph that visits a device twice shares it with no other run: it waits here for all before
        it, and those after it for it. With a synchronous scheduler, or a plan that needs something of a device
        that it did not visit before, the run is done on return.

        `taken` has, for each tensor that a run takes, what an earlier run gave; that run need not be done.

        Not for callbacks of a run's future, as it may wait. What goes wrong in the run is raised by the `Run`.

        Shapes: as `set_input`.
        Raises:
            GraphError: an input is missing, unknown, or of other element type or size; what is taken is not what the
                graph takes, or the graph cannot hand over.
            DeadlineError: runs to wait for are not done in time.
        """
        self._check_open()
        values = self._owned(inputs)
        self._refresh()
        chain = self._made.chain
        if chain is None:
            if self._handover != NO_HANDOVER:
                raise GraphError("this graph cannot hand over tensors: it runs step by step on these devices")
            return self._run_now(values)
        _check_taken(chain, taken)
        self._workspace.owner = None
        return self._workspace.pipeline.start(chain, values, taken)

    def set_input(self, tensor: Tensor, values: npt.NDArray[Any]) -> None:
        """Give an input its values for the calls of `run` to come; they are copied.

        Shapes: as many elements as the tensor, in its memory order (numpy's axes are `ne` reversed), of the
        tensor's element type (BF16 as uint16, a quantised type as its bytes).

        Raises:
            GraphError: no input of this graph, or other element type or size.
        """
        memory = self._inputs.get(tensor)
        if memory is None:
            raise GraphError(f"{tensor} is no input of this graph; inputs: {names(self._inputs)}")
        check_array(tensor, values)
        memory[:] = np.ascontiguousarray(values).reshape(-1).view(np.uint8)
        self._unset.pop(tensor, None)
        self._changed[tensor] = None

    def run(self) -> None:
        """Run the graph once; devices of other processes may still be at it on return.

        Raises:
            GraphError: an input was never set.
            ComputeError: a node failed. The execution can be run again.
            RpcBackendError: other failures of a device or of the way to it.
        """
        perform_all(self._workspace, self.steps())
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
            raise GraphError(f"inputs were never set: {names(self._unset)}")
        self._refresh()
        stale = self._changed if self._workspace.owner is self else self._inputs
        self._changed = {}
        return self._steps((tensor, self._inputs[tensor]) for tensor in stale)

    def get_output(self, tensor: Tensor, out: npt.NDArray[Any] | None = None) -> npt.NDArray[Any]:
        """Read an output of the last `run`, into `out` if given.

        Shapes: `ne` reversed, in the tensor's element type (BF16 as uint16); a quantised tensor comes as flat bytes.

        Raises:
            GraphError: no output of this graph, no run to read from, an unfit `out`, or a tensor with gaps.
            ComputeError: a node of the run failed, where devices compute after `run` has returned.
        """
        self._check_open()
        if tensor not in self._outputs:
            raise GraphError(f"{tensor} is no output of this graph; outputs: {names(self.plan.outputs)}")
        if self._workspace.owner is not self:
            raise GraphError(f"there is no {tensor} to read: the last thing that ran was not this execution")
        check_readable(tensor)
        result = empty_array(tensor) if out is None else out
        check_array(tensor, result)
        if not result.flags.c_contiguous or not result.flags.writeable:
            raise GraphError(f"the array for {tensor} must be contiguous and writeable")
        try:
            self._read(tensor, result.reshape(-1).view(np.uint8))
        except RpcBackendError:
            self._workspace.owner = None
            raise
        return result

    def close(self) -> None:
        """Give back the compiled plans, when the runs of this execution are done. A second call does nothing.

        Raises:
            DeadlineError: a run is not done in time; the plans are closed all the same.
        """
        if self._closed:
            return
        self._closed = True
        self._workspace.users.pop(self, None)
        try:
            if self._made.chain is not None and not self._workspace.is_closed:
                self._workspace.pipeline.wait_idle(self._made.chain)
        finally:
            self._made.close()

    def _run_now(self, values: list[memoryview]) -> Run:
        """Do a run step by step; what goes wrong is the run's."""
        run = Run(self.plan.outputs, 0.0, str)
        own = [np.frombuffer(value, np.uint8) for value in values]
        try:
            perform_all(self._workspace, self._steps(zip(self._inputs, own, strict=True)))
            outputs: dict[Tensor, memoryview] = {}
            for tensor in self.plan.outputs:
                if tensor.is_contiguous:
                    memory = np.empty(tensor.nbytes, np.uint8)
                    self._read(tensor, memory)
                    outputs[tensor] = memory.data
        except RpcBackendError as error:
            run.fail(error)
        else:
            run.succeed(outputs)
        return run

    def _steps(self, values: Iterable[tuple[Tensor, Bytes]]) -> list[Step]:
        self._workspace.pipeline.wait_idle()
        self._workspace.owner = None
        writes = [
            Write(device, placed, memory) for tensor, memory in values for device, placed in self._made.writes[tensor]
        ]
        return [*writes, *self._made.steps]

    def _read(self, tensor: Tensor, memory: Bytes) -> None:
        device, placed = self._made.tensor(tensor)
        try:
            perform(self._workspace, Read(device, placed, memory))
        except RpcBackendError as error:
            recover(self._workspace, error)
            raise

    def _owned(self, inputs: Mapping[Tensor, npt.NDArray[Any]]) -> list[memoryview]:
        """Return the bytes of all inputs, in the plan's order, copied."""
        values: list[memoryview] = []
        for tensor, dtype, nbytes in self._takes:
            if tensor in self._handover.takes:
                values.append(_NOTHING)
                continue
            array = inputs.get(tensor)
            if array is None:
                missing = [tensor for tensor in self._inputs if tensor not in (*inputs, *self._handover.takes)]
                raise GraphError(f"inputs are missing: {names(missing)}")
            if array.nbytes != nbytes or array.dtype != dtype:
                check_array(tensor, array)
            values.append(memoryview(array.tobytes()))
        if len(inputs) + len(self._handover.takes) != len(values):
            unknown = [tensor for tensor in inputs if tensor not in self._inputs or tensor in self._handover.takes]
            raise GraphError(f"{names(unknown)}: no input of this graph; inputs: {names(self._inputs)}")
        return values

    def _refresh(self) -> None:
        """Place everything again if the compute buffers were replaced; no run is under way then."""
        if self._made.generation != self._workspace.generation:
            self._made.close()
            self._made = self._materialize()

    def _materialize(self) -> Materialization:
        self._workspace.reserve(self.plan.compute_nbytes)
        return Materialization(self.plan, self._workspace, self._handover)

    def _check_open(self) -> None:
        self._workspace.check_open()
        if self._closed:
            raise DeviceError("the execution is closed")


def _check_taken(chain: Chain, taken: Mapping[Tensor, Given]) -> None:
    if taken.keys() != chain.takes.keys():
        raise GraphError(f"the run takes {names(chain.takes)} of an earlier one, not {names(taken)}")
    for tensor, given in taken.items():
        if given.device_index != chain.takes[tensor][0] or not given.is_open:
            raise GraphError(
                f"{given.tensor} was given to another device, or is taken or discarded: {tensor} is not it"
            )
        if (given.tensor.type, given.tensor.ne) != (tensor.type, tensor.ne):
            raise GraphError(f"{given.tensor} was given, which does not fit {tensor}")
