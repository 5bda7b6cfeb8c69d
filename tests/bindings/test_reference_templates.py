"""Prompts against a second implementation: jinja2 as we use it and llama.cpp's own template engine, on every template
that llama.cpp's source package carries (Qwen, Llama, Mistral, DeepSeek, Gemma, Phi, gpt-oss, GLM, Kimi, Granite, ...).
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from pathlib import Path

import pytest

pytest.importorskip("stratad._native", reason="the native module is not built")

from stratad.chat.answer_format import AnswerFormat
from stratad.chat.messages import adapted
from stratad.chat.template import ChatTemplate, ChatTemplateError
from stratad.native.chat import NativeChatKnowledge
from tests.support.native_build import llama_source

TEMPLATES = {path.stem: path for path in sorted(Path(llama_source(), "models", "templates").glob("*.jinja"))}
MARKS = {"bos_text": "<s>", "eos_text": "</s>"}

TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "get_weather",
            "description": "Weather of a city, in °C",
            "parameters": {
                "type": "object",
                "properties": {
                    "city": {"type": "string", "description": "Its name"},
                    "days": {"type": "integer", "description": "How many"},
                },
                "required": ["city"],
            },
        },
    }
]
ASKED = {"role": "user", "content": 'Is it "cold" in Zürich?\n<b>'}
TOLD = {"role": "system", "content": "Be brief."}
CALLED = {
    "role": "assistant",
    "content": "",
    "tool_calls": [
        {
            "id": "abcdef123",
            "type": "function",
            "function": {"name": "get_weather", "arguments": '{"city": "Zürich", "days": 2}'},
        }
    ],
}
RESULT = {"role": "tool", "tool_call_id": "abcdef123", "name": "get_weather", "content": '{"celsius": -3}'}
CONVERSATIONS: Mapping[str, dict[str, object]] = {
    "a question": {"messages": [ASKED]},
    "instructions": {"messages": [TOLD, ASKED]},
    "several turns": {"messages": [TOLD, ASKED, {"role": "assistant", "content": "Yes."}, ASKED]},
    "without thinking": {"messages": [ASKED], "enable_thinking": False},
    "tools": {"messages": [TOLD, ASKED], "tools": TOOLS},
    "a tool's result": {"messages": [TOLD, ASKED, CALLED, RESULT], "tools": TOOLS},
}

# Where llama.cpp's parser for a family writes something other than the template does.
DIFFERENCES: Mapping[tuple[str, str], str] = {
    ("google-gemma-4-31B-it-interleaved", "a tool's result"): "llama.cpp moves results into the call's turn",
    **{
        ("fireworks-ai-llama-3-firefunction-v2", conversation): "it writes `functions`, which nobody gives"
        for conversation in CONVERSATIONS
    },
}


@functools.cache
def _format(name: str) -> tuple[ChatTemplate, AnswerFormat]:
    source = TEMPLATES[name].read_text(encoding="utf-8")
    return ChatTemplate(source, **MARKS), NativeChatKnowledge().open_format(source, **MARKS)


def _prompts(name: str, conversation: str) -> tuple[str, str]:
    """Ours and llama.cpp's."""
    template, answer_format = _format(name)
    request = CONVERSATIONS[conversation]
    try:
        theirs = answer_format.plan(request).prompt
    except ValueError as error:
        theirs = f"refused: {error}"
    variables = {
        "enable_thinking": True,
        **{key: value for key, value in request.items() if key != "messages"},
    }
    try:
        ours = template.render(adapted(request["messages"], answer_format, template.source), **variables)
    except ChatTemplateError as error:
        ours = f"refused: {error}"
    return ours, theirs


def test_the_source_package_has_templates_of_the_common_families() -> None:
    names = " ".join(TEMPLATES).lower()
    for family in (
        "qwen2.5",
        "qwen3",
        "llama-3.1",
        "llama-3.3",
        "mistral",
        "deepseek-v3",
        "deepseek-r1",
        "gemma",
    ):
        assert family in names
    for family in ("phi", "gpt-oss", "glm", "kimi", "granite"):
        assert family in names


@pytest.mark.parametrize("conversation", CONVERSATIONS)
@pytest.mark.parametrize("name", TEMPLATES)
def test_jinja2_and_llama_cpp_make_the_same_prompt(name: str, conversation: str) -> None:
    ours, theirs = _prompts(name, conversation)
    if (name, conversation) in DIFFERENCES:
        assert ours != theirs, "the difference is gone: take it off the list"
        return
    if theirs.startswith("refused: "):
        assert ours.startswith("refused: ")
        return
    assert ours == theirs
