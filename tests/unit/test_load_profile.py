"""The sums of a load and their line."""

from __future__ import annotations

import pytest

from rpc_backend.load_profile import DIGEST, GAPS, STAGING, WIRE, LoadProfile


class Clock:
    """A clock that stands still until it is moved."""

    def __init__(self) -> None:
        self.now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def profile(clock) -> LoadProfile:
    return LoadProfile(clock)


def parts_of(line: str) -> dict[str, float]:
    """Return the seconds of each part of a line."""
    shown = line.split("; ")[1].split(", ")
    return {name: float(seconds) for name, seconds, _ in (part.split(" ") for part in shown)}


def test_wire_is_the_time_with_something_under_way(profile, clock):
    profile.began(10)
    clock.now_s += 1
    profile.began(20)
    clock.now_s += 2
    profile.ended()
    clock.now_s += 4
    profile.ended()
    clock.now_s += 8
    profile.began(30)
    clock.now_s += 16
    profile.ended()
    line = profile.take("here")
    assert line.startswith("zmq-rpc loadprof here: 3 SET_TENSOR, 60 B in 31.000 s; ")
    assert parts_of(line) == {DIGEST: 0, STAGING: 0, WIRE: 23, GAPS: 8}


def test_digests_and_staging_in_a_gap_are_not_counted_twice(profile, clock):
    profile.began(1)
    profile.ended()
    with profile.timing(DIGEST):
        clock.now_s += 3
    with profile.timing(STAGING):
        clock.now_s += 2
    clock.now_s += 1
    profile.began(1)
    profile.ended()
    assert parts_of(profile.take("x")) == {DIGEST: 3, STAGING: 2, WIRE: 0, GAPS: 1}


def test_digests_beside_the_wire_make_no_negative_gap(profile, clock):
    profile.began(1)
    with profile.timing(DIGEST):
        clock.now_s += 5
    profile.ended()
    clock.now_s += 1
    profile.began(1)
    profile.ended()
    assert parts_of(profile.take("x"))[GAPS] == 1


def test_commands_come_with_calls_and_times_the_longest_first(profile, clock):
    profile.command("PING", 0.5)
    with profile.timing_command("SET_TENSOR"):
        clock.now_s += 2
    profile.command("PING", 0.25)
    assert profile.take("x").endswith("; commands: SET_TENSOR 1 calls 2.000 s, PING 2 calls 0.750 s")


def test_taking_begins_anew(profile, clock):
    profile.call(clock.now_s, clock.now_s + 2, 5)
    profile.add("write", 2)
    assert ": 1 SET_TENSOR, 5 B in 2.000 s; " in profile.take("x")
    assert profile.take("x") == (
        "zmq-rpc loadprof x: 0 SET_TENSOR, 0 B in 0.000 s; digest 0.000 s, staging 0.000 s, wire 0.000 s, "
        "gaps 0.000 s; commands: none"
    )


def test_an_error_in_a_block_is_still_timed(profile, clock):
    def fail() -> None:
        with profile.timing(STAGING):
            clock.now_s += 1
            raise ValueError

    with pytest.raises(ValueError):  # noqa: PT011 (it is raised here)
        fail()
    assert parts_of(profile.take("x"))[STAGING] == 1
