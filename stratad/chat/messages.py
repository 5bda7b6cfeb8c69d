"""Messages as a template wants them: the differences between OpenAI's shape and what templates are written for.

The rules are llama.cpp's own, so that its analysis of a template and our prompts agree.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from stratad.chat.answer_format import AnswerFormat
from stratad.chat.template import ChatTemplateError

Message = Mapping[str, object]


def adapted(messages: Sequence[Message], answer_format: AnswerFormat, source: str) -> list[dict[str, Any]]:
    """The messages for a template with this format and text; those given are not changed.

    Raises:
        ChatTemplateError: Arguments of an earlier call are no JSON object where the template wants one.
    """
    turns: list[dict[str, Any]] = [dict(message) for message in messages]
    for turn in turns:
        if turn["role"] == "developer":
            turn["role"] = "system"
    if not answer_format.has_system_role:
        turns = _without_system(turns)
    for turn in turns:
        _name_thinking(turn, source)
        if "tool_calls" in turn:
            turn["tool_calls"] = [_call(call, answer_format) for call in turn["tool_calls"]]
        if answer_format.wants_content_parts and isinstance(turn.get("content"), str):
            turn["content"] = [{"type": "text", "text": turn["content"]}]
    return turns


def with_system_text(messages: Sequence[Message], text: str) -> list[Message]:
    """The messages with more instructions: behind those of the first one, or in front of all."""
    if messages and messages[0]["role"] in ("system", "developer"):
        first = {**messages[0], "content": f"{messages[0]['content']}\n\n{text}"}
        return [first, *messages[1:]]
    return [{"role": "system", "content": text}, *messages]


def _without_system(turns: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The instructions in front of the next message, for templates that refuse a role for them."""
    if not turns or turns[0]["role"] != "system":
        return turns
    if len(turns) == 1:
        return [{**turns[0], "role": "user"}]
    second = {**turns[1], "content": f"{turns[0]['content']}\n{turns[1]['content']}"}
    return [second, *turns[2:]]


def _name_thinking(turn: dict[str, Any], source: str) -> None:
    """gpt-oss has another name for earlier thinking, and refuses text beside it in a turn that calls tools."""
    if "<|channel|>" in source and "reasoning_content" in turn:
        turn["thinking"] = turn["reasoning_content"]
        if turn.get("tool_calls"):
            turn.pop("content", None)


def _call(call: Mapping[str, Any], answer_format: AnswerFormat) -> dict[str, Any]:
    function = dict(call["function"])
    if answer_format.wants_object_arguments and isinstance(function["arguments"], str):
        try:
            function["arguments"] = json.loads(function["arguments"])
        except ValueError as error:
            raise ChatTemplateError(f"the arguments of a tool call are not JSON: {error}") from error
    return {**call, "function": function}
