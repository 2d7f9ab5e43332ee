"""The environment switches: the only reader of the environment.

Belongs here: one row per `ZMQ_RPC_*` switch, its type, default, unit and help. Must not be here:
command-line options, which `cli` owns, or anything that acts on a switch.

A process reads its settings once, in `cli` or at the first `connect`, and passes them down.
"""

from __future__ import annotations

import difflib
import os
from collections.abc import Iterator, Mapping
from dataclasses import MISSING, dataclass, field, fields
from pathlib import Path
from typing import Any

from rpc_backend.errors import SettingError

PREFIX = "ZMQ_RPC_"
_TRUE = {"1", "true", "yes", "on"}
_FALSE = {"0", "false", "no", "off", ""}


def _setting(default: Any, *, unit: str = "", help: str, low: int | None = None) -> Any:
    return field(default=default, metadata={"unit": unit, "help": help, "low": low})


@dataclass(frozen=True, slots=True)
class Settings:
    """All switches of one process, typed and checked."""

    heartbeat_timeout_ms: int = _setting(5000, unit="ms", low=100, help="a peer that is silent for this long is lost")
    connect_timeout_ms: int = _setting(
        5000, unit="ms", low=1, help="how long a worker may take to answer the first HELLO"
    )
    command_timeout_ms: int = _setting(
        600_000, unit="ms", low=1, help="how long any one command may take before its wait fails"
    )
    proto_minor: int = _setting(-1, low=-1, help="speak as an older client of this protocol minor; -1 is the newest")
    cache_dir: str = _setting("", help="folder of compiled kernels; empty is the user's cache folder")
    cpu_features: str = _setting("auto", help="instructions of the numba backend: auto, avx512, avx2 or portable")
    no_batched_get: bool = _setting(False, help="read every tensor with a message of its own")
    no_async_copy: bool = _setting(False, help="copy between devices and run steps one after another, without SUBMIT")
    p2p: bool = _setting(True, help="workers send results to each other; 0 takes them through the host")
    transport: str = _setting(
        "tcp",
        help="tcp, or how large payloads travel where both sides can, as in rdma or rdma:provider=soft",
    )
    load_opt: bool = _setting(
        True, help="upload without staging copies, and digests only where a worker keeps content; 0 is the old way"
    )
    loadprof: bool = _setting(False, help="print where the time of a load goes, at its end, to standard error")
    stats: bool = _setting(False, help="print commands and bytes of each connection to standard error")
    stats_ms: int = _setting(5000, unit="ms", low=10, help="how often they are printed")


@dataclass(frozen=True, slots=True)
class Row:
    """One line of the table of switches, for `--help` and the documentation."""

    variable: str
    type_name: str
    default: str
    unit: str
    help: str


def rows() -> Iterator[Row]:
    """Yield the table of switches in declaration order."""
    for item in fields(Settings):
        default = "" if item.default is MISSING else str(item.default)
        kind = type(item.default).__name__
        yield Row(_variable(item.name), kind, default, item.metadata["unit"], item.metadata["help"])


def from_environment(environ: Mapping[str, str] | None = None) -> Settings:
    """Read every `ZMQ_RPC_*` variable.

    Raises:
        SettingError: a value that does not parse or is too small, or a variable nobody declared.
    """
    environ = os.environ if environ is None else environ
    known = {_variable(item.name): item for item in fields(Settings)}
    values: dict[str, Any] = {}
    for variable, text in environ.items():
        if not variable.startswith(PREFIX):
            continue
        item = known.get(variable)
        if item is None:
            raise SettingError(f"unknown environment switch {variable}{_nearest(variable, known)}")
        values[item.name] = _parse(variable, text, type(item.default), item.metadata["low"])
    return Settings(**values)


def child_environment(overrides: Mapping[str, str]) -> dict[str, str]:
    """Return this process's environment with `overrides`, for starting a worker process."""
    return {**os.environ, **overrides}


def as_environment(settings: Settings) -> dict[str, str]:
    """Return the variables that make another process read these settings."""
    values = {item.name: getattr(settings, item.name) for item in fields(Settings)}
    return {_variable(name): str(int(value) if isinstance(value, bool) else value) for name, value in values.items()}


def cache_folder(settings: Settings, default: Path) -> Path:
    """Return the folder for compiled kernels: the switch, or `default`."""
    return Path(settings.cache_dir).expanduser() if settings.cache_dir else default


def _variable(name: str) -> str:
    return PREFIX + name.upper()


def _nearest(variable: str, known: Mapping[str, object]) -> str:
    close = difflib.get_close_matches(variable, known, n=1)
    return f"; did you mean {close[0]}?" if close else f"; known: {', '.join(sorted(known))}"


def _parse(variable: str, text: str, kind: type, low: int | None) -> Any:
    if kind is str:
        return text
    if kind is bool:
        lowered = text.strip().lower()
        if lowered in _TRUE or lowered in _FALSE:
            return lowered in _TRUE
        raise SettingError(f"{variable}={text!r} is not a yes or a no (use 1 or 0)")
    try:
        value = kind(text)
    except ValueError as error:
        raise SettingError(f"{variable}={text!r} is not of type {kind.__name__}") from error
    if low is not None and value < low:
        raise SettingError(f"{variable}={text!r} is below its least value {low}")
    return value
