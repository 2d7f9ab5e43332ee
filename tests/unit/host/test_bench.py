"""The bench workload, on the reference backend in this process."""

from __future__ import annotations

import pytest

from rpc_backend.errors import ConfigError
from rpc_backend.host import LLM
from rpc_backend.host.bench import run_bench
from rpc_backend.testing.gguf_writer import write_tiny_model


@pytest.fixture(scope="module")
def llm(tmp_path_factory):
    model = write_tiny_model(tmp_path_factory.mktemp("model") / "tiny.gguf")
    with LLM(model, workers="none", device="reference", n_ctx=24, n_seq=3, pipeline_groups=2) as opened:
        yield opened


def test_every_combination_is_a_row_with_sound_figures(llm):
    results = list(run_bench(llm, [4, 8], [3], [1, 3]))
    rows = [result.row for result in results]
    assert [(row.npp, row.ntg, row.npl) for row in rows] == [(4, 3, 1), (4, 3, 3), (8, 3, 1), (8, 3, 3)]
    for row in rows:
        assert row.t == pytest.approx(row.t_pp + row.t_tg)
        assert row.s_pp == pytest.approx(row.npl * row.npp / row.t_pp)
        assert row.s_tg == pytest.approx(row.npl * row.ntg / row.t_tg)
    assert results[0].per_step.messages == {}  # no worker, no wire


@pytest.mark.parametrize(("npp", "ntg", "npl"), [([0], [1], [1]), ([1], [0], [1]), ([1], [1], [4]), ([22], [3], [1])])
def test_what_does_not_fit_is_refused(llm, npp, ntg, npl):
    with pytest.raises(ConfigError):
        next(run_bench(llm, npp, ntg, npl))
