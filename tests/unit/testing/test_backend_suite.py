"""The backend suite itself: it passes what is right and finds each kind of wrong."""

from __future__ import annotations

import re
from collections.abc import Callable

import numpy as np
import pytest
from click.testing import CliRunner

from rpc_backend.errors import ComputeError, ConfigError, DeviceError
from rpc_backend.graph import OPS, Graph, Tensor, build
from rpc_backend.graph.element_types import BF16, F32, I32, Q4_K, Q8_0
from rpc_backend.interfaces import RunnablePlan, host_bytes
from rpc_backend.testing.backend_suite import Case, cases, run_case
from rpc_backend.testing.backend_suite.__main__ import main, parse_backend
from rpc_backend.testing.backend_suite.leaves import Leaves
from rpc_backend.testing.backend_suite.values import cells, covered_bytes, difference, numbers
from rpc_backend_reference.device import ReferenceDevice

_BY_ID = {case.id: case for case in cases()}
_ADD = next(case for case in _BY_ID.values() if case.op == "ADD")
_INTO_WINDOW = _BY_ID["CPY[F32,packed,F32,padded,35x6x4x2]"]
_OUTSIDE = _BY_ID["GET_ROWS[F32,I32,row 9 of 9]"]


class _Plan(RunnablePlan):
    """Runs the reference's plan, then does damage."""

    def __init__(self, plan: RunnablePlan, damage: Callable[[Graph, int], None]) -> None:
        self.graph = plan.graph
        self.n_runs = 0
        self._plan = plan
        self._damage = damage

    def run(self) -> None:
        self._plan.run()
        self.n_runs += 1
        self._damage(self.graph, self.n_runs)


class _Damaging(ReferenceDevice):
    def __init__(self, damage: Callable[[Graph, int], None]) -> None:
        super().__init__()
        self._damage = damage

    def compile(self, graph: Graph) -> RunnablePlan:  # type: ignore[override]
        return _Plan(super().compile(graph), self._damage)


def _change_result(graph: Graph, run: int) -> None:
    host_bytes(graph.nodes[-1]).view("<f4")[3] += 0.5


def _change_replay(graph: Graph, run: int) -> None:
    if run == 2:
        _change_result(graph, run)


def _make_nan(graph: Graph, run: int) -> None:
    host_bytes(graph.nodes[-1]).view("<f4")[0] = np.nan


def _change_input(graph: Graph, run: int) -> None:
    host_bytes(graph.nodes[0].sources[0])[1] ^= 1


def _change_after(graph: Graph, run: int) -> None:
    buffer, offset = graph.nodes[-1].location()
    buffer.bytes[offset + graph.nodes[-1].nbytes] ^= 1


def _change_before(graph: Graph, run: int) -> None:
    graph.nodes[-1].location()[0].bytes[5] ^= 1


def _change_gap(graph: Graph, run: int) -> None:
    host_bytes(graph.nodes[-1])[35 * 4] ^= 1


def _fail_otherwise(graph: Graph, run: int) -> None:
    raise DeviceError("fell over")


_DAMAGE = {
    "a wrong element": (_ADD, _change_result, "nmse error"),
    "a wrong replay": (_ADD, _change_replay, "nmse error"),
    "a NaN": (_ADD, _make_nan, "nmse error inf"),
    "a changed input": (_ADD, _change_input, "byte 1 of <leaf unnamed F32 .* was overwritten"),
    "a byte after the result": (_ADD, _change_after, "byte 0 after <ADD .* was written"),
    "a byte before everything": (_ADD, _change_before, "byte 5 before the first tensor was written"),
    "a byte between rows of a window": (_INTO_WINDOW, _change_gap, "of <leaf .* was overwritten"),
    "an error": (_ADD, _fail_otherwise, "DeviceError: fell over"),
}


@pytest.mark.parametrize(("case", "damage", "message"), _DAMAGE.values(), ids=_DAMAGE)
def test_damage_is_found(case, damage, message):
    assert run_case(ReferenceDevice(), case).status == "passed"
    result = run_case(_Damaging(damage), case)
    assert result.status == "failed"
    assert re.search(message, result.detail)


class _Unchecked(ReferenceDevice):
    """Computes rows outside a table without a word, or fails with another error."""

    def __init__(self, error: Exception | None) -> None:
        super().__init__()
        self._error = error

    def compile(self, graph: Graph) -> RunnablePlan:  # type: ignore[override]
        plan, error = super().compile(graph), self._error

        class Quiet(RunnablePlan):
            graph = plan.graph

            def run(self) -> None:
                try:
                    plan.run()
                except ComputeError:
                    if error is not None:
                        raise error from None

        return Quiet()


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (None, "bad data was computed without an error"),
        (DeviceError("bad"), "DeviceError instead of ComputeError"),
        (ComputeError("bad"), "the error does not name GET_ROWS"),
    ],
)
def test_rows_outside_must_be_a_compute_error_that_names_the_operation(error, message):
    assert run_case(ReferenceDevice(), _OUTSIDE).status == "passed"
    result = run_case(_Unchecked(error), _OUTSIDE)
    assert result.status == "failed"
    assert message in result.detail


class _Small(ReferenceDevice):
    def alloc_size(self, tensor: Tensor) -> int:
        return tensor.nbytes - 1


class _Undecided(ReferenceDevice):
    def supports_ops(self, tensors):
        return [False for _ in tensors]


class _Poor(ReferenceDevice):
    def supports_op(self, tensor: Tensor) -> bool:
        return tensor.op is not None and tensor.op.name != "ADD"


def test_allocation_sizes_and_answers_are_checked():
    assert "does not hold its" in run_case(_Small(), _ADD).detail
    assert "disagree" in run_case(_Undecided(), _ADD).detail


def test_what_a_device_refuses_is_unsupported():
    result = run_case(_Poor(), _ADD)
    assert result.status == "unsupported"
    assert "<ADD" in result.detail


def test_another_device_can_be_the_oracle():
    assert run_case(ReferenceDevice(), _ADD, oracle=_Damaging(_change_result)).status == "failed"


def test_every_operation_has_cases_with_ids_of_their_own():
    listed = cases()
    assert {case.op for case in listed} == set(OPS)
    assert len({case.id for case in listed}) == len(listed) > 800
    assert all(case.id.startswith(f"{case.op}[") for case in listed)


def test_inputs_are_the_same_for_the_same_seed_and_differ_between_rounds():
    def made(seed):
        leaves = Leaves(seed)
        leaves.tensor(Q4_K, (256, 2, 1, 1))
        leaves.tensor(F32, (5, 2, 1, 1), "padded")
        leaves.indices(I32, (4, 1, 1, 1), 9)
        return [leaf.contents for leaf in leaves.made]

    assert made(1) == made(1)
    assert made(1) != made(2)
    assert all(first != second for first, second in made(1))


@pytest.mark.parametrize("layout", ["packed", "padded", "sliced", "permuted", "transposed", "rolled"])
def test_every_layout_has_the_asked_extents(layout):
    tensor = Leaves(1).tensor(F32, (5, 4, 3, 2), layout)
    assert tensor.ne == (5, 4, 3, 2)
    assert tensor.is_contiguous == (layout == "packed")


def test_random_blocks_are_finite_and_small():
    leaf = Leaves(1)
    tensor = leaf.tensor(Q8_0, (320, 20, 1, 1))
    values = numbers(Q8_0, cells(tensor, np.frombuffer(leaf.made[0].contents[0], np.uint8)))
    assert values.shape == (1, 1, 20, 320)
    assert np.all(np.abs(values) < 3)
    assert np.count_nonzero(values) > 6000


def test_measures():
    ours, oracle = np.array([1.0, 2.0, np.inf]), np.array([1.0, 2.1, np.inf])
    assert difference("nmse", F32, ours, oracle, None) == pytest.approx(0.01 / (1 + 2.1**2))
    assert difference("relative", F32, ours, oracle, None) == pytest.approx(0.1 / 2.1, rel=1e-4)
    assert difference("exact", F32, ours, oracle, None) == pytest.approx(1 / 3)
    assert difference("exact", F32, np.array([np.nan]), np.array([np.nan]), None) == 0
    assert difference("exact", BF16, np.array([0x8000]), np.array([0]), None) == 0
    assert difference("nmse", F32, np.array([1.0]), np.array([0.0]), None) == np.inf
    assert difference("nmse", F32, -ours, oracle, None) == np.inf
    assert difference("nmse", F32, np.array([1.0]), np.array([np.nan]), None) == np.inf


def test_measures_of_indices():
    source, oracle = np.array([[3.0, 1.0, 3.0, 2.0]]), np.array([[0, 2, 3, 1]])
    for ours, order in (
        ([2, 0, 3, 1], 0), ([3, 0, 2, 1], 1), ([0, 0, 3, 1], 1), ([0, 2, 3, 4], np.inf), ([0, 2, 3, -1], np.inf),
    ):  # fmt: skip
        assert difference("order", I32, np.array([ours]), oracle, source) == order


def test_bytes_of_a_window():
    window = build.view(build.leaf(F32, (3, 2)), (1, 2), (4, 12, 24, 24), 4)
    assert np.flatnonzero(covered_bytes(window, 24, 4)).tolist() == [4, 5, 6, 7, 16, 17, 18, 19]


def test_the_command_prints_the_table_and_exits_0():
    result = CliRunner().invoke(main, ["reference", "-k", "ARGMAX", "-v", "--threads", "1"])
    assert result.exit_code == 0, result.output
    assert "ARGMAX" in result.output
    assert "passed" in result.output


def test_the_command_exits_1_on_a_failure(monkeypatch):
    monkeypatch.setattr(ReferenceDevice, "alloc_size", _Small.alloc_size)
    result = CliRunner().invoke(main, ["reference", "-k", "ARGMAX[F32,ties]"])
    assert result.exit_code == 1
    assert "failed ARGMAX[F32,ties]: alloc_size" in result.output


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["abacus"], "no compute backend named 'abacus'"),
        (["reference", "-k", "NOTHING"], "no case id holds 'NOTHING'"),
        (["reference:speed=9", "-k", "ARGMAX"], "it was given speed"),
        (["reference:speed", "-k", "ARGMAX"], "option 'speed' of backend reference is not key=value"),
        (["reference", "--threads", "-1"], "--threads"),
    ],
)
def test_the_command_exits_2_on_bad_arguments(arguments, message):
    result = CliRunner().invoke(main, arguments)
    assert result.exit_code == 2
    assert message in result.output


def test_options_of_a_backend():
    assert parse_backend("numba") == ("numba", {})
    assert parse_backend("numba:a=1,b=x=y") == ("numba", {"a": "1", "b": "x=y"})
    with pytest.raises(ConfigError, match="'=1'"):
        parse_backend("numba:=1")


def test_a_case_can_be_written_by_a_plugin_author():
    case = Case("OWN[add]", "ADD", lambda leaves: build.add(*(leaves.tensor(F32, (3, 1, 1, 1)) for _ in range(2))))
    assert run_case(ReferenceDevice(), case).status == "passed"
