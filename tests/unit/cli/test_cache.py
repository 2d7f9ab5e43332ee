"""`zmq-rpc cache` and the worker's options of the cache, on real folders."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path

import pytest
import xxhash
from click.testing import CliRunner, Result

from rpc_backend.cli.main import cli
from rpc_backend.cli.worker import worker
from rpc_backend.errors import ConfigError

WEIGHTS = [b"one", b"two!", b"three"]


def name_of(data: bytes) -> str:
    return f"{xxhash.xxh3_128_hexdigest(data)}-{len(data)}.weights"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Three entries, the first used longest ago, and a file that is not ours."""
    for number, data in enumerate(WEIGHTS):
        path = tmp_path / name_of(data)
        path.write_bytes(data)
        used_s = time.time() - 100 + number
        os.utime(path, (used_s, used_s))
    (tmp_path / "notes.txt").write_text("mine")
    return tmp_path


def cache(*arguments: str | Path) -> Result:
    return CliRunner().invoke(cli, ["cache", *map(str, arguments)], standalone_mode=False)


def fields(result: Result) -> dict:
    assert result.exception is None, result.output
    return json.loads(result.output)


def test_list_shows_size_and_last_use(folder):
    text = cache("list", "--cache", folder).output
    lines = text.splitlines()
    assert [line.split()[0] for line in lines[1:4]] == [xxhash.xxh3_128_hexdigest(data) for data in WEIGHTS]
    assert "5 B" in lines[3]
    assert time.strftime("%Y-%m-%d") in lines[3]
    assert lines[4] == "3 weights, 12 B"


def test_list_as_json(folder):
    found = fields(cache("list", "--cache", folder, "--json"))
    assert found["nbytes"] == 12
    assert [entry["nbytes"] for entry in found["entries"]] == [3, 4, 5]
    assert found["entries"][0]["digest"] == xxhash.xxh3_128_hexdigest(b"one")
    assert found["entries"][0]["used"].endswith("+00:00")


def test_an_empty_folder(tmp_path):
    assert cache("list", "--cache", tmp_path).output == "0 weights, 0 B\n"
    assert fields(cache("verify", "--cache", tmp_path, "--json"))["damaged"] == 0


def test_verify_reports_damaged_entries_and_fails(folder):
    assert "3 weights, 12 B, 0 damaged" in cache("verify", "--cache", folder).output
    (folder / name_of(b"two!")).write_bytes(b"two?")
    result = cache("verify", "--cache", folder)
    assert f"{xxhash.xxh3_128_hexdigest(b'two!')}: damaged\n" in result.output
    assert result.return_value == 1
    assert (folder / name_of(b"two!")).exists()


def test_verify_removes_damaged_entries_when_told_to(folder):
    (folder / name_of(b"one")).write_bytes(b"")
    found = cache("verify", "--cache", folder, "--remove", "--json")
    results = {entry["nbytes"]: entry["result"] for entry in fields(found)["entries"]}
    assert results == {3: "damaged, removed", 4: "sound", 5: "sound"}
    assert found.return_value == 0
    assert not (folder / name_of(b"one")).exists()
    assert fields(cache("verify", "--cache", folder, "--json"))["damaged"] == 0


def test_prune_removes_what_was_used_longest_ago(folder):
    temporary = folder / ("0" * 32 + "-7." + "0" * 16 + ".tmp")
    temporary.touch()
    found = fields(cache("prune", "--cache", folder, "--limit", "9", "--json"))
    assert (found["removed_nbytes"], found["kept_nbytes"], found["swept"]) == (3, 9, 1)
    assert not (folder / name_of(b"one")).exists()
    assert cache("prune", "--cache", folder, "--limit", "9").output == "removed 0 weights, 0 B; kept 2 weights, 9 B\n"


def test_prune_to_nothing_leaves_what_is_not_ours(folder):
    cache("prune", "--cache", folder, "--limit", "0")
    assert os.listdir(folder) == ["notes.txt"]


@pytest.mark.parametrize("name", ["list", "verify"])
def test_a_folder_that_is_not_there_is_a_usage_error(tmp_path, name):
    result = CliRunner().invoke(cli, ["cache", name, "--cache", str(tmp_path / "none")])
    assert result.exit_code == 2
    assert "does not exist" in result.output


def test_a_folder_that_cannot_be_read_is_an_error_with_its_name(folder, monkeypatch):
    def refuse(path):
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(os, "scandir", refuse)
    error = cache("list", "--cache", folder).exception
    assert isinstance(error, ConfigError)
    assert "Permission denied" in str(error)


@pytest.mark.parametrize("limit", ["", "lots", "-1"])
def test_a_bad_limit_is_a_usage_error(folder, limit):
    result = CliRunner().invoke(cli, ["cache", "prune", "--cache", str(folder), "--limit", limit])
    assert result.exit_code == 2
    assert "is not a size" in result.output


def test_a_worker_with_a_limit_and_no_cache_is_refused():
    result = CliRunner().invoke(worker, ["--cache-limit", "1G"])
    assert result.exit_code == 2
    assert "--cache-limit needs --cache" in result.output


def test_a_worker_with_model_files_that_are_not_there_is_refused(tmp_path):
    result = CliRunner().invoke(worker, ["--models", str(tmp_path / "none")])
    assert result.exit_code == 2
    assert "does not exist" in result.output


def test_a_worker_whose_cache_is_a_file_is_refused(folder):
    result = CliRunner().invoke(worker, ["--cache", str(folder / "notes.txt")])
    assert result.exit_code == 2
    assert "is a file" in result.output
