"""`stratad.chat.answer_format` over the native module: what llama.cpp knows about chat templates and JSON schemas."""

from __future__ import annotations

import json
from collections.abc import Mapping

from stratad import _native
from stratad.chat.answer_format import AnswerParts, ToolCall
from stratad.chat.chat import Chat, ChatFinding, open_chat
from stratad.runner.protocol import Grammar, ModelRunner


class NativeAnswerPlan:
    """`AnswerPlan` of the native module."""

    def __init__(self, plan: _native.AnswerPlan) -> None:
        self._plan = plan

    @property
    def prompt(self) -> str:
        """llama.cpp's own rendering."""
        return self._plan.prompt

    @property
    def prompt_end(self) -> str:
        """What the template adds for the answer to begin."""
        return self._plan.prompt_end

    @property
    def grammar(self) -> Grammar | None:
        """The grammar over prompt end and answer; None when anything goes."""
        if not self._plan.grammar:
            return None
        return Grammar(
            self._plan.grammar,
            prefix=self._plan.prompt_end,
            trigger_words=tuple(self._plan.trigger_words),
            trigger_patterns=tuple(self._plan.trigger_patterns),
            thinking_start=self._plan.thinking_start,
            thinking_ends=tuple(self._plan.thinking_ends),
        )

    @property
    def marks(self) -> tuple[str, ...]:
        """Marks whose text `parse` needs."""
        return tuple(self._plan.marks)

    @property
    def stop_strings(self) -> tuple[str, ...]:
        """Strings that end the turn."""
        return tuple(self._plan.stop_strings)

    def parse(self, text: str, *, is_partial: bool) -> AnswerParts:
        """The parts of `text`. Raises ValueError when it cannot be read."""
        parts = self._plan.parse(text, is_partial)
        calls = tuple(ToolCall(call.id, call.name, call.arguments) for call in parts.tool_calls)
        return AnswerParts(parts.reasoning, parts.content, calls)


class NativeAnswerFormat:
    """`AnswerFormat` of the native module. Raises ValueError for a template that llama.cpp cannot read."""

    def __init__(self, source: str, *, bos_text: str, eos_text: str) -> None:
        self._format = _native.AnswerFormat(source, start_text=bos_text, end_text=eos_text)

    @property
    def describes_tools(self) -> bool:
        """Whether the template shows tools to the model."""
        return self._format.describes_tools

    @property
    def writes_tool_calls(self) -> bool:
        """Whether it has a form for calls of tools."""
        return self._format.writes_tool_calls

    @property
    def wants_object_arguments(self) -> bool:
        """Whether earlier calls' arguments are to be objects."""
        return self._format.wants_object_arguments

    @property
    def has_system_role(self) -> bool:
        """Whether it accepts system messages."""
        return self._format.has_system_role

    @property
    def wants_content_parts(self) -> bool:
        """Whether contents are to be lists of parts."""
        return self._format.wants_content_parts

    def plan(self, request: Mapping[str, object]) -> NativeAnswerPlan:
        """The plan for a request. Raises ValueError with the reason."""
        return NativeAnswerPlan(self._format.plan(json.dumps(request)))


def open_model_chat(runner: ModelRunner) -> tuple[Chat, list[ChatFinding]]:
    """Chats by the template of the runner's model, and what is not as its author meant it."""
    return open_chat(
        runner.chat_template,
        bos_text=runner.bos_text,
        eos_text=runner.eos_text,
        knowledge=NativeChatKnowledge(),
    )


class NativeChatKnowledge:
    """`ChatKnowledge` of the native module."""

    def open_format(self, template: str, *, bos_text: str, eos_text: str) -> NativeAnswerFormat:
        """The format of a chat template. Raises ValueError when llama.cpp cannot read it."""
        return NativeAnswerFormat(template, bos_text=bos_text, eos_text=eos_text)

    def grammar_of_schema(self, schema: Mapping[str, object]) -> str:
        """GBNF of the JSON values that a schema allows. Raises ValueError naming what it cannot express."""
        return _native.grammar_of_schema(json.dumps(schema))
