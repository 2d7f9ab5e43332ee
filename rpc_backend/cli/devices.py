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
_TITLES = ("WORKER", "DEVICE", "KIND", "FREE", "TOTAL", "ALIGNMENT", "DESCRIPTION")


@click.command()
@where_options
@json_option
@debug_option
def devices(*, where: WorkersRequest, as_json: bool) -> None:
    """List the devices of workers, with their free and total memory."""
    from rpc_backend.host.devices import open_devices  # heavy: not for --help
    from rpc_backend.registry import load_registry
    from rpc_backend.settings import from_environment

    found = open_devices(where, from_environment(), load_registry())
    try:
        rows = _describe(found)
    finally:
        found.close()
    if as_json:
        click.echo(json.dumps({"devices": rows}))
        return
    click.echo(render_table([_TITLES, *map(_cells, rows)]))


def _describe(found: DeviceSet) -> list[dict[str, Any]]:
    homes = [(str(connection.endpoint), device) for connection in found.connections for device in connection.devices()]
    rows = []
    for worker, device in homes or [(_THIS_PROCESS, device) for device in found.devices]:
        memory, info = device.memory(), device.info
        rows.append(
            {
                "worker": worker,
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
    return (row["worker"], name, row["kind"], free, total, str(row["alignment"]), row["description"])
