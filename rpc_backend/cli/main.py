"""`zmq-rpc`: the host's commands.

Belongs here: the group and its entry point. Must not be here: single commands, which have a module each.
"""

from __future__ import annotations

from typing import NoReturn

import click

from rpc_backend.cli.bench import bench
from rpc_backend.cli.cache import cache
from rpc_backend.cli.console import DISTRIBUTION, debug_option, run_cli, switches_help
from rpc_backend.cli.devices import devices
from rpc_backend.cli.plan import plan
from rpc_backend.cli.run import run

HELP = {"help_option_names": ["-h", "--help"], "max_content_width": 110}


@click.group("zmq-rpc", context_settings=HELP, epilog=switches_help(), no_args_is_help=True)
@click.version_option(package_name=DISTRIBUTION, prog_name="zmq-rpc")
@debug_option
def cli() -> None:
    """Run a model that does not fit on one machine over several.

    Start zmq-rpc-worker on each machine, then name them with --workers.
    """


for _command in (run, bench, devices, plan, cache):
    cli.add_command(_command)


def main() -> NoReturn:
    """Run the command line of this process and exit."""
    run_cli(cli)


if __name__ == "__main__":
    main()
