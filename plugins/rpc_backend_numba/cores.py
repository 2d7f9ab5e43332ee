"""The cores that this process may use.

Belongs here: affinity, hardware threads of one core, the quota of a control group. Must not be here: threads.

Source: Linux's documentation of `/sys/devices/system/cpu` and of control groups, versions 1 and 2.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from pathlib import Path

import psutil

_CPUS = Path("/sys/devices/system/cpu")
_GROUPS = Path("/sys/fs/cgroup")
_MEMBERSHIP = Path("/proc/self/cgroup")


def default_thread_count() -> int:
    """Return the physical cores that this process may use, at most what the quota of its control group allows."""
    if hasattr(os, "sched_getaffinity"):
        cores = count_cores(os.sched_getaffinity(0))
    else:
        cores = psutil.cpu_count(logical=False) or os.cpu_count() or 1
    quota = cpu_quota()
    return max(1, cores if quota is None else min(cores, int(quota)))


def count_cores(cpus: Iterable[int], root: Path = _CPUS) -> int:
    """Return on how many cores these hardware threads are; one whose core is not known counts as its own."""
    return len({_read(root / f"cpu{cpu}" / "topology" / "thread_siblings_list") or str(cpu) for cpu in cpus})


def cpu_quota(membership: Path = _MEMBERSHIP, root: Path = _GROUPS) -> float | None:
    """Return how many cores' time the control groups of this process allow; None if they set no limit."""
    quotas = [quota for folder in _folders(membership, root) if (quota := _quota_of(folder)) is not None]
    return min(quotas, default=None)


def _folders(membership: Path, root: Path) -> Iterator[Path]:
    """The groups that this process is in, each with all above it; in a container the root is its own group."""
    for line in _read(membership).splitlines():
        _, controllers, path = (*line.split(":", 2), "", "")[:3]
        names = controllers.split(",")
        if controllers and "cpu" not in names:
            continue
        base = root / "cpu" if controllers else root
        inner = Path(path.lstrip("/"))
        yield from (base / inner, *(base / parent for parent in inner.parents))


def _quota_of(folder: Path) -> float | None:
    both = _read(folder / "cpu.max").split()  # version 2: "max 100000" or "150000 100000"
    if not both:
        both = [_read(folder / name) for name in ("cpu.cfs_quota_us", "cpu.cfs_period_us")]
    try:
        quota, period = (float(number) for number in both)
    except ValueError:
        return None
    return quota / period if quota > 0 and period > 0 else None


def _read(path: Path) -> str:
    try:
        return path.read_text().strip()
    except OSError:
        return ""
