from __future__ import annotations

import sys
from collections.abc import Callable

import click
import pytest

from rpc_backend import settings
from rpc_backend.cli.console import debug_option, run_cli, switches_help
from rpc_backend.errors import ConnectError, ErrorContext


def exit_status(monkeypatch: pytest.MonkeyPatch, body: Callable[[], object], *arguments: str) -> int:
    """Run a command that calls `body`, and return the status it exits with."""

    @click.command()
    @debug_option
    def probe() -> object:
        return body()

    monkeypatch.setattr(sys, "argv", ["probe", *arguments])
    with pytest.raises(SystemExit) as caught:
        run_cli(probe)
    return caught.value.code  # pyright: ignore[reportReturnType]


def raising(error: BaseException) -> Callable[[], object]:
    def body() -> object:
        raise error

    return body


def test_success_exits_0(monkeypatch: pytest.MonkeyPatch) -> None:
    assert exit_status(monkeypatch, lambda: None) == 0


def test_an_error_of_ours_is_one_line_with_its_place(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    error = ConnectError("nobody\nanswers", context=ErrorContext(worker="tcp://far:1"))
    assert exit_status(monkeypatch, raising(error)) == 1
    assert capsys.readouterr().err == "error: nobody answers (worker tcp://far:1)\n"


def test_debug_adds_the_traceback(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    assert exit_status(monkeypatch, raising(ConnectError("nobody")), "--debug") == 1
    text = capsys.readouterr().err
    assert "Traceback" in text
    assert text.endswith("error: nobody\n")


def test_a_bug_is_named_as_such_without_a_traceback(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert exit_status(monkeypatch, raising(KeyError("x"))) == 1
    text = capsys.readouterr().err
    assert text.startswith("error: internal error: KeyError: 'x'")
    assert text.count("\n") == 1


def test_ctrl_c_exits_130(monkeypatch: pytest.MonkeyPatch) -> None:
    assert exit_status(monkeypatch, raising(KeyboardInterrupt())) == 130


@pytest.mark.parametrize("arguments", [["--debgu"], ["surplus"]])
def test_a_wrong_command_line_exits_2_with_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], arguments: list[str]
) -> None:
    assert exit_status(monkeypatch, lambda: None, *arguments) == 2
    text = capsys.readouterr().err
    assert arguments[0] in text
    assert "--help" in text
    assert text.count("\n") == 1


def test_the_nearest_option_is_offered(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    exit_status(monkeypatch, lambda: None, "--debgu")
    assert "--debug" in capsys.readouterr().err


def test_help_lists_every_switch() -> None:
    text = switches_help()
    assert all(row.variable in text and row.help in text for row in settings.rows())
