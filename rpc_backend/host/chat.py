"""Chat templates: from messages to the prompt text that a model was trained on.

Belongs here: rendering the jinja2 template of a GGUF file in a sandbox, within limits. Must not be here:
tokenizer rules, what a server does with the answer.

A template comes with the model file, so it is not trusted: attributes that lead to the interpreter are
closed, and long loops over ranges, large products, powers and sums and large outputs end in an error. No
time limit is kept: a hostile template can still waste what these limits leave.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import Any

import jinja2
from jinja2 import nodes
from jinja2.exceptions import SecurityError
from jinja2.ext import Extension, LoopControlExtension
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from rpc_backend.errors import ConfigError, ModelError, ModelFileError
from rpc_backend.host.tokenizer import Tokenizer

TEMPLATE_KEY = "tokenizer.chat_template"
MAX_RANGE_STEPS = 100_000  # of all range() calls of one rendering together
MAX_CHARACTERS = 16_000_000  # of the rendered text, and of any text or list a template builds
_MAX_EXPONENT = 64


class ChatTemplate:
    """The chat template of one model."""

    def __init__(self, source: str, *, bos_token: str = "", eos_token: str = "") -> None:
        """Compile a template.

        Raises: ModelError if it is no valid template.
        """
        self._constants = {"bos_token": bos_token, "eos_token": eos_token}
        environment = _Sandbox(
            trim_blocks=True, lstrip_blocks=True, extensions=[LoopControlExtension, _GenerationBlock]
        )
        environment.filters["tojson"] = _to_json
        environment.globals |= {"raise_exception": _raise, "strftime_now": _time_now}
        try:
            self._template = environment.from_string(source)
        except jinja2.TemplateSyntaxError as error:
            raise ModelError(f"the chat template is not valid at line {error.lineno}: {error.message}") from error

    @classmethod
    def from_metadata(cls, metadata: Mapping[str, Any], tokenizer: Tokenizer) -> ChatTemplate | None:
        """Make the template of a GGUF file, or return None where it has none.

        Raises: ModelFileError if the key holds something else than text; ModelError if the text is no
        valid template.
        """
        source = metadata.get(TEMPLATE_KEY)
        if source is None:
            return None
        if not isinstance(source, str):
            raise ModelFileError(f"{TEMPLATE_KEY} must be a string")
        bos, eos = (
            "" if token is None else tokenizer.token_text(token) for token in (tokenizer.bos_id, tokenizer.eos_id)
        )
        return cls(source, bos_token=bos, eos_token=eos)

    def render(self, messages: Sequence[Mapping[str, Any]], *, add_generation_prompt: bool = True) -> str:
        """Return the prompt text of a conversation.

        The text spells special tokens, the begin token among them where the template writes it: encode
        it with `parse_special=True`, and without `add_special` if it starts with the begin token.
        Raises: ConfigError for a message without a role; ModelError with the template's own words if
        it refuses the conversation, fails, or goes past the limits.
        """
        _check_messages(messages)
        names = {
            **self._constants,
            "messages": messages,
            "add_generation_prompt": add_generation_prompt,
            "tools": None,
            "documents": None,
            "range": _counted_range(),
        }
        try:
            return self._collect(names)
        except jinja2.TemplateError as error:
            raise ModelError(f"the chat template failed: {error.message}") from error
        except Exception as error:  # a template runs code of its own: anything can come out
            raise ModelError(f"the chat template failed: {type(error).__name__}: {error}") from error

    def _collect(self, names: Mapping[str, Any]) -> str:
        parts: list[str] = []
        n_characters = 0
        for part in self._template.generate(names):
            n_characters += len(part)
            if n_characters > MAX_CHARACTERS:
                raise jinja2.TemplateRuntimeError(f"more than {MAX_CHARACTERS} characters of output")
            parts.append(part)
        return "".join(parts)


class _GenerationBlock(Extension):
    """`{% generation %}`, with which some templates mark the model's own words: nothing to do here."""

    tags = frozenset({"generation"})  # pyright: ignore[reportAssignmentType]

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


class _Sandbox(ImmutableSandboxedEnvironment):
    """The sandbox of jinja2, with a bound on what an operator may build and no silence at an escape."""

    intercepted_binops = frozenset({"*", "**", "+"})

    def unsafe_undefined(self, obj: Any, attribute: str) -> jinja2.Undefined:
        raise SecurityError(f"access to attribute {attribute!r} of {type(obj).__name__} is unsafe")

    def call_binop(self, context: Any, operator: str, left: Any, right: Any) -> Any:
        if operator == "**" and (abs(left) > MAX_CHARACTERS or abs(right) > _MAX_EXPONENT):
            raise jinja2.TemplateRuntimeError(f"{left} ** {right} is too large")
        if operator == "*" and max(_size(left) * _count(right), _size(right) * _count(left)) > MAX_CHARACTERS:
            raise jinja2.TemplateRuntimeError(f"a product of more than {MAX_CHARACTERS} characters")
        if operator == "+" and _size(left) + _size(right) > MAX_CHARACTERS:
            raise jinja2.TemplateRuntimeError(f"a sum of more than {MAX_CHARACTERS} characters")
        return super().call_binop(context, operator, left, right)


def _size(value: Any) -> int:
    return len(value) if isinstance(value, (str, list, tuple)) else 0


def _count(value: Any) -> int:
    return value if isinstance(value, int) else 0


def _counted_range() -> Callable[..., range]:
    """Return a `range` for one rendering that counts the steps of all its calls together."""
    steps_left = MAX_RANGE_STEPS

    def counted(*bounds: int) -> range:
        nonlocal steps_left
        steps = range(*bounds)
        steps_left -= len(steps)
        if steps_left < 0:
            raise jinja2.TemplateRuntimeError(f"more than {MAX_RANGE_STEPS} steps of range()")
        return steps

    return counted


def _check_messages(messages: Sequence[Mapping[str, Any]]) -> None:
    for index, message in enumerate(messages):
        if not isinstance(message, Mapping) or not isinstance(message.get("role"), str):
            raise ConfigError(f"messages[{index}] must have a role that is a string")


def _raise(message: str) -> None:
    raise jinja2.TemplateError(message)


def _time_now(format: str) -> str:
    return datetime.now().strftime(format)


def _to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """Write JSON as model makers expect it in prompts: without the HTML escapes of jinja2's own filter."""
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)
