"""How many cores a process may use."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from rpc_backend_numba import cores
from rpc_backend_numba.cores import count_cores, cpu_quota, default_thread_count


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def quota(folder: Path, membership: str, **files: str) -> float | None:
    write(folder / "membership", membership)
    for place, text in files.items():
        write(folder / "groups" / place.replace("__", "/").replace("_of_", "."), text)
    return cpu_quota(folder / "membership", folder / "groups")


def test_hardware_threads_of_one_core_count_once(tmp_path: Path) -> None:
    for cpu in range(4):
        write(tmp_path / f"cpu{cpu}" / "topology" / "thread_siblings_list", f"{cpu % 2},{cpu % 2 + 2}\n")

    assert count_cores(range(4), tmp_path) == 2
    assert count_cores([0, 2], tmp_path) == 1
    assert count_cores([0, 3], tmp_path) == 2


def test_a_core_that_is_not_described_counts(tmp_path: Path) -> None:
    assert count_cores([0, 5], tmp_path) == 2


def test_no_group_sets_no_limit(tmp_path: Path) -> None:
    assert cpu_quota(tmp_path / "nothing", tmp_path) is None


@pytest.mark.parametrize(
    ("own", "above", "expected"),
    [
        ("150000 100000", "max 100000", 1.5),
        ("max 100000", "400000 100000", 4.0),
        ("300000 100000", "100000 50000", 2.0),
    ],
)
def test_the_tightest_of_all_groups_counts(tmp_path: Path, own: str, above: str, expected: float) -> None:
    assert quota(tmp_path, "0::/above/own\n", above__own__cpu_of_max=own, above__cpu_of_max=above) == expected


def test_groups_of_version_1(tmp_path: Path) -> None:
    files = {"cpu__own__cpu_of_cfs_quota_us": "250000", "cpu__own__cpu_of_cfs_period_us": "100000"}

    assert quota(tmp_path, "4:memory:/x\n2:cpu,cpuacct:/own\n", **files) == 2.5


@pytest.mark.parametrize("text", ["max 100000", "-1 100000", "", "many", "0 100000"])
def test_no_limit_is_none(tmp_path: Path, text: str) -> None:
    assert quota(tmp_path, "0::/\n", cpu_of_max=text) is None


@pytest.mark.parametrize(("limit", "expected"), [(None, 3), (2.5, 2), (0.5, 1), (8.0, 3)])
def test_the_default_obeys_both(monkeypatch: pytest.MonkeyPatch, limit: float | None, expected: int) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: {0, 1, 2}, raising=False)
    monkeypatch.setattr(cores, "count_cores", len)
    monkeypatch.setattr(cores, "cpu_quota", lambda: limit)

    assert default_thread_count() == expected
