"""Tools for models whose template knows none: told in the instructions, called in Hermes' form.

The form is the one most models have seen: `<tool_call>`, a JSON object with name and arguments, `</tool_call>`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from stratad.chat.answer_format import AnswerParts, AnswerPlan
from stratad.chat.messages import Message, with_system_text
from stratad.runner.protocol import Grammar

_FORM = (
    "To call one, answer with a JSON object between tags:\n"
    '<tool_call>\n{"name": <function name>, "arguments": <arguments object>}\n</tool_call>'
)


def told_in_text(
    messages: Sequence[Message], tools: Sequence[Mapping[str, object]], *, with_form: bool
) -> list[Message]:
    """The conversation with its tools in plain words.

    `with_form` also writes earlier calls and their results as text and tells how to call; without it the
    template does that itself and only lacks the list.
    """
    turns = [_as_text(message) for message in messages] if with_form else list(messages)
    if not tools:
        return turns
    listed = "\n".join(json.dumps(tool["function"], ensure_ascii=False) for tool in tools)
    told = f"You can call these functions:\n{listed}"
    return with_system_text(turns, f"{told}\n\n{_FORM}" if with_form else told)


def _as_text(message: Message) -> Message:
    turn: dict[str, Any] = dict(message)
    if turn["role"] == "tool":
        return {"role": "user", "content": f"<tool_response>\n{turn['content']}\n</tool_response>"}
    calls = turn.pop("tool_calls", None) or []
    written = [
        f'<tool_call>\n{{"name": {json.dumps(call["function"]["name"])}, '
        f'"arguments": {call["function"]["arguments"]}}}\n</tool_call>'
        for call in calls
    ]
    turn["content"] = "\n".join(part for part in (turn.get("content") or "", *written) if part)
    return turn


@dataclass(frozen=True, slots=True)
class _Forced:
    """A plan with another grammar."""

    plan: AnswerPlan
    grammar: Grammar | None

    @property
    def prompt(self) -> str:
        return self.plan.prompt

    @property
    def prompt_end(self) -> str:
        return self.plan.prompt_end

    @property
    def marks(self) -> tuple[str, ...]:
        return self.plan.marks

    @property
    def stop_strings(self) -> tuple[str, ...]:
        return self.plan.stop_strings

    def parse(self, text: str, *, is_partial: bool) -> AnswerParts:
        return self.plan.parse(text, is_partial=is_partial)


def forced_at_once(plan: AnswerPlan) -> AnswerPlan:
    """The plan with a grammar that begins with the call.

    llama.cpp's lets a model write text before it must call; one that knows no tools would never come to it.
    """
    if plan.grammar is None:
        return plan
    text = re.sub(r"^(root ::=.*?) until-\d+\? ", r"\1 ", plan.grammar.text, count=1, flags=re.MULTILINE)
    return _Forced(plan, replace(plan.grammar, text=text))
