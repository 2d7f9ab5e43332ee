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
