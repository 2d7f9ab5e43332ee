"""`zmq-rpc cache`: what a worker keeps in its folder of weights.

Belongs here: the commands and their output. Must not be here: the files themselves.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from rpc_backend.cli.console import debug_option
from rpc_backend.cli.options import json_option
from rpc_backend.cli.values import ByteSize
from rpc_backend.errors import ConfigError
from rpc_backend.text import human_nbytes, render_table

if TYPE_CHECKING:
    from rpc_backend.worker.cache_folder import CacheFolder, Entry

_TITLES = ("DIGEST", "SIZE", "LAST USED")
_SOUND, _DAMAGED, _REMOVED = "sound", "damaged", "damaged, removed"

_folder_option = click.option(
    "--cache",
    "path",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    required=True,
    metavar="DIR",
    help="The folder, as the worker's --cache has it.",
)


@click.group()
def cache() -> None:
    """Look after the weights that a worker keeps with --cache.

    All of it may be done while workers use the folder.
    """


@cache.command("list")
@_folder_option
@json_option
@debug_option
def list_entries(*, path: Path, as_json: bool) -> None:
    """List the weights of a folder, those used longest ago first."""
    with _opened(path) as folder:
        entries = folder.entries()
    if as_json:
        click.echo(json.dumps({"entries": [_fields(entry) for entry in entries], "nbytes": _total(entries)}))
        return
    if entries:
        click.echo(render_table([_TITLES, *map(_cells, entries)]))
    click.echo(_summary(entries))


@cache.command()
@_folder_option
@click.option("--remove", is_flag=True, help="Remove damaged weights; the next load brings them again.")
@json_option
@debug_option
def verify(*, path: Path, remove: bool, as_json: bool) -> int:
    """Read every weight of a folder and compare it with its digest.

    A damaged one that stays is exit status 1.
    """
    with _opened(path) as folder:
        entries = folder.entries()
        damaged = [entry for entry in entries if not folder.is_sound(entry)]
        for entry in damaged if remove else ():
            folder.remove(entry.content)
    result = _REMOVED if remove else _DAMAGED
    if as_json:
        rows = [{**_fields(entry), "result": result if entry in damaged else _SOUND} for entry in entries]
        click.echo(json.dumps({"entries": rows, "damaged": len(damaged), "removed": remove}))
    else:
        for entry in damaged:
            click.echo(f"{entry.content.digest.hex()}: {result}")
        click.echo(f"{_summary(entries)}, {len(damaged)} damaged")
    return 1 if damaged and not remove else 0


@cache.command()
@_folder_option
@click.option(
    "--limit", "limit_nbytes", type=ByteSize(low=0), required=True, help="What may stay; 0 removes everything."
)
@json_option
@debug_option
def prune(*, path: Path, limit_nbytes: int, as_json: bool) -> None:
    """Remove the weights used longest ago until the folder is within a limit, and what writers left that died."""
    with _opened(path) as folder:
        n_swept = folder.sweep()
        removed = folder.prune(limit_nbytes)
        kept = folder.entries()
    if as_json:
        fields = {"removed": [_fields(entry) for entry in removed], "removed_nbytes": _total(removed)}
        click.echo(json.dumps({**fields, "kept_nbytes": _total(kept), "swept": n_swept}))
        return
    click.echo(f"removed {_summary(removed)}; kept {_summary(kept)}")


@contextmanager
def _opened(path: Path) -> Iterator[CacheFolder]:
    from rpc_backend.worker.cache_folder import CacheFolder  # heavy: not for --help

    try:
        yield CacheFolder(path)
    except OSError as error:
        raise ConfigError(f"the weight cache {path} cannot be used: {error}") from error


def _fields(entry: Entry) -> dict[str, Any]:
    return {
        "digest": entry.content.digest.hex(),
        "nbytes": entry.content.nbytes,
        "stored_nbytes": entry.stored_nbytes,
        "used": _used(entry).isoformat(timespec="seconds"),
    }


def _cells(entry: Entry) -> tuple[str, ...]:
    used = _used(entry).astimezone().strftime("%Y-%m-%d %H:%M:%S")
    return entry.content.digest.hex(), human_nbytes(entry.stored_nbytes), used


def _used(entry: Entry) -> datetime:
    return datetime.fromtimestamp(entry.used_ns / 1e9, UTC)


def _total(entries: list[Entry]) -> int:
    return sum(entry.stored_nbytes for entry in entries)


def _summary(entries: list[Entry]) -> str:
    return f"{len(entries)} weights, {human_nbytes(_total(entries))}"
