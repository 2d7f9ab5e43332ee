"""A task encoded once, with all that a run of it needs to know.

Belongs here: the record, sizes, checks of a run. Must not be here: sending it (`runs`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

from rpc_backend.client.placement import encode_placed
from rpc_backend.client.plan import Content, RemotePlan
from rpc_backend.errors import GraphError, LimitError
from rpc_backend.graph import Tensor
from rpc_backend.interfaces import TICKET_NBYTES, Device, Onward, Task, TaskRun
from rpc_backend.protocol.records import Record


@dataclass(frozen=True, slots=True, eq=False)
class Place:
    """A device as the worker of a task knows it: `endpoint` "" is that worker itself."""

    endpoint: str
    device: int


class Peering(Enum):
    """How a worker takes and sends tensors of tasks: not at all, each copied by a command, under tickets."""

    NONE = 0
    COPIES = 1
    TICKETS = 2


@dataclass(frozen=True, slots=True, eq=False)
class RemoteTask(Task):
    """A task of a remote device.

    The records place its tensors, `write_nbytes` and `read_nbytes` are sizes. `content` is what SUBMIT carries; None if
    the task goes as single commands.
    """

    plan: RemotePlan
    write_records: tuple[Record, ...] = ()
    read_records: tuple[Record, ...] = ()
    receive_records: tuple[Record, ...] = ()
    onward_records: tuple[Record, ...] = ()
    write_nbytes: tuple[int, ...] = ()
    read_nbytes: tuple[int, ...] = ()
    content: Content | None = None

    def check(self, run: TaskRun) -> None:
        """Check that a run has what the task needs.

        Raises:
            GraphError: another number or size of values or tickets.
        """
        sizes = tuple([value.nbytes for value in run.values])
        if sizes != self.write_nbytes:
            raise GraphError(f"the task takes values of {list(self.write_nbytes)} bytes, not of {list(sizes)}")
        for tickets, tensors, what in (
            (run.receive_tickets, self.receives, "receives"),
            (run.onward_tickets, self.onward, "sends onward"),
        ):
            if len(tickets) != len(tensors):
                raise GraphError(f"the task {what} {len(tensors)} tensors, the run has {len(tickets)} tickets for them")
            if any(len(ticket) != TICKET_NBYTES for ticket in tickets):
                raise GraphError(f"a ticket is {TICKET_NBYTES} bytes")


def make_task(
    plan: RemotePlan,
    writes: Sequence[Tensor],
    reads: Sequence[Tensor],
    receives: Sequence[Tensor],
    onward: Sequence[tuple[Onward, Place]],
    *,
    max_payload_nbytes: int,
    has_submit: bool,
    peering: Peering,
) -> RemoteTask:
    """Encode a task of the plan's device.

    Without `has_submit`, or if its values or results are above `max_payload_nbytes`, it goes as single commands.
    `peering` is what the worker can.

    Raises:
        GraphError: a tensor lies anywhere but on that device; tensors come or go directly, which the worker cannot do.
        LimitError: the same, and it is for the size.
    """
    device: Device = plan.device
    write_records = tuple(encode_placed(device, tensor) for tensor in writes)
    read_records = tuple(encode_placed(device, tensor) for tensor in reads)
    receive_records = tuple(encode_placed(device, tensor) for tensor in receives)
    onward_records = tuple(encode_placed(device, item.tensor) for item, _ in onward)
    write_nbytes = tuple(tensor.nbytes for tensor in writes)
    read_nbytes = tuple(tensor.nbytes for tensor in reads)
    record: Record = [
        plan.content.record,
        list(write_records),
        list(read_records),
        list(receive_records),
        [[sent, place.endpoint, place.device] for sent, (_, place) in zip(onward_records, onward, strict=True)],
    ]
    fits = max(sum(write_nbytes), sum(read_nbytes)) <= max_payload_nbytes
    if (receives or onward) and peering is Peering.NONE:
        raise GraphError(f"{device.info.name} cannot exchange tensors with other devices directly")
    if (receives or onward) and peering is Peering.TICKETS and not fits:
        raise LimitError(
            f"a task of {device.info.name} writes {sum(write_nbytes)} and reads {sum(read_nbytes)} bytes; the worker "
            f"takes {max_payload_nbytes} in a message: split the batch"
        )
    n_tensors = len(plan.content.record[0]) + sum(len(part) for part in record[1:])
    return RemoteTask(
        plan,
        tuple(writes),
        tuple(reads),
        tuple(receives),
        tuple(item for item, _ in onward),
        write_records=write_records,
        read_records=read_records,
        receive_records=receive_records,
        onward_records=onward_records,
        write_nbytes=write_nbytes,
        read_nbytes=read_nbytes,
        content=Content(record, n_tensors) if has_submit and fits else None,
    )
