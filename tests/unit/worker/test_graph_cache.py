from __future__ import annotations

from rpc_backend.graph import Graph
from rpc_backend.testing.devices import NullPlan
from rpc_backend.worker.graph_cache import GraphCache


def plan() -> NullPlan:
    return NullPlan(Graph([]))


def test_a_plan_is_found_by_its_digest():
    cache, kept = GraphCache(2), plan()
    cache.add(b"x", kept, [1])
    assert cache.find(b"x") is kept
    assert cache.find(b"y") is None


def test_the_least_recently_used_plan_goes_first_and_is_closed():
    cache, plans = GraphCache(2), [plan(), plan(), plan()]
    cache.add(b"0", plans[0], [])
    cache.add(b"1", plans[1], [])
    cache.find(b"0")
    cache.add(b"2", plans[2], [])
    assert [cache.find(key) for key in (b"0", b"1", b"2")] == [plans[0], None, plans[2]]
    assert [item.closed for item in plans] == [False, True, False]


def test_freeing_a_buffer_drops_every_plan_that_touches_it():
    cache, plans = GraphCache(8), [plan(), plan(), plan()]
    for key, item, handles in zip((b"0", b"1", b"2"), plans, ([1, 2], [2], [3]), strict=True):
        cache.add(key, item, handles)
    cache.drop_buffer(2)
    assert [cache.find(key) for key in (b"0", b"1", b"2")] == [None, None, plans[2]]
    assert [item.closed for item in plans] == [True, True, False]


def test_clear_closes_all():
    cache, kept = GraphCache(8), plan()
    cache.add(b"0", kept, [1])
    cache.clear()
    assert kept.closed
    assert len(cache) == 0
