"""llama.cpp's own client on our workers, against its own servers."""

from __future__ import annotations

import threading
import time
from pathlib import Path

import pytest

from rpc_backend.client import connect
from rpc_backend.graph import element_type
from rpc_backend.protocol import commands, records
from rpc_backend.settings import Settings

GOLDEN = Path(__file__).parent.parent / "data" / "golden"
TINY = ("llama-f32", "llama-f16", "llama-q4_0", "llama-q4_1", "llama-q8_0", "llama-Q4_K_M", "qwen2-q8_0", "qwen3-q8_0")
PROMPT = [504, 3575, 282, 4649, 314]
CLEAR_LEAD = 0.3
MIB = 1 << 20
LIMIT_S = 120


def choices(process, tokens, flash, *, n_decode=0, then=(), cache="F16"):
    kind = element_type(cache).code
    return process.ask(LIMIT_S, do="choices", tokens=tokens, n_decode=n_decode, then=then, flash=flash, cache=kind)


def compare(client, model, ours, theirs, prompt, n_decode, flash, least):
    """Let their servers choose, follow their choice on ours, and compare wherever it was clear.

    Clear is what leads with either way of attention: rounding alone moves a lead by as much as 0.3 between the two.
    """
    theirs_loaded = client(model, theirs)
    wanted = choices(theirs_loaded, prompt, flash, n_decode=n_decode)
    other = choices(theirs_loaded, prompt, not flash, then=wanted["tokens"])
    found = choices(client(model, ours), prompt, flash, then=wanted["tokens"])
    same = [one == two for one, two in zip(wanted["tokens"], other["tokens"], strict=True)]
    clear = [n for n in range(n_decode) if same[n] and min(wanted["leads"][n], other["leads"][n]) > CLEAR_LEAD]
    assert len(clear) >= least
    assert [found["tokens"][n] for n in clear] == [wanted["tokens"][n] for n in clear]


@pytest.mark.parametrize("flash", [True, False], ids=["flash", "plain"])
def test_the_demo_model(client, gateways, their_servers, demo_model, flash):
    compare(client, demo_model, gateways.gateways, their_servers, PROMPT, 48, flash, 30)


@pytest.mark.parametrize("flash", [True, False], ids=["flash", "plain"])
def test_a_long_prompt(client, gateways, their_servers, demo_model, flash):
    prompt = [1 + (n * 7919) % 40_000 for n in range(300)]
    compare(client, demo_model, gateways.gateways, their_servers, prompt, 8, flash, 3)


@pytest.mark.parametrize("flash", [True, False], ids=["flash", "plain"])
@pytest.mark.parametrize("name", TINY)
def test_tiny_models(client, gateways, their_servers, name, flash):
    compare(client, GOLDEN / f"{name}.gguf", gateways.gateways, their_servers, [1, 5, 9, 30, 7], 24, flash, 1)


@pytest.mark.parametrize("name", ["demo", "llama-f32", "qwen3-q8_0"])
def test_a_cache_of_8_bits(client, gateways, their_servers, demo_model, name):
    """Keys and values in Q8_0, which needs flash attention: both round them alike, once more than activations."""
    model = demo_model if name == "demo" else GOLDEN / f"{name}.gguf"
    prompt = [1 + (n * 7919) % (40_000 if name == "demo" else 250) for n in range(100)]
    wanted = choices(client(model, their_servers), prompt, True, n_decode=24, cache="Q8_0")
    found = choices(client(model, gateways.gateways), prompt, True, then=wanted["tokens"], cache="Q8_0")
    clear = [n for n, lead in enumerate(wanted["leads"]) if lead > CLEAR_LEAD]
    assert len(clear) >= 3
    assert [found["tokens"][n] for n in clear] == [wanted["tokens"][n] for n in clear]


def test_two_clients_at_once(client, gateways, demo_model):
    """Both on both workers, each with a context of its own; each gets what it gets alone."""
    prompts = [PROMPT, [*PROMPT[::-1], 5, 6, 7]]
    alone = [choices(client(demo_model, gateways.gateways), prompt, None, n_decode=24)["tokens"] for prompt in prompts]
    both = [client(demo_model, gateways.gateways) for _ in prompts]
    found: dict[int, list[int]] = {}

    def ask(n: int) -> None:
        found[n] = choices(both[n], prompts[n], None, n_decode=24)["tokens"]

    threads = [threading.Thread(target=ask, args=(n,)) for n in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(LIMIT_S)
    assert [found.get(n) for n in range(2)] == alone


def free_nbytes(gateways) -> list[int]:
    free = []
    for endpoint in gateways.workers:
        with connect(endpoint, Settings()) as connection:
            free.append(connection.devices()[0].memory().free_nbytes)
    return free


def n_sessions(gateways) -> list[int]:
    """Return how many sessions each worker has beside the one that asks."""
    counts = []
    for endpoint in gateways.workers:
        with connect(endpoint, Settings()) as connection:
            counts.append(connection.call(commands.STATS, records.Empty()).sessions - 1)
    return counts


def test_a_client_that_is_killed_in_the_middle(client, capped_gateways, demo_model):
    """Its memory is back within five seconds, and the workers serve the next."""
    gateways = capped_gateways
    whole = free_nbytes(gateways)
    process = client(demo_model, gateways.gateways)
    choices(process, PROMPT, None, n_decode=4)  # kernels that are new to this machine are compiled now
    ended = threading.Thread(target=_ask_in_vain, args=(process,))
    ended.start()
    time.sleep(1.0)
    assert all(now < before - 8 * MIB for now, before in zip(free_nbytes(gateways), whole, strict=True))
    process.kill()
    deadline_s = time.monotonic() + 5
    while free_nbytes(gateways) != whole or max(n_sessions(gateways)) > 0:
        assert time.monotonic() < deadline_s
        time.sleep(0.05)
    ended.join(LIMIT_S)
    assert choices(client(demo_model, gateways.gateways), PROMPT, None, n_decode=4)["tokens"][0] == 7042


def _ask_in_vain(process) -> None:
    import llamacpp

    with pytest.raises(llamacpp.LlamaCppError, match="ended"):
        choices(process, PROMPT, None, n_decode=1500)
