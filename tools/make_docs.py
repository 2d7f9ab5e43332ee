"""Write the pages of docs/ that tables of the code decide, or check that they are up to date.

Belongs here: one function per generated page. Must not be here: text that a person should write.

Usage: python tools/make_docs.py [--check]
"""

from __future__ import annotations

import argparse
import inspect
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import fields
from pathlib import Path

import click

from rpc_backend import settings
from rpc_backend.cli.main import cli
from rpc_backend.cli.worker import worker
from rpc_backend.graph import OPS, Op
from rpc_backend.protocol.commands import COMMANDS, MAJOR, MINOR, Command

DOCS = Path(__file__).resolve().parent.parent / "docs"
_MADE = "<!-- Made by tools/make_docs.py; do not edit. -->"


def commands_page() -> Iterator[str]:
    """The wire commands, by code."""
    yield f"# Wire commands of version {MAJOR}.{MINOR}"
    yield (
        "A request is one msgpack header (command code, sequence number, stream, body, payload sizes) and then its "
        "payload frames. Control commands are answered at once, stream commands run in the order of their stream. A "
        "command without a reply reports an error through its stream."
    )
    rows = sorted(COMMANDS.values(), key=lambda row: row.code)
    yield table(("code", "name", "since", "lane", "request", "reply", "payload", "meaning"), map(_command_cells, rows))
    yield "## Records"
    yield "A record travels as the list of its fields; newer minor versions only append fields with defaults."
    records = {kind for row in rows for kind in (row.request, row.reply) if kind is not None}
    yield table(("record", "fields", "meaning"), map(_record_cells, sorted(records, key=lambda kind: kind.__name__)))


def settings_page() -> Iterator[str]:
    """The environment switches."""
    yield "# Environment switches"
    yield "Read once when a process starts. A variable that begins with `ZMQ_RPC_` and is not listed here is an error."
    rows = ((f"`{row.variable}`", row.type_name, row.default, row.unit, row.help) for row in settings.rows())
    yield table(("variable", "type", "default", "unit", "meaning"), rows)


def ops_page() -> Iterator[str]:
    """The op table."""
    yield "# Operations"
    yield "Names, numbers and parameter slots are those of ggml; the reference backend defines what each computes."
    yield table(("code", "name", "sources", "parameters", "shape rule"), map(_op_cells, OPS.values()))


def cli_page() -> Iterator[str]:
    """The help pages of all commands."""
    yield "# Commands"
    yield "Exit statuses: 0 done, 1 it failed, 2 the command line is wrong, 130 interrupted by Ctrl-C."
    yield from _help_of(worker, "zmq-rpc-worker")
    yield from _help_of(cli, "zmq-rpc")


PAGES: dict[str, Callable[[], Iterator[str]]] = {
    "commands.md": commands_page,
    "settings.md": settings_page,
    "ops.md": ops_page,
    "cli.md": cli_page,
}


def render(page: Callable[[], Iterator[str]]) -> str:
    """Return the whole text of a page."""
    title, *parts = page()
    return "\n\n".join([title, _MADE, *parts]) + "\n"


def table(titles: Sequence[str], rows: Iterator[Sequence[object]] | map[Sequence[str]]) -> str:
    """Return a markdown table."""
    lines = [titles, ["---"] * len(titles), *rows]
    return "\n".join(f"| {' | '.join(str(cell).replace('|', chr(92) + '|') for cell in line)} |" for line in lines)


def main() -> int:
    """Write the pages, or with `--check` name the first that is out of date; return the exit status."""
    parser = argparse.ArgumentParser(description="Write the generated pages of docs/.")
    parser.add_argument("--check", action="store_true", help="write nothing, fail if a page would change")
    check = parser.parse_args().check
    for name, page in PAGES.items():
        path, text = DOCS / name, render(page)
        if path.exists() and path.read_text(encoding="utf-8") == text:
            continue
        if check:
            print(f"docs/{name} is out of date; run: python tools/make_docs.py", file=sys.stderr)
            return 1
        path.write_text(text, encoding="utf-8")
        print(f"wrote docs/{name}")
    return 0


def _command_cells(row: Command) -> Sequence[str]:
    reply = row.reply.__name__ if row.reply else "none"
    return (
        str(row.code), f"`{row.name}`", str(row.since), row.lane.value, row.request.__name__, reply,
        row.payload.value, row.doc,
    )  # fmt: skip


def _record_cells(kind: type) -> Sequence[str]:
    names = ", ".join(f"`{item.name}`: {item.type}" for item in fields(kind))
    return kind.__name__, names or "none", _first_paragraph(kind)


def _op_cells(op: Op) -> Sequence[str]:
    count = str(op.min_sources) if op.min_sources == op.max_sources else f"{op.min_sources} to {op.max_sources}"
    return str(op.code), f"`{op.name}`", count, ", ".join(param.name for param in op.params), _first_paragraph(op.rule)


def _first_paragraph(documented: object) -> str:
    return " ".join((inspect.getdoc(documented) or "").split("\n\n")[0].split())


def _help_of(command: click.Command, name: str) -> Iterator[str]:
    yield f"## {name}"
    yield from inspect.cleandoc(command.help or "").split("\n\n")
    options = [item for item in command.params if isinstance(item, click.Option)]
    if options:
        yield table(("option", "value", "default", "meaning"), map(_option_cells, options))
    for part, inner in sorted(command.commands.items()) if isinstance(command, click.Group) else ():
        yield from _help_of(inner, f"{name} {part}")


def _option_cells(option: click.Option) -> Sequence[str]:
    names = [*option.opts, *option.secondary_opts]
    default = option.default if option.show_default else ""
    if isinstance(option.show_default, str):
        default = option.show_default
    elif isinstance(default, tuple):
        default = " ".join(default)
    elif isinstance(default, bool):
        default = names[0 if default else -1]
    return " ".join(f"`{name}`" for name in names), _value_of(option), str(default), option.help or ""


def _value_of(option: click.Option) -> str:
    if option.is_flag:
        return ""
    if option.metavar:
        return option.metavar
    choices = option.type.choices if isinstance(option.type, click.Choice) else ()
    return " | ".join(map(str, choices)) or option.type.name.removesuffix(" range").upper()


if __name__ == "__main__":
    sys.exit(main())
