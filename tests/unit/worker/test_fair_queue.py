from __future__ import annotations

from rpc_backend.worker.fair_queue import FairQueue


def drain(queue: FairQueue[str]) -> list[str]:
    taken = []
    while (item := queue.take()) is not None:
        taken.append(item)
    return taken


def test_owners_take_turns_and_each_keeps_its_order():
    queue: FairQueue[str] = FairQueue()
    for item in ("a1", "a2", "a3", "b1", "b2", "c1"):
        queue.put(item[0], item)
    assert drain(queue) == ["a1", "b1", "c1", "a2", "b2", "a3"]


def test_an_owner_that_comes_back_stands_behind_the_others():
    queue: FairQueue[str] = FairQueue()
    queue.put("a", "a1")
    queue.put("b", "b1")
    assert queue.take() == "a1"
    queue.put("a", "a2")
    assert drain(queue) == ["b1", "a2"]


def test_drop_takes_out_one_owner_only():
    queue: FairQueue[str] = FairQueue()
    for item in ("a1", "b1", "a2"):
        queue.put(item[0], item)
    assert queue.drop("a") == ["a1", "a2"]
    assert queue.drop("a") == []
    assert drain(queue) == ["b1"]


class Gates:
    """Seconds that items must wait, by name; a clock."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self.wait_s: dict[str, float] = {}
        self.queue: FairQueue[str] = FairQueue(lambda item: self.wait_s.get(item, 0.0), clock=lambda: self.now_s)
        for item in ("a1", "a2", "b1"):
            self.queue.put(item[0], item)

    def drain(self) -> list[str]:
        return drain(self.queue)


def test_an_owner_whose_first_item_waits_is_passed_over_and_keeps_its_order():
    gates = Gates()
    gates.wait_s["a1"] = 10.0
    assert gates.drain() == ["b1"]
    gates.queue.put("a", "a3")
    gates.wait_s.clear()
    assert gates.drain() == [], "nobody looks before it is woken"
    gates.queue.wake("a")
    assert gates.drain() == ["a1", "a2", "a3"]
    assert not gates.queue


def test_an_owner_that_waits_long_enough_has_its_turn():
    gates = Gates()
    gates.wait_s["a1"] = 10.0
    assert gates.drain() == ["b1"]
    assert gates.queue.idle_s() == 10.0
    gates.now_s, gates.wait_s["a1"] = 10.5, 0.0
    assert gates.drain() == ["a1", "a2"]
    assert gates.queue.idle_s() is None


def test_an_owner_may_wait_without_end():
    gates = Gates()
    gates.wait_s["a1"] = float("inf")
    assert gates.drain() == ["b1"]
    assert gates.queue.idle_s() is None


def test_waking_one_that_does_not_wait_changes_nothing():
    gates = Gates()
    for owner in ("a", "c"):
        gates.queue.wake(owner)
    assert gates.drain() == ["a1", "b1", "a2"]


def test_drop_takes_out_one_that_waits():
    gates = Gates()
    gates.wait_s["a1"] = 1.0
    gates.drain()
    assert gates.queue.drop("a") == ["a1", "a2"]
    gates.now_s = 2.0
    assert gates.drain() == []
