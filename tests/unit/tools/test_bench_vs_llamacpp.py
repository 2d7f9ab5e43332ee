from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from rpc_backend.testing.gguf_writer import write_tiny_model


@pytest.fixture
def cells(tool: Callable[[str], ModuleType]) -> ModuleType:
    return tool("bench_cells")


@pytest.fixture
def bench(tool: Callable[[str], ModuleType]) -> ModuleType:
    return tool("bench_vs_llamacpp")


def cell_of(cells: ModuleType, model: str, index: int, ours: list[float], theirs: list[float]) -> Any:
    return cells.Cell(model, cells.WORKLOADS[index], {cells.OURS: ours, cells.THEIRS: theirs})


def test_the_arms_take_turns_and_warm_up_first(cells: ModuleType) -> None:
    calls: list[str] = []

    def arm(name: str, rate: float) -> Callable[[Any], float]:
        def run(workload: Any) -> float:
            calls.append(f"{name} {workload.name}")
            return rate

        return run

    workloads = cells.WORKLOADS[:2]
    found = cells.run_rounds("m", workloads, {cells.OURS: arm("o", 6.0), cells.THEIRS: arm("t", 2.0)}, 2)
    assert calls[:4] == ["o decode 1", "o decode 8", "t decode 1", "t decode 8"]
    assert calls[4:8] == ["o decode 1", "t decode 1", "o decode 8", "t decode 8"]
    assert calls[8:] == ["t decode 1", "o decode 1", "t decode 8", "o decode 8"]
    assert [cell.rates for cell in found] == [{cells.OURS: [6.0, 6.0], cells.THEIRS: [2.0, 2.0]}] * 2
    assert [cell.ratio for cell in found] == [3.0, 3.0]


def test_short_workloads_are_run_until_a_second_is_timed(cells: ModuleType) -> None:
    workload = cells.Workload("p", cells.Where.PROCESS, True, 1, 512, 1)
    rates = iter([1.0, 1024.0, 2048.0, 4096.0, 512.0])
    (cell,) = cells.run_rounds(
        "m", [workload], {cells.OURS: lambda each: next(rates), cells.THEIRS: lambda each: 100.0}, 1
    )
    assert cell.rates[cells.OURS] == [4 * 512 / (0.5 + 0.25 + 0.125 + 1)]
    assert cell.rates[cells.THEIRS] == [100.0]


def test_the_ratio_is_the_median_of_the_rounds_ratios(cells: ModuleType) -> None:
    cell = cell_of(cells, "demo", 0, [10.0, 4.0, 9.0], [5.0, 1.0, 3.0])
    assert cell.ratios == [2.0, 4.0, 3.0]
    assert cell.ratio == 3.0
    assert (cell.goal, cell.is_missed) == (2.0, False)
    assert cell_of(cells, "demo", 0, [1.9], [1.0]).is_missed
    unknown = cell_of(cells, "other", 0, [0.1], [1.0])
    assert (unknown.goal, unknown.is_missed) == (None, False)


def test_every_workload_has_a_goal_for_every_named_model(cells: ModuleType) -> None:
    assert {len(goals) for goals in cells.GOALS.values()} == {len(cells.WORKLOADS)}
    assert len({workload.title for workload in cells.WORKLOADS}) == len(cells.WORKLOADS)


def test_rates_count_the_tokens_of_all_sequences(cells: ModuleType) -> None:
    where = cells.Where.WORKERS
    decode = cells.Workload("d", where, False, 8, 32, 40)
    assert decode.rate(prefill_s=99.0, decode_s=2.0) == 160.0
    assert cells.Workload("p", where, True, 2, 512, 1).rate(prefill_s=4.0, decode_s=99.0) == 256.0
    short = decode.shortened()
    assert (short.n_seqs, short.n_prompt, short.n_decode, short.title) == (8, 8, 10, decode.title)


def test_the_table_names_what_is_missed(bench: ModuleType, cells: ModuleType) -> None:
    found = [cell_of(cells, "demo", 0, [3.0], [2.0]), cell_of(cells, "demo", 3, [14.0, 13.0, 12.0], [2.0] * 3)]
    text = list(bench.lines(found, 5.0))
    assert "| 2 workers x 1 thread: decode 1 | 1.50 (2) | 1.50 to 1.50 | 3.0 | 2.0 |" in text
    assert "| 2 workers x 1 thread: prefill 512 | 6.50 (6) | 6.00 to 7.00 | 13.0 | 2.0 |" in text
    assert "Below what is aimed at: 2 workers x 1 thread: decode 1: 1.50 of 2." in text
    assert "Below what is aimed at: none." in list(bench.lines(found[1:], 5.0))


def test_a_run_measures_each_place_once_per_model_and_writes_its_part(
    bench: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    loads: list[tuple[str, str, list[str], bool]] = []

    @contextmanager
    def arms(model: Path, where: Any, workloads: list[Any], python: str, *, backend_sampling: bool) -> Any:
        loads.append((model.name, python, [f"{each.name}/{each.n_decode}" for each in workloads], backend_sampling))
        yield {bench.OURS: lambda workload: 4.0, bench.THEIRS: lambda workload: 2.0}

    page = tmp_path / "page.md"
    monkeypatch.setattr(bench.bench_arms, "arms", arms)
    monkeypatch.setattr(bench, "PAGE", page)
    assert (
        bench.main(["a.gguf", "b.gguf", "--llama-python", "py", "--quick", "--only", "decode", "--json", "--write"])
        == 0
    )
    workers, process = ["decode 1/16", "decode 8/8", "decode 32/6"], ["decode 1/16"]
    assert loads == [(name, "py", each, True) for name in ("a.gguf", "b.gguf") for each in (workers, process)]
    printed = json.loads(capsys.readouterr().out)
    assert [(each["model"], each["ratio"], each["ratios"]) for each in printed] == [
        (name, 2.0, [2.0] * 3) for name in "aaaabbbb"
    ]
    assert [line for line in page.read_text().splitlines() if "part" in line] == [
        f"<!-- part: bench_vs_llamacpp {name} -->" for name in "ab"
    ]


def test_what_was_measured_before_a_failure_is_written(
    bench: ModuleType, cells: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def compare(name: str, options: Any) -> list[Any]:
        if name == "b":
            raise bench.llamacpp.LlamaCppError("b: gone")
        return [cell_of(cells, name, 0, [3.0], [2.0])]

    page = tmp_path / "page.md"
    monkeypatch.setattr(bench, "compare", compare)
    monkeypatch.setattr(bench, "PAGE", page)
    assert bench.main(["a", "b", "--llama-python", "py", "--write"]) == 1
    assert "| 1.50 |" in page.read_text()


def test_an_interpreter_that_is_not_there_is_one_line(
    bench: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model = write_tiny_model(tmp_path / "m.gguf")
    assert bench.main([str(model), "--llama-python", "/no/python", "--only", "in process"]) == 1
    assert "error: /no/python cannot be run: No such file or directory" in capsys.readouterr().err
