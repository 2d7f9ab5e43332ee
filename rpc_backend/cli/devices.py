"""`zmq-rpc devices`: what the workers offer.

Belongs here: the command and its output. Must not be here: connecting.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import click

from rpc_backend.cli.console import debug_option
from rpc_backend.cli.options import json_option, where_options
from rpc_backend.text import human_nbytes, render_table

if TYPE_CHECKING:
    from rpc_backend.host.devices import DeviceSet, WorkersRequest

_THIS_PROCESS = "this process"
_INSIDE = "fabric"
_TITLES = ("WORKER", "PAYLOADS", "DEVICE", "KIND", "FREE", "TOTAL", "ALIGNMENT", "DESCRIPTION")


@click.command()
@where_options
@click.option("--ops", "with_ops", is_flag=True, help="Print which operations each device takes instead.")
@json_option
@debug_option
def devices(*, where: WorkersRequest, with_ops: bool, as_json: bool) -> None:
    """List the devices of workers, with their memory and how large payloads travel to and from them."""
    from rpc_backend.host.devices import open_devices  # heavy: not for --help
    from rpc_backend.registry import load_registry
    from rpc_backend.settings import from_environment

    found = open_devices(where, from_environment(), load_registry())
    try:
        if with_ops:
            _print_ops(found, as_json=as_json)
            return
        rows = _describe(found)
    finally:
        found.close()
    if as_json:
        click.echo(json.dumps({"devices": rows}))
        return
    click.echo(render_table([_TITLES, *map(_cells, rows)]))


def _print_ops(found: DeviceSet, *, as_json: bool) -> None:
    """Print for each operation whether the devices take all, some or none of its typical forms."""
    from rpc_backend.host.op_coverage import op_coverage

    names = [device.info.name for device in found.devices]
    table = op_coverage(found.devices)
    if as_json:
        lacking = {
            op: {name: list(own.lacking) for name, own in zip(names, row, strict=True) if own.lacking}
            for op, row in table.items()
        }
        click.echo(json.dumps({"devices": names, "lacking": lacking}))
        return
    click.echo(render_table([["OPERATION", *names], *([op, *map(str, row)] for op, row in table.items())]))


def _describe(found: DeviceSet) -> list[dict[str, Any]]:
    homes = [
        (str(connection.endpoint), connection.carrier.name or _INSIDE, device)
        for connection in found.connections
        for device in connection.devices()
    ]
    rows = []
    for worker, payloads, device in homes or [(_THIS_PROCESS, "", device) for device in found.devices]:
        memory, info = device.memory(), device.info
        rows.append(
            {
                "worker": worker,
                "payloads": payloads,
                "name": info.name,
                "description": info.description,
                "kind": info.kind,
                "free_nbytes": memory.free_nbytes,
                "total_nbytes": memory.total_nbytes,
                "alignment": info.alignment,
            }
        )
    return rows


def _cells(row: dict[str, Any]) -> tuple[str, ...]:
    free, total = human_nbytes(row["free_nbytes"]), human_nbytes(row["total_nbytes"])
    name = row["name"].removesuffix(f"@{row['worker']}")
    return (row["worker"], row["payloads"], name, row["kind"], free, total, str(row["alignment"]), row["description"])
