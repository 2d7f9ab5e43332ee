"""The thread of a device."""

from __future__ import annotations

import threading

from rpc_backend.worker.lanes import DeviceLane


def test_items_of_one_owner_run_in_order_and_owners_take_turns():
    ran: list[str] = []
    may_run, done = threading.Event(), threading.Event()

    def run(item: str) -> None:
        may_run.wait(5)
        ran.append(item)
        if len(ran) == 5:
            done.set()

    lane: DeviceLane[str] = DeviceLane("lane", run)
    lane.start()
    for item in ("a1", "a2", "a3", "b1", "b2"):
        lane.put(item[0], item)
    may_run.set()
    assert done.wait(5)
    assert ran.index("b1") < ran.index("a3")
    assert [item for item in ran if item[0] == "a"] == ["a1", "a2", "a3"]
    assert lane.close(5)


def test_what_was_dropped_does_not_run():
    ran: list[str] = []
    done = threading.Event()

    def run(item: str) -> None:
        ran.append(item)
        if item == "c1":
            done.set()

    lane: DeviceLane[str] = DeviceLane("lane", run)
    for item in ("a1", "a2", "b1"):
        lane.put(item[0], item)
    assert lane.drop("a") == ["a1", "a2"]
    lane.put("c", "c1")
    lane.start()
    assert done.wait(5)
    assert ran == ["b1", "c1"]
    assert lane.close(5)


def test_closing_does_not_wait_for_a_command_that_hangs():
    started, release = threading.Event(), threading.Event()

    def run(item: str) -> None:
        started.set()
        release.wait(10)

    lane: DeviceLane[str] = DeviceLane("lane", run)
    lane.start()
    lane.put("a", "a1")
    assert started.wait(5)
    assert not lane.close(0.05)
    release.set()
    assert lane.close(5)


def test_an_owner_that_waits_is_passed_over_until_it_is_woken_or_its_time_is_up():
    ran: list[str] = []
    done = threading.Event()
    open_gates: set[str] = set()
    asked: dict[str, int] = {}

    def run(item: str) -> None:
        ran.append(item)
        if len(ran) == 5:
            done.set()

    def wait_s(item: str) -> float:
        asked[item] = asked.get(item, 0) + 1
        if item == "a1":
            return 0.0 if "a" in open_gates else 60.0
        if item == "b1":  # not ready when it is first looked at, and never woken
            return 0.0 if asked[item] > 1 else 0.05
        return 0.0

    lane: DeviceLane[str] = DeviceLane("lane", run, wait_s)
    lane.start()
    for item in ("a1", "a2", "b1", "c1"):
        lane.put(item[0], item)
    waker = threading.Timer(0.15, lambda: (open_gates.add("a"), lane.wake("a")))
    waker.start()
    lane.put("c", "c2")
    assert done.wait(5)
    waker.join(5)
    assert ran == ["c1", "c2", "b1", "a1", "a2"]
    assert asked["a1"] <= 3, "the lane sleeps while nothing changes"
    assert lane.close(5)


def test_a_lane_whose_owners_all_wait_can_be_closed():
    lane: DeviceLane[str] = DeviceLane("lane", lambda item: None, lambda item: float("inf"))
    lane.start()
    lane.put("a", "a1")
    assert lane.close(5)
