"""What all commands share: how they end, and how they print.

Belongs here: exit statuses, one-line errors, the table of switches. Must not be here: single commands.

Exit statuses: 0 done, 1 it failed, 2 the command line is wrong, 130 interrupted by Ctrl-C.
"""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from textwrap import indent
from typing import Any, NoReturn

import click

from rpc_backend import settings
from rpc_backend.errors import RpcBackendError
from rpc_backend.text import render_table

DISTRIBUTION = "zmq-rpc-backend"
INTERRUPTED = 130


@dataclass(slots=True)
class CommandState:
    """What the way a command ends depends on; the root context's `obj`."""

    debug: bool = False


def run_cli(command: click.Command) -> NoReturn:
    """Run a command with this process's arguments, then exit; errors become one line on stderr."""
    state = CommandState()
    try:
        status = command.main(standalone_mode=False, obj=state)
    except (click.Abort, KeyboardInterrupt):
        sys.exit(INTERRUPTED)
    except click.UsageError as error:
        hint = f" (see {error.ctx.command_path} --help)" if error.ctx else ""
        _fail(f"{error.format_message()}{hint}", error.exit_code)
    except click.ClickException as error:
        _fail(error.format_message(), error.exit_code)
    except BrokenPipeError:
        _drop_stdout()
        sys.exit(1)
    except RpcBackendError as error:
        if state.debug:
            traceback.print_exc()
        _fail(str(error), 1)
    except Exception as error:
        if state.debug:
            traceback.print_exc()
        _fail(f"internal error: {type(error).__name__}: {error} (--debug shows where)", 1)
    sys.exit(status if isinstance(status, int) else 0)


def debug_option(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add `--debug` to a command."""

    def remember(context: click.Context, _parameter: click.Parameter, value: bool) -> None:
        if value:
            context.find_object(CommandState).debug = True  # pyright: ignore[reportOptionalMemberAccess]

    help = "Show the traceback of an error."
    return click.option("--debug", is_flag=True, expose_value=False, callback=remember, help=help)(command)


def switches_help() -> str:
    """Return the table of environment switches as the end of a help page."""
    rows = [
        (row.variable, f"{row.help} [{row.default or 'empty'}{row.unit and ' ' + row.unit}]") for row in settings.rows()
    ]
    return f"\b\nEnvironment switches, with their defaults:\n{indent(render_table(rows), '  ')}"


def _fail(message: str, status: int) -> NoReturn:
    click.echo(f"error: {' '.join(message.split())}", err=True)
    sys.exit(status)


def _drop_stdout() -> None:
    """Let the interpreter's last flush go nowhere: the reader of our output has gone."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
