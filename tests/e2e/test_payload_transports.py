"""The same tokens, whichever way weights and hidden states travel."""

from __future__ import annotations

from rpc_backend.host import LLM, SamplerParams
from rpc_backend.protocol.commands import STATS
from rpc_backend.protocol.records import Empty

PROMPT = "The capital of France is Paris. The capital of Italy is"
GREEDY = SamplerParams(temperature=0.0)
SOFT = "rdma-soft"


def test_the_demo_model_over_rdma_gives_the_tokens_of_tcp(demo_model):
    found = {}
    for transport in ("tcp", "rdma:provider=soft"):
        with LLM(demo_model, n_ctx=256, threads=1, workers="local:2", transport=transport) as llm:
            found[transport] = llm.generate(PROMPT, max_tokens=24, params=GREEDY).tokens
            beside = [traffic["beside"] for traffic in llm.wire().values()]
            inside_nbytes = sum(traffic["bytes_out"] for traffic in llm.wire().values())
            stats = [connection.call(STATS, Empty()).carried for connection in llm.devices.connections]
            uploaded = llm.upload_nbytes
    assert found["tcp"] == found["rdma:provider=soft"]
    assert [item["transport"] for item in beside] == [SOFT, SOFT]
    carried_nbytes = sum(item["bytes_out"] for item in beside)
    assert 0.99 * uploaded < carried_nbytes <= inside_nbytes
    (first, second) = (counts[SOFT] for counts in stats)
    # [links, payloads in, bytes in, payloads out, bytes out]; the first worker's hidden states go to the second
    assert first[4] > 0
    assert second[2] > carried_nbytes - first[2]
