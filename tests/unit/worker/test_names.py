"""The table of second names: what it believes, and what it keeps."""

from __future__ import annotations

import logging
import os
from pathlib import Path

import pytest

from rpc_backend.worker.content import Content
from rpc_backend.worker.names import Names

NAME, OTHER_NAME = b"\x01" * 8, b"\x02" * 8
ONE, TWO = Content(b"\xaa" * 16, 1000), Content(b"\xbb" * 16, 1000)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "folder" / "names"


def test_a_name_is_found_here_and_by_others(path):
    names, others = Names(path), Names(path)
    assert others.find(NAME, 1000) is None
    names.add(NAME, ONE)
    assert names.find(NAME, 1000) == ONE
    assert names.has(ONE)
    assert others.find(NAME, 1000) == ONE
    assert others.has(ONE)
    assert Names(path).find(NAME, 1000) == ONE


def test_the_size_is_part_of_the_name(path):
    names = Names(path)
    names.add(NAME, ONE)
    assert names.find(NAME, 999) is None


def test_a_name_of_two_contents_is_nobodys(path):
    names = Names(path)
    names.add(NAME, ONE)
    names.add(NAME, TWO)
    assert names.find(NAME, 1000) is None
    assert names.has(ONE)
    assert names.has(TWO)
    assert Names(path).find(NAME, 1000) is None
    names.add(OTHER_NAME, Content(b"\xcc" * 16, 1000))
    assert names.find(OTHER_NAME, 1000) is not None


def test_a_content_is_entered_once(path):
    names = Names(path)
    names.add(NAME, ONE)
    names.add(NAME, ONE)
    assert path.read_text() == f"{NAME.hex()} 1000 {ONE.digest.hex()}\n"


def test_lines_that_are_none_are_left_out(path):
    path.parent.mkdir()
    good = f"{NAME.hex()} 1000 {ONE.digest.hex()}"
    path.write_bytes(
        b"\0\xff\n"
        + f"{OTHER_NAME.hex()} -1 {ONE.digest.hex()}\n{OTHER_NAME.hex()} 1 aa\n../../etc/passwd\n{good}\n".encode()
        + f"{OTHER_NAME.hex()} 1000 {TWO.digest.hex()}".encode()
    )
    names = Names(path)
    assert names.find(NAME, 1000) == ONE
    assert names.find(OTHER_NAME, 1000) is None, "the last line is perhaps still being written"
    with path.open("a") as file:
        file.write("\n")
    assert names.find(OTHER_NAME, 1000) == TWO


def test_a_file_that_is_made_anew_is_read_anew(path):
    names = Names(path)
    names.add(NAME, ONE)
    names.refresh()
    path.unlink()
    Names(path).add(OTHER_NAME, TWO)
    path.write_text(path.read_text()[:-40])
    Names(path).add(OTHER_NAME, TWO)
    assert names.find(NAME, 1000) == ONE


@pytest.mark.parametrize("make", [os.mkdir, os.mkfifo, lambda path: os.symlink("/dev/zero", path)])
def test_what_is_no_file_is_one_warning(path, make, caplog):
    path.parent.mkdir()
    make(path)
    names = Names(path)
    with caplog.at_level(logging.WARNING):
        names.add(NAME, ONE)
        names.refresh()
        assert names.find(OTHER_NAME, 1000) is None
    assert names.find(NAME, 1000) == ONE
    assert [record.message for record in caplog.records if str(path) in record.message] == [
        record.message for record in caplog.records
    ]
    assert len(caplog.records) == 1
