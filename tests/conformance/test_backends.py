"""The public backend suite over every registered compute backend."""

from __future__ import annotations

import functools
from collections.abc import Callable

import pytest

from rpc_backend.graph import OPS
from rpc_backend.hookspecs import DeviceOptions
from rpc_backend.interfaces import Device
from rpc_backend.registry import load_registry, probe_of
from rpc_backend.testing.backend_suite import Case, CaseResult, cases, run_case

_CASES = cases()
_BACKENDS = sorted(load_registry().backends)
Run = Callable[[str, Case], CaseResult]


def _devices(backend: str, threads: int = 0) -> list[Device]:
    registry = load_registry()
    probe = probe_of(registry.backend(backend))
    if not probe.usable:
        pytest.skip(f"backend {backend} is not usable here: {probe.reason}")
    return list(registry.create_devices(backend, DeviceOptions(threads=threads)))


@pytest.fixture(scope="module")
def run() -> Run:
    """Runs a case on the first device of a backend, each case once."""
    device = functools.cache(lambda backend: _devices(backend)[0])
    return functools.cache(lambda backend, case: run_case(device(backend), case))


@pytest.mark.parametrize("backend", _BACKENDS)
@pytest.mark.parametrize("case", _CASES, ids=lambda case: case.id)
def test_agrees_with_the_reference(run: Run, backend: str, case: Case) -> None:
    result = run(backend, case)

    assert result.status != "failed", result.detail
    if result.status == "unsupported":
        pytest.skip(f"{backend} does not take {result.detail}")


def test_the_reference_covers_every_operation(run: Run) -> None:
    assert [case.id for case in _CASES if run("reference", case).status != "passed"] == []
    assert {case.op for case in _CASES} == set(OPS)


def test_numba_takes_every_operation(run: Run) -> None:
    covered = {case.op for case in _CASES if run("numba", case).status == "passed"}

    assert set(OPS) - covered == set()


@pytest.mark.parametrize("backend", _BACKENDS)
def test_results_do_not_depend_on_the_number_of_threads(backend: str) -> None:
    one, three = _devices(backend, 1)[0], _devices(backend, 3)[0]

    results = [run_case(three, case, oracle=one) for case in _CASES[::5] if not case.fails_first]

    assert [(result.case.id, result.detail) for result in results if result.status == "failed"] == []
    one.close()
    three.close()
