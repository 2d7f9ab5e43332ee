from __future__ import annotations

import time

import pytest

from rpc_backend.cli import load_bar
from rpc_backend.cli.load_bar import LoadBar
from rpc_backend.host import LoadProgress


@pytest.mark.parametrize(("seconds", "told"), [(0.5, False), (12.0, True)])
def test_long_compiling_is_told(capsys: pytest.CaptureFixture[str], seconds: float, told: bool) -> None:
    moments = iter([100.0, 101.0, 101.0 + seconds])
    with LoadBar(clock=lambda: next(moments)) as bar:
        bar(LoadProgress("upload", 1, 2))
        bar(LoadProgress("compile"))
        bar(LoadProgress("ready"))
    assert (f"compiled kernels in {seconds:.1f} s" in capsys.readouterr().err) is told


def test_a_terminal_sees_stage_bytes_and_rate(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)
    monkeypatch.setenv("COLUMNS", "120")
    with LoadBar() as bar:
        bar(LoadProgress("upload", 512 << 20, 1 << 30))
    text = capsys.readouterr().err
    assert "uploading weights" in text
    assert "0.5/1.0 GiB" in text


def test_without_a_terminal_compiling_is_told_while_it_lasts(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(load_bar, "_WORTH_TELLING_S", 0.0)
    with LoadBar() as bar:
        bar(LoadProgress("compile"))
        deadline = time.monotonic() + 5
        text = ""
        while not text and time.monotonic() < deadline:
            time.sleep(0.01)
            text += capsys.readouterr().err
    assert text == "compiling kernels, once for this machine\n"
