"""Steps that overlap: the same tokens in every arm, and what crosses the wire per step."""

from __future__ import annotations

import pytest

from rpc_backend.host import LLM, SamplerParams
from rpc_backend.host.bench import run_bench
from rpc_backend.host.local_workers import LocalWorkers
from rpc_backend.settings import Settings

PROMPTS = [
    "The capital of France is",
    "Water boils at",
    "def fibonacci(n):",
    "Once upon a time,",
    "1, 1, 2, 3, 5,",
    "No",
]
GREEDY = SamplerParams(temperature=0.0)
DRAWN = SamplerParams(temperature=0.9, top_k=40, top_p=0.9, min_p=0.02, seed=11)
N_TOKENS = 16
NEWEST = Settings()


def _tokens(model, params=GREEDY, **options):
    with LLM(model, n_ctx=256, n_seq=len(PROMPTS), threads=1, **options) as llm:
        return [result.tokens for result in llm.generate_batch(PROMPTS, max_tokens=N_TOKENS, params=params)]


@pytest.fixture(scope="module")
def greedy(demo_model):
    return _tokens(demo_model, workers="none")


@pytest.fixture(scope="module")
def drawn(demo_model):
    return _tokens(demo_model, DRAWN, workers="none")


@pytest.mark.parametrize("params", [GREEDY, DRAWN], ids=["greedy", "drawn"])
@pytest.mark.parametrize("workers", ["local:1", "local:2"])
def test_running_ahead_changes_no_token(demo_model, greedy, drawn, workers, params):
    with LLM(demo_model, n_ctx=256, n_seq=len(PROMPTS), threads=1, workers=workers, run_ahead=False) as llm:
        assert not llm.context.can_run_ahead
        plain = [result.tokens for result in llm.generate_batch(PROMPTS, max_tokens=N_TOKENS, params=params)]
    assert plain == (greedy if params is GREEDY else drawn)


def test_ends_stops_and_full_contexts_are_where_they_are_without_running_ahead(demo_model):
    """On one loaded model: whatever ended early was in a step too many, which nothing after it sees."""
    found = []
    for run_ahead in (False, True):
        with LLM(demo_model, n_ctx=48, n_seq=2, threads=1, workers="local:2", run_ahead=run_ahead) as llm:
            assert llm.context.can_run_ahead is run_ahead
            stopped = llm.generate("1, 2, 3, 4,", max_tokens=30, params=GREEDY, stop=["9"])
            full = llm.generate("The capital of France is", max_tokens=99, params=GREEDY)
            both = llm.generate_batch(PROMPTS[:2], max_tokens=8, params=GREEDY, log_probs=True)
            stream = llm.stream(PROMPTS[2], max_tokens=20, params=GREEDY)
            left = [piece.token for piece, _ in zip(stream, range(5), strict=False)]
            after = llm.generate(PROMPTS[3], max_tokens=12, params=GREEDY)
            results = [stopped, full, *both, after]
            found.append([(each.text, each.tokens, each.stop_reason, each.log_probs) for each in results] + [left])
            assert llm.wire()[next(iter(llm.wire()))]["commands"].get("BURY_TICKETS", 0) == (5 if run_ahead else 0)
    assert found[0] == found[1]
    assert [each[2] for each in found[0][:2]] == ["stop", "length"]


@pytest.mark.parametrize("backend_sampling", [False, True], ids=["host", "backend"])
@pytest.mark.parametrize("groups", [1, 2, 3])
def test_groups_and_the_place_of_sampling_change_no_token(demo_model, greedy, groups, backend_sampling):
    options = {"pipeline_groups": groups, "backend_sampling": backend_sampling}
    assert _tokens(demo_model, workers="local:2", **options) == greedy


@pytest.mark.parametrize("workers", ["none", "local:2"])
def test_a_seed_draws_the_same_tokens_on_host_and_backend(demo_model, drawn, workers):
    assert _tokens(demo_model, DRAWN, workers=workers, backend_sampling=True) == drawn


@pytest.mark.parametrize("workers", ["local:1", "local:3"])
def test_the_count_of_workers_changes_no_token(demo_model, greedy, workers):
    assert _tokens(demo_model, workers=workers, pipeline_groups=3, backend_sampling=True) == greedy


@pytest.mark.parametrize(
    "settings",
    [Settings(no_async_copy=True), Settings(p2p=False), Settings(no_batched_get=True, p2p=False)],
    ids=["no_async_copy", "no_p2p", "no_batched_get"],
)
def test_no_switch_changes_a_token(demo_model, greedy, settings):
    options = {"pipeline_groups": 2, "backend_sampling": True}
    assert _tokens(demo_model, workers="local:2", settings=settings, **options) == greedy


@pytest.mark.parametrize("side", ["client", "workers"])
@pytest.mark.parametrize("minor", [1, 2, 3])
def test_an_older_side_gives_the_same_tokens(demo_model, greedy, side, minor):
    options = ("--proto-minor", str(minor)) if side == "workers" else ()
    settings = Settings(proto_minor=minor) if side == "client" else NEWEST
    with LocalWorkers.start(2, threads=1, options=options) as local:
        endpoints = [str(endpoint) for endpoint in local.endpoints]
        assert _tokens(demo_model, workers=endpoints, settings=settings, pipeline_groups=2) == greedy


@pytest.mark.parametrize("backend_sampling", [False, True], ids=["host", "backend"])
@pytest.mark.parametrize("groups", [1, 2])
def test_a_step_is_one_message_per_worker_and_one_reply_per_group(demo_model, groups, backend_sampling):
    n_steps, n_seqs = 8, 8
    options = {"pipeline_groups": groups, "backend_sampling": backend_sampling}
    with LLM(demo_model, workers="local:2", n_ctx=64, n_seq=n_seqs, threads=1, **options) as llm:
        (result,) = run_bench(llm, [8], [n_steps], [n_seqs])
        traffic = result.per_step
    submits = {name: count for name, count in traffic.commands.items() if name.startswith("SUBMIT")}
    assert submits == {"SUBMIT_ONWARD": groups, "SUBMIT": groups}  # only SUBMIT is answered
    others = sum(count for name, count in traffic.commands.items() if name not in submits)
    assert others * n_steps <= 2  # now and then the queue asks for a sign
    logits_nbytes = n_seqs * llm.n_vocab * 4
    assert traffic.bytes_in < (2048 if backend_sampling else 1.1 * logits_nbytes)


@pytest.mark.parametrize("n_seqs", [1, 8, 32])
def test_reads_per_step_do_not_grow_with_sequences(demo_model, n_seqs):
    n_steps = 4
    with LLM(demo_model, workers="local:2", n_ctx=32, n_seq=n_seqs, threads=1, backend_sampling=True) as llm:
        (result,) = run_bench(llm, [4], [n_steps], [n_seqs])
    assert result.per_step.commands["SUBMIT"] == 1
    assert result.per_step.bytes_in < 2048
