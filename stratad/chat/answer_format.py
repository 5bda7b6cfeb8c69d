"""How a model writes its answers, as values: thinking, text and calls of tools, and the grammar over them.

`stratad.native.chat` implements the protocols over llama.cpp's knowledge of templates (ADR 0031).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from stratad.runner.protocol import Grammar


@dataclass(frozen=True, slots=True)
class ToolCall:
    """One call: `call_id` is "" where the model writes none, `arguments` JSON text or a beginning of it."""

    call_id: str
    name: str
    arguments: str


@dataclass(frozen=True, slots=True)
class AnswerParts:
    """An answer, or as much of one as there is."""

    reasoning: str = ""
    content: str = ""
    tool_calls: tuple[ToolCall, ...] = ()


class AnswerPlan(Protocol):
    """What one request's answer looks like."""

    @property
    def prompt(self) -> str:
        """What llama.cpp's own template engine makes of the request; for comparison only."""

    @property
    def prompt_end(self) -> str:
        """What the template adds to the messages for the answer to begin."""

    @property
    def grammar(self) -> Grammar | None:
        """What the answer must match, from its beginning or from where a call of a tool begins."""

    @property
    def marks(self) -> tuple[str, ...]:
        """Marks that may be tokens without text of their own; `parse` needs their text."""

    @property
    def stop_strings(self) -> tuple[str, ...]:
        """Strings that end the model's turn."""

    def parse(self, text: str, *, is_partial: bool) -> AnswerParts:
        """The parts of `text`. Raises ValueError when it cannot be read."""


class AnswerFormat(Protocol):
    """How the model of one template writes; the properties say what the template can do."""

    @property
    def describes_tools(self) -> bool:
        """Whether it shows the request's tools to the model."""

    @property
    def writes_tool_calls(self) -> bool:
        """Whether it has a form for calls of tools."""

    @property
    def wants_object_arguments(self) -> bool:
        """Whether earlier calls' arguments are to be JSON objects, not JSON text."""

    @property
    def has_system_role(self) -> bool:
        """Whether it accepts system messages."""

    @property
    def wants_content_parts(self) -> bool:
        """Whether contents are to be lists of parts."""

    def plan(self, request: Mapping[str, object]) -> AnswerPlan:
        """The plan for a request: messages, tools, tool_choice, parallel_tool_calls, json_schema, ...

        Raises ValueError, with the reason, when the template or the grammar cannot be made for it.
        """


class ChatKnowledge(Protocol):
    """Where formats and grammars come from."""

    def open_format(self, template: str, *, bos_text: str, eos_text: str) -> AnswerFormat:
        """The format of a chat template. Raises ValueError when it cannot be read."""

    def grammar_of_schema(self, schema: Mapping[str, object]) -> str:
        """GBNF of the JSON values that a schema allows. Raises ValueError naming what it cannot express."""
