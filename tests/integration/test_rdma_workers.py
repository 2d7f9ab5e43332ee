"""A model over two workers whose weights and hidden states travel as RDMA payloads; the least that shows it."""

from __future__ import annotations

from pathlib import Path

import pytest

from rpc_backend.host import LLM, SamplerParams
from rpc_backend.protocol.commands import STATS
from rpc_backend.protocol.records import Empty
from rpc_backend.registry import load_registry
from rpc_backend.testing.golden import compare_whole, feed_at_once

GOLDEN = Path(__file__).parent.parent / "data" / "golden"
MODEL = "llama-q8_0"
GREEDY = SamplerParams(temperature=0.0)
PROMPT = list(range(3, 67))  # long enough that its hidden states are large payloads


def open_model(transport: str, **options) -> LLM:
    return LLM(
        GOLDEN / f"{MODEL}.gguf", workers="local:2", device="reference", n_ctx=256, transport=transport, **options
    )


@pytest.fixture(scope="module")
def expected() -> list[int]:
    with LLM(GOLDEN / f"{MODEL}.gguf", workers="none", device="reference", n_ctx=256) as llm:
        return llm.generate(PROMPT, max_tokens=8, params=GREEDY).tokens


def test_the_same_tokens_and_the_same_logits_over_rdma(rdma_transport: str, expected: list[int]) -> None:
    (name,) = (transport.name for transport in load_registry().payload_transports(rdma_transport))
    with open_model(rdma_transport) as llm:
        connections = llm.devices.connections
        assert [connection.carrier.name for connection in connections] == [name, name]
        uploaded = sum(connection.carrier.carried.nbytes_out for connection in connections)
        assert uploaded > 0.9 * llm.upload_nbytes

        assert llm.generate(PROMPT, max_tokens=8, params=GREEDY).tokens == expected
        found = compare_whole(llm, GOLDEN / f"{MODEL}.golden.json", feed_at_once)
        assert found.worst < 0.12

        first, second = (connection.call(STATS, Empty()).carried[name] for connection in connections)
    # [links, payloads in, bytes in, payloads out, bytes out]; the first one's only large payloads out are hidden states
    assert min(first[0], second[0]) >= 2
    assert first[3] > 0
    assert second[1] >= first[3]
    assert first[2] + second[2] > uploaded


def test_without_rdma_on_one_side_or_the_other_it_says_so_and_tcp_carries_on(
    rdma_transport: str, expected: list[int], caplog: pytest.LogCaptureFixture
) -> None:
    with open_model("tcp") as workers:
        endpoints = [connection.endpoint for connection in workers.devices.connections]
        with LLM(GOLDEN / f"{MODEL}.gguf", workers=endpoints, n_ctx=256, transport=rdma_transport) as llm:
            assert [connection.carrier.name for connection in llm.devices.connections] == ["", ""]
            assert llm.generate(PROMPT, max_tokens=8, params=GREEDY).tokens == expected
    lines = [message for message in caplog.messages if "travel inside the fabric" in message]
    assert sorted(line.split()[2] for line in lines) == sorted(endpoints)
    assert all("the worker cannot take up rdma" in line for line in lines)
