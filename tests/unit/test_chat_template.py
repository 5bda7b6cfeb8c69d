"""Chat templates: the usual functions and extensions, and failures with a name."""

from __future__ import annotations

import datetime
from collections.abc import Mapping, Sequence

import pytest

from stratad.chat.template import (
    FALLBACK_TEMPLATE,
    ChatTemplate,
    ChatTemplateError,
    open_chat_template,
)

TURNS = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": 'Say "hé" <now>'}]


def _render(source: str, messages: Sequence[Mapping[str, object]] = TURNS) -> str:
    template = ChatTemplate(
        source, bos_text="<s>", eos_text="</s>", now=lambda: datetime.datetime(2026, 11, 29, 12, 0)
    )
    return template.render(messages)


def test_the_fallback_is_chatml() -> None:
    assert _render(FALLBACK_TEMPLATE) == (
        "<|im_start|>system\nBe brief.<|im_end|>\n"
        '<|im_start|>user\nSay "hé" <now><|im_end|>\n'
        "<|im_start|>assistant\n"
    )


def test_messages_marks_and_generation_prompt_are_there() -> None:
    source = (
        "{{ bos_token }}"
        "{% for m in messages %}{{ m['role'] }}:{{ m.content | trim }}{{ eos_token }}{% endfor %}"
        "{% if add_generation_prompt %}>{% endif %}"
    )
    assert _render(source) == '<s>system:Be brief.</s>user:Say "hé" <now></s>>'


def test_blocks_are_trimmed_as_the_templates_expect() -> None:
    assert _render("{% if true %}\n    {%- set x = 1 %}\na\n    {% endif %}\nb") == "a\nb"


def test_tojson_writes_plain_json_and_not_html() -> None:
    assert _render("{{ messages[1] | tojson }}") == '{"role": "user", "content": "Say \\"hé\\" <now>"}'
    assert _render("{{ [1, {'b': 2}] | tojson(indent=1) }}") == '[\n 1,\n {\n  "b": 2\n }\n]'


def test_the_date_and_loop_controls_and_the_generation_tag_work() -> None:
    assert _render("{{ strftime_now('%d %b %Y') }}") == "29 Nov 2026"
    assert _render("{% for n in [1, 2, 3] %}{% if n == 2 %}{% break %}{% endif %}{{ n }}{% endfor %}") == "1"
    assert _render("a{% generation %}{{ messages[0].content }}{% endgeneration %}b") == "aBe brief.b"


def test_lists_grow_and_results_of_filters_are_json() -> None:
    source = "{% set found = [] %}{% for m in messages %}{% set _ = found.append(m.role) %}{% endfor %}"
    assert _render(source + "{{ found | join(',') }}") == "system,user"
    assert _render("{% set last = [1, 2].pop() %}{{ last }}") == "2"
    assert _render("{{ 'a'|safe + '\"' }}") == 'a"'
    assert _render("{{ messages | map(attribute='role') | tojson }}") == '["system", "user"]'


def test_a_template_may_refuse_with_its_own_words() -> None:
    with pytest.raises(ChatTemplateError, match="roles must alternate"):
        _render("{{ raise_exception('roles must alternate') }}")


@pytest.mark.parametrize("source", ["{% if %}", "{{ messages[", "{% for %}", "{% nosuchtag %}"])
def test_a_template_that_does_not_parse_is_an_error_when_it_is_opened(source: str) -> None:
    with pytest.raises(ChatTemplateError, match="does not parse"):
        ChatTemplate(source, bos_text="", eos_text="")


@pytest.mark.parametrize(
    "source",
    [
        "{{ 1 // 0 }}",
        "{{ messages[0].content + 1 }}",
        "{{ undefined_thing.attribute }}",
        "{{ undefined_thing | tojson }}",
        "{{ messages.clear() }}",
        "{{ messages[0].update(role=1) }}",
        "{{ {'a': undefined_thing} | tojson }}",
        "{{ ''.__class__.__mro__[1].__subclasses__() }}",
        "{% include '/etc/passwd' %}",
        "{{ range(99999999999) | list }}",
    ],
)
def test_what_a_template_must_not_do_is_an_error_of_the_template(source: str) -> None:
    with pytest.raises(ChatTemplateError, match="failed"):
        _render(source)


def test_a_model_without_a_working_template_gets_the_fallback_and_the_reason() -> None:
    own, no_problem = open_chat_template("own", bos_text="", eos_text="")
    assert (own.render(TURNS), no_problem) == ("own", None)
    missing, problem = open_chat_template(None, bos_text="", eos_text="")
    assert missing.render(TURNS).startswith("<|im_start|>")
    assert problem == "the model file has no chat template"
    broken, problem = open_chat_template("{% if %}", bos_text="", eos_text="")
    assert broken.render(TURNS).startswith("<|im_start|>")
    assert problem is not None
    assert "does not parse" in problem
