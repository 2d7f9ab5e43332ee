from __future__ import annotations

from typing import Any

import pytest
from click.testing import CliRunner, Result

from rpc_backend.cli import run as module
from rpc_backend.host import ModelRequest, WorkersRequest
from rpc_backend.host.generation import Generation, StreamPiece, Timings

TIMINGS = Timings(prompt_tokens=4, prompt_s=0.5, decode_tokens=2, decode_s=0.1)


class Template:
    def render(self, messages: list[dict[str, str]]) -> str:
        return "<s>" + " ".join(f"{message['role']}:{message['content']}" for message in messages)


class Tokens:
    """A tokenizer that records what it was asked."""

    bos_id = 1

    def __init__(self) -> None:
        self.asked: list[tuple[str, dict[str, bool]]] = []

    def token_text(self, token: int) -> str:
        return "<s>"

    def encode(self, text: str, **how: bool) -> list[int]:
        self.asked.append((text, how))
        return [1, 2, 3]


class Stream:
    result = Generation("a é", [7, 8], "length", TIMINGS)

    def __iter__(self) -> Any:
        return iter([StreamPiece("a ", 7), StreamPiece("é", 8)])


class FakeLLM:
    """What the command needs of an LLM."""

    load_s = 1.5
    chat_template: Template | None = Template()

    def __init__(self) -> None:
        self.tokenizer = Tokens()
        self.prompts: list[Any] = []
        self.options: dict[str, Any] = {}
        self.closed = False

    def tokenize(self, text: str) -> list[int]:
        self.prompts.append(text)
        return [5]

    def stream(self, tokens: list[int], **options: Any) -> Stream:
        self.options = options
        return Stream()

    def wire(self) -> dict[str, Any]:
        return {"tcp://w:1": {"messages": 3}}

    def __enter__(self) -> FakeLLM:
        return self

    def __exit__(self, *exception: object) -> None:
        self.closed = True


@pytest.fixture
def llm(monkeypatch: pytest.MonkeyPatch) -> FakeLLM:
    fake = FakeLLM()
    monkeypatch.setattr(module, "load", lambda request, where: fake)
    return fake


def invoke(*arguments: str, stdin: str | bytes | None = None) -> Result:
    return CliRunner().invoke(module.run, arguments, input=stdin)


def test_text_streams_to_stdout_and_timings_to_stderr(llm: FakeLLM) -> None:
    result = invoke("--prompt", "hello")
    assert result.exit_code == 0
    assert result.stdout == "a é\n"
    assert result.stderr == "loaded in 1.5 s; prompt 4 tokens, 8.0 t/s; decode 2 tokens, 20.0 t/s\n"
    assert llm.prompts == ["hello"]
    assert llm.closed


def test_json_has_all_parts(llm: FakeLLM) -> None:
    import json

    found = json.loads(invoke("--prompt", "hello", "--json").stdout)
    assert found == {
        "text": "a é",
        "tokens": [7, 8],
        "timings": {
            "load_s": 1.5,
            "prompt_tokens": 4,
            "prompt_tps": 8.0,
            "decode_tokens": 2,
            "decode_tps": 20.0,
        },
        "wire": {"tcp://w:1": {"messages": 3}},
    }


def test_the_prompt_comes_from_stdin_without_its_last_newline(llm: FakeLLM) -> None:
    assert invoke(stdin="two\nlines\n").exit_code == 0
    assert llm.prompts == ["two\nlines"]


def test_stdin_that_is_not_text_is_refused(llm: FakeLLM) -> None:
    result = invoke(stdin=b"ab\xff")
    assert result.exit_code == 2
    assert "not UTF-8 at byte 2" in result.output


def test_chat_renders_the_template_and_does_not_double_the_begin_token(llm: FakeLLM) -> None:
    assert invoke("--prompt", "hi", "--chat", "--system", "be brief").exit_code == 0
    expected = ("<s>system:be brief user:hi", {"add_special": False, "parse_special": True})
    assert llm.tokenizer.asked == [expected]


def test_chat_without_a_template_is_refused(llm: FakeLLM, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(llm, "chat_template", None)
    result = invoke("--prompt", "hi", "--chat")
    assert result.exit_code == 2
    assert "no chat template" in result.output


def test_system_needs_chat(llm: FakeLLM) -> None:
    result = invoke("--prompt", "hi", "--system", "x")
    assert result.exit_code == 2
    assert "--system needs --chat" in result.output


def test_sampling_and_limits_reach_the_model(llm: FakeLLM) -> None:
    invoke("-p", "x", "--temperature", "0", "--top-k", "3", "--seed", "9", "--max-tokens", "5", "--stop", "END")
    params = llm.options["params"]
    assert (params.temperature, params.top_k, params.seed) == (0.0, 3, 9)
    assert (llm.options["max_tokens"], llm.options["stop"]) == (5, ("END",))


def test_model_and_device_options_become_requests(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[ModelRequest, WorkersRequest]] = []

    def load(request: ModelRequest, where: WorkersRequest) -> FakeLLM:
        asked.append((request, where))
        return FakeLLM()

    monkeypatch.setattr(module, "load", load)
    result = invoke(
        "-p", "x", "--model", "m.gguf", "--workers", "h:1", "--device", "reference", "--split", "layers:1,2",
        "--threads", "3", "--wait", "2.5", "--ctx", "64", "--ubatch", "32", "--kv-type", "F32", "--no-flash-attn",
        "--cache-type-k", "q8_0", "--no-run-ahead",
    )  # fmt: skip
    assert result.exit_code == 0, result.output
    assert asked == [
        (
            ModelRequest(
                "m.gguf",
                "layers:1,2",
                64,
                ubatch=32,
                kv_type="F32",
                flash_attn=False,
                cache_type_k="Q8_0",
                run_ahead=False,
            ),
            WorkersRequest("h:1", "reference", 3, 2.5),
        )
    ]
