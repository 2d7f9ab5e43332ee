"""What enters and leaves each split: a pure function of the plan."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pytest

from rpc_backend.graph import Graph, Tensor, build, element_type
from rpc_backend.scheduler import DeviceFacts, GraphPlan, plan_graph
from rpc_backend.scheduler.visits import Itinerary, plan_visits

F32 = element_type("F32")


def leaf(name: str) -> Tensor:
    return build.leaf(F32, [4, 4], name)


def planned(
    nodes: Sequence[Tensor], placement: Mapping[Tensor, int], outputs: Sequence[Tensor], n_devices: int = 3
) -> GraphPlan:
    facts = [DeviceFacts(f"d{index}") for index in range(n_devices)]
    return plan_graph(Graph.of(*nodes), facts, placement, outputs)


def visited(plan: GraphPlan, direct: bool = False) -> Itinerary:
    itinerary = plan_visits(plan, lambda source, target: direct)
    assert itinerary is not None
    return itinerary


def chain() -> tuple[GraphPlan, list[Tensor], Tensor]:
    """x enters on two devices; what the first computes is read on both others."""
    weights = [leaf(f"w{index}") for index in range(4)]
    x = leaf("x")
    first = build.mul_mat(weights[0], x)
    second = build.add(build.mul_mat(weights[1], first), x)
    third = build.add(build.mul_mat(weights[2], second), build.mul_mat(weights[3], first))
    return planned([third], dict(zip(weights, (0, 1, 2, 2), strict=True)), [third, first]), [first, second, third], x


def test_carried_by_the_host() -> None:
    plan, (first, second, third), x = chain()
    itinerary = visited(plan)
    assert [visit.split.device for visit in itinerary.visits] == [0, 1, 2]
    one, two, three = itinerary.visits
    assert one.reads == [first]  # once, although two devices and the user need it
    assert [(slot.tensor, source, read) for slot, source, read in two.carried] == [(first, 0, 0)]
    assert [(slot.tensor, source, read) for slot, source, read in three.carried] == [(second, 1, 0), (first, 0, 0)]
    assert [(position, slot.tensor, slot.device) for position, slot in two.inputs] == [(0, x, 1)]
    assert three.inputs == []
    assert (two.reads, three.reads) == ([second], [third])
    assert itinerary.outputs == {third: (2, 0), first: (0, 0)}
    assert (itinerary.n_tickets, itinerary.overlaps) == (0, True)
    assert all(not visit.received and not visit.onward for visit in itinerary.visits)


def test_sent_straight() -> None:
    plan, (first, second, third), _ = chain()
    itinerary = visited(plan, direct=True)
    one, two, three = itinerary.visits
    assert (one.onward, two.onward) == ([(first, 1, 0), (first, 2, 2)], [(second, 2, 1)])
    assert [(slot.tensor, ticket) for slot, ticket in two.received] == [(first, 0)]
    assert [(slot.tensor, ticket) for slot, ticket in three.received] == [(second, 1), (first, 2)]
    assert (one.reads, two.reads, three.reads) == ([first], [], [third])
    assert itinerary.n_tickets == 3
    assert all(not visit.carried for visit in itinerary.visits)


def test_both_ways_in_one_plan() -> None:
    plan, _, _ = chain()
    itinerary = plan_visits(plan, lambda source, target: source == 1)
    assert itinerary is not None
    assert [len(visit.carried) for visit in itinerary.visits] == [0, 1, 1]
    assert [len(visit.received) for visit in itinerary.visits] == [0, 0, 1]


def test_a_device_that_is_visited_twice() -> None:
    weights = [leaf("w0"), leaf("w1")]
    cache, x = leaf("cache"), leaf("x")
    first = build.mul_mat(weights[0], x)
    write = build.cpy(first, cache)
    second = build.mul_mat(weights[1], first)
    third = build.mul_mat(weights[0], build.add(second, x))
    plan = planned([write, third], {weights[0]: 0, weights[1]: 1, cache: 0}, [third, cache])
    itinerary = visited(plan)
    assert [visit.split.device for visit in itinerary.visits] == [0, 1, 0]
    assert not itinerary.overlaps
    assert [len(visit.inputs) for visit in itinerary.visits] == [1, itinerary.visits[1].inputs != [], 0]
    assert itinerary.outputs == {third: (2, 0), cache: (2, 1)}  # as it is at the end of the run


def test_a_device_that_was_not_visited_before() -> None:
    far, near, x = leaf("far"), leaf("near"), leaf("x")
    out = build.mul_mat(near, build.add(x, far))
    nodes = Graph.of(out).nodes
    plan = planned([out], {near: 0, far: 1, **dict.fromkeys(nodes, 0)}, [out])
    assert plan_visits(plan, lambda source, target: False) is None
    alone = build.mul_mat(near, x)
    plan = planned([alone, build.scale(far, 2.0)], {near: 0, far: 1}, [alone])
    assert plan_visits(plan, lambda source, target: False) is not None


def test_an_output_with_gaps_is_not_read() -> None:
    weight, x = leaf("w"), leaf("x")
    out = build.mul_mat(weight, x)
    turned = build.transpose(out)
    itinerary = visited(planned([turned], {weight: 0}, [out, turned]))
    assert itinerary.outputs == {out: (0, 0)}
    assert itinerary.visits[0].reads == [out]


@pytest.mark.parametrize("direct", [False, True])
def test_equal_plans_give_equal_visits(direct: bool) -> None:
    texts = [
        [
            (visit.split.device, len(visit.inputs), len(visit.reads), [t for *_, t in visit.onward])
            for visit in visited(chain()[0], direct).visits
        ]
        for _ in range(2)
    ]
    assert texts[0] == texts[1]
