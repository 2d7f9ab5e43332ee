"""The command: `python -m rpc_backend.testing.backend_suite NAME[:key=value,…] [-k TEXT] [--threads N]`.

Belongs here: options and the table. Must not be here: cases or verdicts.
"""

from __future__ import annotations

import sys
import time
from collections import Counter, defaultdict
from collections.abc import Sequence

import click
from rich.console import Console
from rich.table import Table

from rpc_backend.errors import ConfigError, RpcBackendError
from rpc_backend.graph import OPS
from rpc_backend.hookspecs import DeviceOptions
from rpc_backend.interfaces import Device
from rpc_backend.registry import load_registry
from rpc_backend.testing.backend_suite import CaseResult, cases, run_case

_MAX_SHOWN = 40


@click.command()
@click.argument("backend", metavar="NAME[:key=value,…]")
@click.option("-k", "text", default="", help="Run only cases whose id holds this text.")
@click.option("--threads", default=0, type=click.IntRange(min=0), help="Compute threads; 0 is the backend's choice.")
@click.option("-v", "--verbose", is_flag=True, help="Print every case with its error and time.")
def main(backend: str, text: str, threads: int, verbose: bool) -> None:
    """Compare the devices of backend NAME with the reference and print what each operation covers.

    Exits with 1 if a case fails, with 2 if nothing could be run.
    """
    chosen = [case for case in cases() if text in case.id]
    if not chosen:
        raise click.UsageError(f"no case id holds {text!r}")
    try:
        name, extra = parse_backend(backend)
        devices = load_registry().create_devices(name, DeviceOptions(threads=threads, extra=extra))
    except RpcBackendError as error:
        raise click.UsageError(str(error)) from error
    console, failed = Console(), False
    for device in devices:
        results = []
        for case in chosen:
            start = time.perf_counter()
            results.append(run_case(device, case))
            if verbose:
                _print_case(console, results[-1], time.perf_counter() - start)
        failed |= _report(console, device, results)
        device.close()
    sys.exit(1 if failed else 0)


def parse_backend(text: str) -> tuple[str, dict[str, str]]:
    """Split `NAME:key=value,key=value` into the name and its options.

    Raises:
        ConfigError: an option without `=`.
    """
    name, _, options = text.partition(":")
    extra: dict[str, str] = {}
    for option in filter(None, options.split(",")):
        key, sign, value = option.partition("=")
        if not key or not sign:
            raise ConfigError(f"option {option!r} of backend {name} is not key=value")
        extra[key] = value
    return name, extra


def _print_case(console: Console, result: CaseResult, seconds: float) -> None:
    line = f"{result.status:11} {1e3 * seconds:8.1f} ms  {result.error:9.2e}  {result.case.id}"
    console.print(line, markup=False, highlight=False, soft_wrap=True)


def _report(console: Console, device: Device, results: Sequence[CaseResult]) -> bool:
    """Print the table of one device and its failures; return whether there are any."""
    counts: dict[str, Counter[str]] = defaultdict(Counter)
    for result in results:
        counts[result.case.op][result.status] += 1
    table = Table("operation", "passed", "unsupported", "failed", title=f"device {device.info.name}")
    for op in (op for op in OPS if op in counts):
        table.add_row(op, *(str(counts[op][status]) for status in ("passed", "unsupported", "failed")))
    total = sum(counts.values(), Counter())
    table.add_section()
    table.add_row("all", *(str(total[status]) for status in ("passed", "unsupported", "failed")))
    console.print(table)
    failures = [result for result in results if result.status == "failed"]
    for result in failures[:_MAX_SHOWN]:
        console.print(f"failed {result.case.id}: {result.detail}", markup=False, highlight=False, soft_wrap=True)
    if len(failures) > _MAX_SHOWN:
        console.print(f"and {len(failures) - _MAX_SHOWN} more")
    return bool(failures)


if __name__ == "__main__":
    main()
