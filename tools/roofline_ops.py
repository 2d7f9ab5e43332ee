"""Times the rows of the numba backend's plans one by one, and says how much work each is.

Belongs here: what is known of the backend's plans, and what an operation must read and multiply. Must not be here:
limits (`roofline_limits`), or tables.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from rpc_backend.graph import Tensor
from rpc_backend_numba.plan import NumbaPlan, Step

_EMPTY_RUNS = 200


@dataclass(frozen=True, slots=True)
class Work:
    """What an operation must do at least: bytes moved from and to memory, multiply-adds, of floats or of bytes."""

    nbytes: float
    macs: float = 0.0
    is_float: bool = True


@dataclass(slots=True)
class PlanTimes:
    """The times of one plan: `rows` of each row when rows run alone, `whole` of all rows in one go; seconds.

    Of several runs the least counts, as for the limits: what else the machine did meanwhile is no property of a kernel.
    """

    plan: NumbaPlan
    rows: list[list[float]] = field(default_factory=list)
    whole: list[float] = field(default_factory=list)
    empty_s: float = 0.0

    @property
    def n_columns(self) -> int:
        """The columns of its widest product: the tokens it computes."""
        return max((node.ne[1] for node in self.plan.graph.nodes if _is_product(node)), default=0)

    @property
    def weights_nbytes(self) -> int:
        """Bytes of all matrices that its products read."""
        return sum(_packed(node.sources[0]) for node in self.plan.graph.nodes if _is_product(node))

    @property
    def whole_s(self) -> float:
        return min(self.whole)

    def row_s(self) -> list[float]:
        """The least time of each row, less `empty_s`, which a run without a row takes."""
        return [max(0.0, min(times) - self.empty_s) for times in zip(*self.rows, strict=True)]


@dataclass(slots=True)
class Recorder:
    """Every plan that ran while `recording`, by turns whole, through `run_whole`, and row by row."""

    run_whole: Callable[[NumbaPlan], None]
    times: dict[int, PlanTimes] = field(default_factory=dict)

    def run(self, plan: NumbaPlan) -> None:
        found = self.times.setdefault(id(plan), PlanTimes(plan))
        if len(found.whole) <= len(found.rows):
            found.whole.append(_timed(lambda: self.run_whole(plan)))
            return
        run, count = plan.run_steps, len(plan.steps())
        found.rows.append([_timed(lambda index=index: run(index, index + 1)) for index in range(count)])
        found.empty_s = min(_timed(lambda: run(0, 0)) for _ in range(_EMPTY_RUNS))

    def plan_of(self, n_columns: int) -> PlanTimes:
        """Return the longest plan of so many columns that ran both ways."""
        fit = [each for each in self.times.values() if each.n_columns == n_columns and each.rows and each.whole]
        assert fit, f"no plan of {n_columns} columns ran"
        return max(fit, key=lambda each: len(each.plan.graph.nodes))


@contextmanager
def recording() -> Iterator[Recorder]:
    """Record every plan of this process's numba devices. Do not close their buffers meanwhile."""
    original = NumbaPlan.run
    recorder = Recorder(original)

    def run(self: NumbaPlan) -> None:
        recorder.run(self)

    NumbaPlan.run = run
    try:
        yield recorder
    finally:
        NumbaPlan.run = original


def _timed(action: Callable[[], object]) -> float:
    started = time.perf_counter()
    action()
    return time.perf_counter() - started


def _work_of_step(step: Step) -> Work:
    """What makes inputs ready reads them and no more; what several nodes do together reads what is new to each."""
    if not step.nodes:
        return Work(sum(_packed(source) for source in step.node.sources[1:]))
    works = [work_of(node) for node in step.nodes]
    within = sum(_packed(source) for node in step.nodes for source in node.sources if source in step.nodes)
    moved, macs = sum(work.nbytes for work in works) - within, sum(work.macs for work in works)
    return Work(moved, macs, all(work.is_float for work in works))


def _group_of(step: Step) -> tuple[str, str, str]:
    """What steps have in common that the tables show as one: operations, kernel, shape."""
    name = "+".join(node.op.name for node in step.nodes or [step.node] if node.op)
    if not _is_product(step.node):
        return name, step.kernel, _shape(step.node)
    a, b = step.node.sources
    if not step.nodes:
        return name, step.kernel, _shape(b)
    return name, step.kernel, f"{a.type.name} {a.ne[0]} x {a.ne[1]} by {b.ne[1] * b.ne[2] * b.ne[3]}"


@dataclass(slots=True)
class GroupTimes:
    """All rows of one group in one run of a plan."""

    calls: int = 0
    seconds: float = 0.0
    nbytes: float = 0.0
    macs: float = 0.0
    is_float: bool = True


def grouped(times: PlanTimes) -> dict[tuple[str, str, str], GroupTimes]:
    """Return time and work by group, the slowest group first."""
    groups: dict[tuple[str, str, str], GroupTimes] = defaultdict(GroupTimes)
    for step, seconds in zip(times.plan.steps(), times.row_s(), strict=True):
        found, work = groups[_group_of(step)], _work_of_step(step)
        found.calls += 1
        found.seconds += seconds
        found.nbytes += work.nbytes
        found.macs += work.macs
        found.is_float = work.is_float
    return dict(sorted(groups.items(), key=lambda item: -item[1].seconds))


def work_of(node: Tensor) -> Work:
    """Return the work of a node: sources read once, the result written once, whatever the caches hold."""
    moved = float(_packed(node) + sum(_packed(source) for source in node.sources))
    name = node.op.name if node.op else ""
    if name == "MUL_MAT":
        return Work(moved, float(node.n_elements * node.sources[0].ne[0]), not node.sources[0].type.is_quantized)
    if name == "FLASH_ATTN_EXT":
        q, k, v = node.sources[:3]
        return Work(moved, float(q.n_rows * k.ne[1] * (k.ne[0] + v.ne[0])))
    if name in ("GET_ROWS", "SET_ROWS"):
        rows = node if name == "GET_ROWS" else node.sources[0]
        return Work(2.0 * _packed(rows))
    return Work(moved)


def _packed(tensor: Tensor) -> int:
    """The bytes of a tensor's elements, without what lies between them."""
    return tensor.type.row_nbytes(tensor.ne[0]) * tensor.n_rows


def _is_product(node: Tensor) -> bool:
    return node.op is not None and node.op.name == "MUL_MAT"


def _shape(tensor: Tensor) -> str:
    extents = [*tensor.ne]
    while len(extents) > 1 and extents[-1] == 1:
        extents.pop()
    return f"{tensor.type.name} {' x '.join(str(extent) for extent in extents)}"
