"""Compiled graphs that a client may ask for again by their digest.

Belongs here: which plans are kept. Must not be here: compiling or running them.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable
from dataclasses import dataclass

from rpc_backend.interfaces import Plan


@dataclass(frozen=True, slots=True)
class CachedPlan:
    """A plan, and the handles of all buffers that its graph touches."""

    plan: Plan
    handles: frozenset[int]


class GraphCache:
    """The last used plans of one session on one device. Used by the thread of that device only."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._plans: OrderedDict[bytes, CachedPlan] = OrderedDict()

    def __len__(self) -> int:
        return len(self._plans)

    def find(self, digest: bytes) -> Plan | None:
        """Return the plan of a graph, if it is still trusted."""
        cached = self._plans.get(digest)
        if cached is None:
            return None
        self._plans.move_to_end(digest)
        return cached.plan

    def add(self, digest: bytes, plan: Plan, handles: Iterable[int]) -> None:
        """Keep a plan; the least recently used one goes if there are too many."""
        self._plans[digest] = CachedPlan(plan, frozenset(handles))
        if len(self._plans) > self._limit:
            _, oldest = self._plans.popitem(last=False)
            oldest.plan.close()

    def drop_buffer(self, handle: int) -> None:
        """Forget every plan that touches a buffer."""
        for digest in [digest for digest, cached in self._plans.items() if handle in cached.handles]:
            self._plans.pop(digest).plan.close()

    def clear(self) -> None:
        """Forget everything."""
        while self._plans:
            self._plans.popitem()[1].plan.close()
