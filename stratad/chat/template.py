"""Chat messages to prompt text, by the Jinja template that the model file carries.

The template comes from a file that somebody downloaded: it runs in jinja2's immutable sandbox, without
files, imports or attributes of Python objects. The functions and extensions are those that templates are
written against: transformers' `apply_chat_template` and llama.cpp's.
"""

from __future__ import annotations

import datetime
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NoReturn

import jinja2
import jinja2.ext
import jinja2.nodes
import jinja2.parser
import jinja2.sandbox

# ChatML: the most common form, and plain enough that a model which never saw it still answers. Tools stand in it as
# Hermes and Qwen models know them.
FALLBACK_TEMPLATE_NAME = "chatml"
FALLBACK_TEMPLATE = (
    "{% if tools %}<|im_start|>system\n"
    "You can call these functions:\n<tools>\n{% for tool in tools %}{{ tool | tojson }}\n{% endfor %}</tools>\n"
    "To call one, answer with its name and arguments as JSON:\n"
    '<tool_call>\n{"name": <name>, "arguments": <arguments>}\n</tool_call><|im_end|>\n{% endif %}'
    "{% for message in messages %}"
    "{% if message.role == 'tool' %}<|im_start|>user\n"
    "<tool_response>\n{{ message.content }}\n</tool_response><|im_end|>\n"
    "{% else %}<|im_start|>{{ message.role }}\n{{ message.content }}"
    "{% for call in message.tool_calls or [] %}"
    '\n<tool_call>\n{"name": {{ call.function.name | tojson }}, '
    '"arguments": {{ call.function.arguments | tojson }}}\n</tool_call>'
    "{% endfor %}<|im_end|>\n{% endif %}"
    "{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)

# What every template must be able to write.
PROBE_MESSAGES: Sequence[Mapping[str, object]] = ({"role": "user", "content": "Hello"},)


class ChatTemplateError(Exception):
    """A template does not parse, or refuses these messages; the message is fit for the client."""


class ChatTemplate:
    """A parsed template with the model's own marks."""

    def __init__(
        self,
        source: str,
        *,
        bos_text: str,
        eos_text: str,
        now: Callable[[], datetime.datetime] = datetime.datetime.now,
    ) -> None:
        """Parses `source`; `now` is what `strftime_now` shows.

        Raises:
            ChatTemplateError: The template is not valid Jinja.
        """
        self._source = source
        self._now = now
        self._marks = {"bos_token": bos_text, "eos_token": eos_text}
        environment = _sandbox(now)
        try:
            self._template = environment.from_string(source)
        except jinja2.TemplateError as error:
            raise ChatTemplateError(f"the model's chat template does not parse: {error}") from error

    @property
    def source(self) -> str:
        """The template's text."""
        return self._source

    def render(self, messages: Sequence[Mapping[str, object]], **variables: object) -> str:
        """The prompt for the assistant's next turn.

        Messages have the keys that OpenAI gives them; `variables` are what else the template may read, such as
        `tools` or `enable_thinking`. As llama.cpp does, `date_string` and `datetime` tell the day.

        Raises:
            ChatTemplateError: The template refuses these messages, or fails on them.
        """
        today = self._now()
        given = {
            "date_string": today.strftime("%d %b %Y"),
            "datetime": today.strftime("%b %d %Y"),
            **variables,
            **self._marks,
        }
        try:
            return self._template.render(messages=messages, add_generation_prompt=True, **given)
        # A template is a program from a file: besides jinja2's own errors it can divide by zero, or add a
        # number to text. All of it is the template's failure on this request, and none of ours.
        except Exception as error:
            raise ChatTemplateError(f"the model's chat template failed: {error}") from error


def open_chat_template(
    source: str | None, *, bos_text: str, eos_text: str
) -> tuple[ChatTemplate, str | None]:
    """The model's template, or the fallback where it has none that works.

    A template that parses must also render one plain question.

    Returns:
        The template, and why the fallback stands in; None when it does not.
    """
    problem = "the model file has no chat template"
    if source is not None:
        try:
            template = ChatTemplate(source, bos_text=bos_text, eos_text=eos_text)
            template.render(PROBE_MESSAGES, enable_thinking=True)
            return template, None
        except ChatTemplateError as error:
            problem = str(error)
    return ChatTemplate(FALLBACK_TEMPLATE, bos_text=bos_text, eos_text=eos_text), problem


class _GenerationTag(jinja2.ext.Extension):
    """`{% generation %}` marks the assistant's part for training; for serving it only passes its body on."""

    tags = {"generation"}  # noqa: RUF012

    def parse(self, parser: jinja2.parser.Parser) -> list[jinja2.nodes.Node]:
        """The body between the tags."""
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


class _Sandbox(jinja2.sandbox.ImmutableSandboxedEnvironment):
    """jinja2's immutable sandbox, in which lists may grow and shrink at their ends.

    Templates of Kimi models collect turns in lists of their own. What a template is given is made for that one
    rendering, so nothing outlives it.
    """

    def is_safe_attribute(self, obj: object, attr: str, value: object) -> bool:
        """Whether a template may read an attribute."""
        is_list_end = isinstance(obj, list) and attr in ("append", "pop")
        return is_list_end or super().is_safe_attribute(obj, attr, value)


def _sandbox(now: Callable[[], datetime.datetime]) -> _Sandbox:
    environment = _Sandbox(
        trim_blocks=True,
        lstrip_blocks=True,
        extensions=[_GenerationTag, "jinja2.ext.loopcontrols"],
    )
    environment.filters["tojson"] = _to_json
    # Prompts are no HTML: what is marked safe would have jinja2 escape the text that is added to it.
    environment.filters["safe"] = str
    environment.globals["raise_exception"] = _raise_exception
    environment.globals["strftime_now"] = lambda form: now().strftime(form)
    return environment


def _to_json(
    value: object,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """JSON as transformers writes it: jinja2's own filter escapes characters of HTML."""
    if isinstance(value, jinja2.Undefined):
        raise jinja2.UndefinedError("tojson of an undefined value")
    return json.dumps(
        value,
        ensure_ascii=ensure_ascii,
        indent=indent,
        separators=separators,
        sort_keys=sort_keys,
        default=_plain,
    )


def _plain(value: object) -> object:
    """What is no JSON value by itself: mappings, and the results of jinja2's filters."""
    if isinstance(value, Mapping):
        return dict(value)
    if isinstance(value, Iterable) and not isinstance(value, jinja2.Undefined):
        return list(value)
    raise TypeError(f"{type(value).__name__} is no JSON value")


def _raise_exception(message: str) -> NoReturn:
    raise jinja2.TemplateError(message)
