"""Answers in parts, wherever the borders between tokens lie: thinking, text and calls, in the forms of many models."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

pytest.importorskip("stratad._native", reason="the native module is not built")

from stratad.chat.answer_format import AnswerParts, AnswerPlan, ToolCall
from stratad.chat.answer_reader import AnswerReader, CallDelta, ContentDelta, ReasoningDelta
from stratad.chat.template import FALLBACK_TEMPLATE
from stratad.engine.text_stream import TextStream
from stratad.native.chat import NativeChatKnowledge
from tests.support.native_build import llama_source

TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "get_weather",
            "description": "Weather",
            "parameters": {
                "type": "object",
                "properties": {"city": {"type": "string"}, "days": {"type": "integer"}},
                "required": ["city"],
            },
        },
    }
]
ZURICH, ROME = {"city": "Zürich 🦊", "days": 3}, {"city": "Rome"}
ZURICH_TEXT, ROME_TEXT = json.dumps(ZURICH, ensure_ascii=False), json.dumps(ROME)


@dataclass(frozen=True)
class _Form:
    """What a family's model writes, and what it means: thinking, text, arguments of the calls."""

    template: str
    written: str
    reasoning: str = ""
    content: str = ""
    calls: Sequence[Mapping[str, object]] = ()


FORMS: Mapping[str, _Form] = {
    "fallback": _Form(
        "",
        f'Well <b>.\n<tool_call>\n{{"name": "get_weather", "arguments": {ZURICH_TEXT}}}\n</tool_call>\n'
        f'<tool_call>\n{{"name": "get_weather", "arguments": {ROME_TEXT}}}\n</tool_call>',
        content="Well <b>.\n",
        calls=(ZURICH, ROME),
    ),
    "fallback, text": _Form("", "Grüße 🦊 <tool and </think>", content="Grüße 🦊 <tool and </think>"),
    "Hermes": _Form(
        "NousResearch-Hermes-3-Llama-3.1-8B-tool_use",
        f'<tool_call>\n{{"name": "get_weather", "arguments": {ZURICH_TEXT}}}\n</tool_call>',
        calls=(ZURICH,),
    ),
    "Qwen3": _Form(
        "Qwen-Qwen3-0.6B",
        f"<think>\nIt's cold, 🦊?\n</think>\n\nI look.\n"
        f'<tool_call>\n{{"name": "get_weather", "arguments": {ZURICH_TEXT}}}\n</tool_call>',
        reasoning="It's cold, 🦊?",
        content="I look.\n",
        calls=(ZURICH,),
    ),
    "Qwen3-Coder": _Form(
        "Qwen3-Coder",
        "<tool_call>\n<function=get_weather>\n<parameter=city>\nZürich 🦊\n</parameter>\n"
        "<parameter=days>\n3\n</parameter>\n</function>\n</tool_call>",
        calls=(ZURICH,),
    ),
    "QwQ, thinking begun in the prompt": _Form(
        "Qwen-QwQ-32B", "Hm.\n</think>\n\nYes.", reasoning="Hm.", content="Yes."
    ),
    "Llama 3.1": _Form(
        "meta-llama-Llama-3.1-8B-Instruct",
        f'{{"name": "get_weather", "parameters": {ZURICH_TEXT}}}',
        calls=(ZURICH,),
    ),
    "Mistral Nemo": _Form(
        "mistralai-Mistral-Nemo-Instruct-2407",
        f'[TOOL_CALLS][{{"name": "get_weather", "arguments": {ZURICH_TEXT}, "id": "123456789"}}]',
        calls=(ZURICH,),
    ),
    "Mistral Small": _Form(
        "unsloth-mistral-Devstral-Small-2507",
        f"Ok.[TOOL_CALLS]get_weather[ARGS]{ZURICH_TEXT}",
        content="Ok.",
        calls=(ZURICH,),
    ),
    "DeepSeek V3.1": _Form(
        "deepseek-ai-DeepSeek-V3.1",
        "Hm 🦊</think>So:<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>get_weather<｜tool▁sep｜>"
        f"{ZURICH_TEXT}<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
        reasoning="Hm 🦊",
        content="So:",
        calls=(ZURICH,),
    ),
    "DeepSeek R1": _Form("deepseek-ai-DeepSeek-R1-Distill-Llama-8B", "Hm.</think>Yes.", "Hm.", "Yes."),
    "gpt-oss": _Form(
        "openai-gpt-oss-120b",
        "<|channel|>analysis<|message|>Cold?<|end|><|start|>assistant<|channel|>commentary to=functions.get_weather "
        f"<|constrain|>json<|message|>{ZURICH_TEXT}",
        reasoning="Cold?",
        calls=(ZURICH,),
    ),
    "gpt-oss, text": _Form(
        "openai-gpt-oss-120b",
        "<|channel|>analysis<|message|>Cold?<|end|><|start|>assistant<|channel|>final<|message|>Yes 🦊.",
        reasoning="Cold?",
        content="Yes 🦊.",
    ),
    "GLM": _Form(
        "GLM-4.6",
        "\n<think>Hm.</think>\n<tool_call>get_weather\n<arg_key>city</arg_key>\n<arg_value>Zürich 🦊</arg_value>\n"
        "<arg_key>days</arg_key>\n<arg_value>3</arg_value>\n</tool_call>",
        reasoning="Hm.",
        calls=(ZURICH,),
    ),
    "Kimi": _Form(
        "Kimi-K2-Instruct",
        "<|tool_calls_section_begin|><|tool_call_begin|>functions.get_weather:0<|tool_call_argument_begin|>"
        f"{ZURICH_TEXT}<|tool_call_end|><|tool_calls_section_end|>",
        calls=(ZURICH,),
    ),
    "MiniMax M2": _Form(
        "MiniMax-M2",
        'Hm.</think>\n<minimax:tool_call>\n<invoke name="get_weather">\n<parameter name="city">Zürich 🦊</parameter>\n'
        '<parameter name="days">3</parameter>\n</invoke>\n</minimax:tool_call>',
        reasoning="Hm.",
        calls=(ZURICH,),
    ),
    "Gemma 2": _Form("google-gemma-2-2b-it", "Hallo <b>", content="Hallo <b>"),
    "Phi 3.5": _Form("microsoft-Phi-3.5-mini-instruct", "Hallo {", content="Hallo {"),
}


def _plan(form: _Form) -> AnswerPlan:
    source = FALLBACK_TEMPLATE
    if form.template:
        source = Path(llama_source(), "models", "templates", f"{form.template}.jinja").read_text()
    answer_format = NativeChatKnowledge().open_format(source, bos_text="<s>", eos_text="</s>")
    tools = TOOLS if answer_format.writes_tool_calls else []
    return answer_format.plan({"messages": [{"role": "user", "content": "x"}], "tools": tools})


PLANS = {name: _plan(form) for name, form in FORMS.items()}


def _streamed(plan: AnswerPlan, pieces: Sequence[bytes], *, is_cut: bool = False) -> AnswerParts:
    """What a client has when it joins the deltas of an answer that comes in these tokens."""
    reader, text = AnswerReader(plan), TextStream()
    deltas = [delta for piece in pieces for delta in reader.push(text.push(piece))]
    deltas += [*reader.push(text.finish()), *reader.finish(is_cut=is_cut)]
    reasoning = "".join(delta.text for delta in deltas if isinstance(delta, ReasoningDelta))
    content = "".join(delta.text for delta in deltas if isinstance(delta, ContentDelta))
    calls: list[ToolCall] = []
    for delta in deltas:
        if not isinstance(delta, CallDelta):
            continue
        if delta.name is not None:
            assert delta.call_id is not None
            assert delta.index == len(calls), "calls begin one after the other"
            calls.append(ToolCall(delta.call_id, delta.name, delta.arguments))
        else:
            begun = calls[delta.index]
            calls[delta.index] = ToolCall(begun.call_id, begun.name, begun.arguments + delta.arguments)
    joined = AnswerParts(reasoning, content, tuple(calls))
    assert joined == reader.answer
    return joined


def _require_meaning(form: _Form, parts: AnswerParts) -> None:
    assert parts.reasoning.strip() == form.reasoning.strip()
    assert parts.content.strip() == form.content.strip()
    assert [json.loads(call.arguments) for call in parts.tool_calls] == list(form.calls)
    assert all(call.name == "get_weather" for call in parts.tool_calls)
    assert len({call.call_id for call in parts.tool_calls}) == len(form.calls)


def _without_ids(parts: AnswerParts) -> AnswerParts:
    calls = tuple(ToolCall("", call.name, call.arguments) for call in parts.tool_calls)
    return AnswerParts(parts.reasoning, parts.content, calls)


@pytest.mark.parametrize("name", FORMS)
def test_a_familys_answer_is_read_whole(name: str) -> None:
    _require_meaning(FORMS[name], _streamed(PLANS[name], [FORMS[name].written.encode()]))


@pytest.mark.parametrize("name", FORMS)
def test_byte_by_byte_the_same_parts_come_out(name: str) -> None:
    content = FORMS[name].written.encode()
    whole = _streamed(PLANS[name], [content])
    single = _streamed(PLANS[name], [content[index : index + 1] for index in range(len(content))])
    assert _without_ids(single) == _without_ids(whole)


@pytest.mark.parametrize("name", FORMS)
def test_at_every_border_between_two_tokens_the_same_parts_come_out(name: str) -> None:
    content = FORMS[name].written.encode()
    whole = _without_ids(_streamed(PLANS[name], [content]))
    for border in range(1, len(content)):
        assert _without_ids(_streamed(PLANS[name], [content[:border], content[border:]])) == whole, border


@settings(max_examples=60, deadline=None)
@given(st.sampled_from(sorted(FORMS)), st.lists(st.integers(min_value=0, max_value=400), max_size=30))
def test_any_borders_between_tokens_change_nothing(name: str, borders: list[int]) -> None:
    content = FORMS[name].written.encode()
    edges = sorted({0, len(content), *(border % len(content) for border in borders)})
    pieces = [content[start:end] for start, end in pairwise(edges)]
    whole = _without_ids(_streamed(PLANS[name], [content]))
    assert _without_ids(_streamed(PLANS[name], pieces)) == whole


@settings(max_examples=60, deadline=None)
@given(
    st.sampled_from(["fallback", "Qwen3", "DeepSeek R1", "gpt-oss", "Mistral Nemo", "Gemma 2"]),
    st.text(alphabet='ab 🦊<>/{}[]"\n|', max_size=40),
    st.lists(st.integers(min_value=0, max_value=200), max_size=15),
)
def test_answers_against_the_form_lose_no_border_either(name: str, text: str, borders: list[int]) -> None:
    content = text.encode()
    edges = sorted({0, len(content), *(border % (len(content) + 1) for border in borders)})
    pieces = [content[start:end] for start, end in pairwise(edges)]
    whole = _without_ids(_streamed(PLANS[name], [content]))
    assert _without_ids(_streamed(PLANS[name], pieces)) == whole


@pytest.mark.parametrize("name", FORMS)
def test_an_answer_cut_anywhere_gives_a_beginning_of_the_whole(name: str) -> None:
    content = FORMS[name].written
    whole = _streamed(PLANS[name], [content.encode()])
    for length in range(0, len(content), 3):
        cut = _streamed(PLANS[name], [content[:length].encode()], is_cut=True)
        assert whole.reasoning.startswith(cut.reasoning)
        assert len(cut.tool_calls) <= len(whole.tool_calls)
        for call, whole_call in zip(cut.tool_calls, whole.tool_calls, strict=False):
            assert whole_call.arguments.startswith(call.arguments)


def test_brackets_nested_without_end_are_no_danger() -> None:
    parts = _streamed(PLANS["Llama 3.1"], [b'{"name": "get_weather", "parameters": ' + b"[" * 100_000])
    assert parts.tool_calls == () or parts.tool_calls[0].name == "get_weather"


def test_ids_that_the_model_does_not_write_are_nine_letters_and_digits() -> None:
    (call,) = _streamed(PLANS["Hermes"], [FORMS["Hermes"].written.encode()]).tool_calls
    assert len(call.call_id) == 9
    assert call.call_id.isalnum()
    (own,) = _streamed(PLANS["Kimi"], [FORMS["Kimi"].written.encode()]).tool_calls
    assert own.call_id == "functions.get_weather:0" or own.call_id.isalnum()


class _GrowingName:
    """A plan that reads a call letter by letter: the name up to a colon, then the arguments."""

    prompt = prompt_end = ""
    grammar = None
    marks = stop_strings = ()

    def parse(self, text: str, *, is_partial: bool) -> AnswerParts:
        name, _, arguments = text.partition(":")
        return AnswerParts(tool_calls=(ToolCall("", name, arguments),))


def test_a_name_that_may_still_grow_is_held_back() -> None:
    reader = AnswerReader(_GrowingName())
    assert reader.push("get_") == []
    assert reader.push("weather:") == []
    (head,) = reader.push("{")
    assert isinstance(head, CallDelta)
    assert (head.index, head.name, head.arguments) == (0, "get_weather", "{")
    assert reader.push("}") == [CallDelta(0, "}")]
    assert reader.finish(is_cut=False) == []


def test_what_is_certain_comes_out_at_once() -> None:
    reader = AnswerReader(PLANS["Qwen3"])
    assert reader.push("<think>\nHm") == [ReasoningDelta("Hm")]
    assert reader.push(", yes") == [ReasoningDelta(", yes")]
    reader.push("\n</think>\n\n")
    assert reader.push("I look") == [ContentDelta("I look")]
    assert reader.push(".\n<tool") == [ContentDelta(".\n")]
    reader.push('_call>\n{"name": "get_weather", "arguments": {"ci')
    assert reader.push('ty": "Ber') == [CallDelta(0, 'ty": "Ber')]
