"""Chat templates: what they render, what they may not do."""

from __future__ import annotations

import time
from typing import Any

import pytest

from rpc_backend.errors import ConfigError, ModelError, ModelFileError
from rpc_backend.host.chat import ChatTemplate
from rpc_backend.host.tokenizer import Tokenizer

# In the manner of the demo model's own template.
CHATML = (
    "{% for message in messages %}{% if loop.first and messages[0]['role'] != 'system' %}"
    "{{ '<|im_start|>system\nBe kind.<|im_end|>\n' }}{% endif %}"
    "{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
HELLO = [{"role": "user", "content": "Hello"}]


def tokenizer(**changes: Any) -> Tokenizer:
    keys = {"model": "gpt2", "tokens": ["a", "b", "ab", "<s>", "</s>"], "merges": ["a b"]}
    keys |= {"bos_token_id": 3, "eos_token_id": 4} | changes
    return Tokenizer.from_metadata({f"tokenizer.ggml.{key}": value for key, value in keys.items()})


def rendered(source: str, messages: list[dict[str, Any]] = HELLO) -> str:
    return ChatTemplate(source).render(messages)


def test_renders_a_conversation() -> None:
    template = ChatTemplate(CHATML)
    assert template.render(HELLO) == (
        "<|im_start|>system\nBe kind.<|im_end|>\n<|im_start|>user\nHello<|im_end|>\n<|im_start|>assistant\n"
    )
    system = [{"role": "system", "content": "S"}, *HELLO]
    assert template.render(system, add_generation_prompt=False) == (
        "<|im_start|>system\nS<|im_end|>\n<|im_start|>user\nHello<|im_end|>\n"
    )


def test_comes_from_metadata_with_the_begin_and_end_tokens() -> None:
    metadata = {"tokenizer.chat_template": "{{ bos_token }}[{{ messages[0].content }}]{{ eos_token }}"}
    template = ChatTemplate.from_metadata(metadata, tokenizer())
    assert template is not None
    assert template.render(HELLO) == "<s>[Hello]</s>"
    without = ChatTemplate.from_metadata(metadata, tokenizer(bos_token_id=None))
    assert without is not None
    assert without.render(HELLO) == "[Hello]</s>"
    assert ChatTemplate.from_metadata({}, tokenizer()) is None


@pytest.mark.parametrize(
    ("source", "text"),
    [
        ("{% if true %}\n  x\n{% endif %}\n  {% if true %}y{% endif %}", "  x\ny"),  # blocks eat their line
        ("{{ {'b': 'é<&>', 'a': 1} | tojson }}", '{"b": "é<&>", "a": 1}'),
        ("{{ [1] | tojson(indent=1) }}", "[\n 1\n]"),
        ("{% for i in range(9) %}{% if i == 2 %}{% break %}{% endif %}{{ i }}{% endfor %}", "01"),
        ("{% generation %}{{ messages[0].content }}{% endgeneration %}!", "Hello!"),
        ("{% if tools is not none %}tools{% endif %}{% if documents %}documents{% endif %}", ""),
        (
            "{% set ns = namespace(n=0) %}{% for m in messages %}{% set ns.n = ns.n + 2 %}{% endfor %}{{ ns.n % 2 }}",
            "0",
        ),
        ("{{ 'ab' * 3 + 'c' }}{{ 2 ** 10 }}{{ [0] * 2 }}", "abababc1024[0, 0]"),
    ],
)
def test_speaks_the_dialect_of_model_makers(source: str, text: str) -> None:
    assert rendered(source) == text


def test_gives_the_time() -> None:
    assert rendered("{{ strftime_now('%Y') }}") in {str(time.localtime().tm_year + late) for late in (0, -1)}


def test_a_template_that_refuses_is_quoted() -> None:
    with pytest.raises(ModelError, match="the chat template failed: roles must alternate"):
        rendered("{{ raise_exception('roles must alternate') }}")


@pytest.mark.parametrize(
    ("source", "complaint"),
    [
        ("{{ messages[0].missing.field }}", "has no attribute 'missing'"),
        ("{{ 1 / 0 }}", "ZeroDivisionError"),
        ("{{ messages[0].content + 1 }}", "TypeError"),
        ("{{ nothing() }}", "'nothing' is undefined"),
        ("{% include 'other' %}", "no loader"),
    ],
)
def test_a_failing_template_is_a_model_error(source: str, complaint: str) -> None:
    with pytest.raises(ModelError, match=f"the chat template failed: .*{complaint}"):
        rendered(source)


def test_a_malformed_template_is_refused_when_loaded() -> None:
    with pytest.raises(ModelError, match=r"not valid at line 2: Unexpected end of template\. .*'endfor'"):
        ChatTemplate("a\n{% for m in messages %}")
    with pytest.raises(ModelFileError, match=r"tokenizer\.chat_template must be a string"):
        ChatTemplate.from_metadata({"tokenizer.chat_template": ["x"]}, tokenizer())


@pytest.mark.parametrize(
    "source",
    [
        "{{ ''.__class__.__mro__[1].__subclasses__() }}",
        "{{ raise_exception.__globals__ }}",
        "{{ messages.__init__.__globals__['os'].system('true') }}",
        "{{ cycler.__init__.__globals__ }}",
        "{{ '{0.__class__.__mro__}'.format(1) }}",
        "{{ messages.append({}) }}",
        "{% set _ = messages[0].update({'role': 'x'}) %}",
    ],
)
def test_a_hostile_template_reaches_nothing(source: str) -> None:
    messages = [dict(HELLO[0])]
    with pytest.raises(ModelError, match=r"is unsafe|not safely callable|is undefined"):
        rendered(source, messages)
    assert messages == HELLO


@pytest.mark.timeout(60)
@pytest.mark.parametrize(
    ("source", "complaint"),
    [
        ("{% for i in range(999999999) %}{% endfor %}", "steps of range"),
        ("{% for i in range(9999) %}{% for j in range(9999) %}{% endfor %}{% endfor %}", "steps of range"),
        ("{% macro m() %}{% for i in range(9999) %}{% endfor %}{% endmacro %}"
         "{% for i in range(9999) %}{{ m() }}{% endfor %}", "steps of range"),
        ("{{ 'a' * 10 ** 12 }}", "a product of more than"),
        ("{{ 10 ** 12 * [0] }}", "a product of more than"),
        ("{{ 9 ** 9 ** 9 }}", "is too large"),
        ("{% set ns = namespace(t='aaaa') %}{% for i in range(60) %}{% set ns.t = ns.t + ns.t %}{% endfor %}",
         "a sum of more than"),
        ("{% set t = 'a' * 1000000 %}{% for i in range(1000) %}{{ t }}{% endfor %}", "characters of output"),
    ],
)  # fmt: skip
def test_a_template_without_end_is_stopped(source: str, complaint: str) -> None:
    with pytest.raises(ModelError, match=complaint):
        rendered(source)


def test_the_steps_of_one_rendering_are_not_charged_to_the_next() -> None:
    template = ChatTemplate("{% for i in range(60000) %}{% endfor %}done")
    assert [template.render(HELLO) for _ in range(3)] == ["done"] * 3


@pytest.mark.parametrize("message", ["hello", {"content": "x"}, {"role": 3}])
def test_a_message_without_a_role_is_named(message: Any) -> None:
    with pytest.raises(ConfigError, match=r"messages\[1\] must have a role"):
        rendered(CHATML, [*HELLO, message])
