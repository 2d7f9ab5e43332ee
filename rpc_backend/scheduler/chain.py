"""A graph as a chain of stages, and one passage through it.

Belongs here: which bytes go into a stage and come out of it. Must not be here: when a stage runs (`pipeline`).
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from rpc_backend.graph import Tensor
from rpc_backend.interfaces import TICKET_NBYTES, Task, TaskRun
from rpc_backend.scheduler.handover import Given
from rpc_backend.scheduler.run import Run
from rpc_backend.scheduler.visits import Itinerary

NOTHING_TAKEN: Mapping[Tensor, Given] = {}


@dataclass(frozen=True, slots=True, eq=False)
class Stage:
    """A visit, ready to run any number of times. Numbers are positions: of inputs and tickets in a run, of stages.

    `carried` are (stage, position among its reads); `feeds` are the stages that wait for this one, `n_awaited` how
    many it waits for itself.
    """

    device: int
    task: Task
    inputs: tuple[int, ...]
    carried: tuple[tuple[int, int], ...]
    receive_tickets: tuple[int, ...]
    onward_tickets: tuple[int, ...]
    feeds: tuple[int, ...]
    n_awaited: int


@dataclass(frozen=True, slots=True, eq=False)
class Chain:
    """The stages of a graph; where its outputs are read, and what is handed over, as in `Itinerary`.

    `names` are all outputs that are read.
    """

    stages: tuple[Stage, ...]
    names: tuple[Tensor, ...]
    outputs: Mapping[Tensor, tuple[int, int]]
    n_tickets: int
    overlaps: bool
    gives: Mapping[Tensor, tuple[int, int]]
    takes: Mapping[Tensor, tuple[int, int]]


class Passage:
    """One run on its way through a chain. What changes is guarded by the lock of the pipeline."""

    def __init__(
        self, chain: Chain, values: Sequence[memoryview], run: Run, taken: Mapping[Tensor, Given] = NOTHING_TAKEN
    ) -> None:
        """`values` are the bytes of the inputs, owned by the passage; a tensor that is taken has none."""
        count = len(chain.stages)
        self.chain = chain
        self.run = run
        self.values = values
        secret = secrets.token_bytes(TICKET_NBYTES * chain.n_tickets)
        self.tickets = [secret[start : start + TICKET_NBYTES] for start in range(0, len(secret), TICKET_NBYTES)]
        for tensor, given in taken.items():
            self.tickets[chain.takes[tensor][1]] = given.take()
        self.results: list[Sequence[memoryview] | None] = [None] * count
        self.n_awaited = [stage.n_awaited for stage in chain.stages]
        self.n_open = count
        self.error: BaseException | None = None

    def task_run(self, stage: Stage) -> TaskRun:
        """Return what a stage is submitted with; its carried inputs have come."""
        values = [self.values[position] for position in stage.inputs]
        for source, position in stage.carried:
            results = self.results[source]
            assert results is not None, "a stage is submitted after those that it awaits"
            values.append(results[position])
        return TaskRun(
            tuple(values),
            tuple(self.tickets[number] for number in stage.receive_tickets),
            tuple(self.tickets[number] for number in stage.onward_tickets),
        )

    def is_unsure_of(self, device: int) -> bool:
        """Whether a stage on a device ended for the host when it was sent, as it gives nothing back."""
        return any(
            stage.device == device and stage.task.onward and not stage.task.reads and result is not None
            for stage, result in zip(self.chain.stages, self.results, strict=True)
        )

    def outputs(self) -> dict[Tensor, memoryview]:
        """Return the outputs; every stage has ended well."""
        found: dict[Tensor, memoryview] = {}
        for tensor, (stage, position) in self.chain.outputs.items():
            results = self.results[stage]
            assert results is not None, "outputs are asked for at the end"
            found[tensor] = results[position]
        return found


def chain_of(itinerary: Itinerary, tasks: Sequence[Task], outputs: Sequence[Tensor]) -> Chain:
    """Join visits with the tasks that make them; a task writes inputs first, then what is carried.

    `outputs` are those of the plan, in its order.
    """
    sources = [{source for _, source, _ in visit.carried} for visit in itinerary.visits]
    stages = tuple(
        Stage(
            device=visit.split.device,
            task=task,
            inputs=tuple(position for position, _ in visit.inputs),
            carried=tuple((source, read) for _, source, read in visit.carried),
            receive_tickets=tuple(ticket for _, ticket in visit.received),
            onward_tickets=tuple(ticket for _, _, ticket in visit.onward),
            feeds=tuple(target for target, awaited in enumerate(sources) if index in awaited),
            n_awaited=len(sources[index]),
        )
        for index, (visit, task) in enumerate(zip(itinerary.visits, tasks, strict=True))
    )
    return Chain(
        stages,
        tuple(tensor for tensor in outputs if tensor not in itinerary.gives),
        itinerary.outputs,
        itinerary.n_tickets,
        itinerary.overlaps,
        itinerary.gives,
        itinerary.takes,
    )
