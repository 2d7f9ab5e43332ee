"""`zmq-rpc plan`: which layers would go where.

Belongs here: the command and its output. Must not be here: planning.
"""

from __future__ import annotations

import dataclasses
import json
from typing import TYPE_CHECKING

import click

from rpc_backend.cli.console import debug_option
from rpc_backend.cli.options import json_option, model_options, where_options

if TYPE_CHECKING:
    from rpc_backend.host import ModelRequest, WorkersRequest


@click.command()
@model_options
@where_options
@json_option
@debug_option
def plan(*, request: ModelRequest, where: WorkersRequest, as_json: bool) -> None:
    """Say which layers go to which device and the memory each takes; nothing is uploaded."""
    from rpc_backend.host import plan_model  # heavy: not for --help

    split = plan_model(request, where)
    click.echo(json.dumps(dataclasses.asdict(split)) if as_json else split.describe())
