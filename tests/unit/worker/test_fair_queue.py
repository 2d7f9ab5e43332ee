from __future__ import annotations

from rpc_backend.worker.fair_queue import FairQueue


def drain(queue: FairQueue[str]) -> list[str]:
    taken = []
    while queue:
        taken.append(queue.take())
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
