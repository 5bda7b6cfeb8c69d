"""A chat: messages and tools in, a prompt and the plan of its answer out.

The prompt is written by the model's own template in jinja2's sandbox (`stratad.chat.template`); how the answer is to
be read, and held to tools or a schema, comes from llama.cpp's analysis of the same template (ADR 0031). Where a
template knows no tools, they are told and called in the form that Hermes and Qwen models use
(`stratad.chat.plain_tools`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

from stratad.chat.answer_format import AnswerFormat, AnswerPlan, ChatKnowledge
from stratad.chat.messages import Message, adapted
from stratad.chat.plain_tools import forced_at_once, told_in_text
from stratad.chat.template import (
    FALLBACK_TEMPLATE,
    FALLBACK_TEMPLATE_NAME,
    PROBE_MESSAGES,
    ChatTemplate,
    ChatTemplateError,
    open_chat_template,
)

ToolChoice = Literal["none", "auto", "required"]


@dataclass(frozen=True, slots=True)
class ChatRequest:
    """What a client asks of a chat.

    Attributes:
        messages: Turns with OpenAI's keys.
        tools: Functions that the model may call, in OpenAI's shape.
        tool_choice: Whether it may call none, may, or must.
        callable_tools: Names of the tools it may call now; None: all of them.
        calls_in_parallel: Whether one answer may hold several calls.
        json_schema: The answer's text is a JSON value of this schema; None: any text.
        enable_thinking: False asks a model that thinks to answer at once.
        template_arguments: What else the template is to read.
    """

    messages: Sequence[Message]
    tools: Sequence[Mapping[str, object]] = ()
    tool_choice: ToolChoice = "auto"
    callable_tools: tuple[str, ...] | None = None
    calls_in_parallel: bool = True
    json_schema: Mapping[str, object] | None = None
    enable_thinking: bool = True
    template_arguments: Mapping[str, object] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class PreparedChat:
    """The prompt, and how the answer to it is read and held."""

    prompt: str
    plan: AnswerPlan


@dataclass(frozen=True, slots=True)
class ChatFinding:
    """Something about the model's template that the operator should know; `code` is one of the reasons'."""

    code: str
    message: str


class Chat:
    """Chats with one model. Safe from several threads."""

    def __init__(self, template: ChatTemplate, answer_format: AnswerFormat, knowledge: ChatKnowledge) -> None:
        """Answers to `template` have `answer_format`; tools that it does not know, the fallback template's."""
        self._template = template
        self._format = answer_format
        self._plain_format = knowledge.open_format(FALLBACK_TEMPLATE, bos_text="", eos_text="")
        self._knowledge = knowledge

    def grammar_of_schema(self, schema: Mapping[str, object]) -> str:
        """GBNF of the JSON values that a schema allows. Raises ValueError naming what it cannot express."""
        return self._knowledge.grammar_of_schema(schema)

    def reads(self, name: str) -> bool:
        """Whether the template's text names a variable."""
        return name in self._template.source

    def prepare(self, request: ChatRequest) -> PreparedChat:
        """The prompt and the plan for a request.

        Raises:
            ChatTemplateError: The template refuses the messages, or no grammar can hold the answer.
        """
        if request.tools and not self._format.writes_tool_calls:
            return self._prepare_with_plain_tools(request)
        messages = request.messages
        if request.tools and not self._format.describes_tools:
            messages = told_in_text(messages, request.tools, with_form=False)
        prompt = self._render(messages, request)
        return PreparedChat(prompt, self._plan(self._format, replace(request, messages=messages)))

    def _prepare_with_plain_tools(self, request: ChatRequest) -> PreparedChat:
        is_callable = request.tool_choice != "none"
        messages = told_in_text(request.messages, request.tools if is_callable else (), with_form=True)
        prompt = self._render(messages, replace(request, tools=()))
        plan = self._plan(self._plain_format, replace(request, messages=PROBE_MESSAGES))
        return PreparedChat(prompt, forced_at_once(plan) if request.tool_choice == "required" else plan)

    def _render(self, messages: Sequence[Message], request: ChatRequest) -> str:
        variables: dict[str, object] = {
            "enable_thinking": request.enable_thinking,
            **request.template_arguments,
        }
        if request.tools:
            variables["tools"] = request.tools
        turns = adapted(messages, self._format, self._template.source)
        return self._template.render(turns, **variables)

    def _plan(self, answer_format: AnswerFormat, request: ChatRequest) -> AnswerPlan:
        allowed = request.callable_tools
        tools = [tool for tool in request.tools if allowed is None or _name(tool) in allowed]
        document: dict[str, object] = {
            "messages": [dict(message) for message in request.messages],
            "tools": tools,
            "tool_choice": request.tool_choice if tools else "none",
            "parallel_tool_calls": request.calls_in_parallel,
            "enable_thinking": request.enable_thinking,
            "template_arguments": dict(request.template_arguments),
        }
        if request.json_schema is not None:
            document["json_schema"] = request.json_schema
        try:
            return answer_format.plan(document)
        except ValueError as error:
            raise ChatTemplateError(f"no answer can be planned for this request: {error}") from error


def open_chat(
    source: str | None, *, bos_text: str, eos_text: str, knowledge: ChatKnowledge
) -> tuple[Chat, list[ChatFinding]]:
    """Chats by a model file's template, and what is not as its author meant it.

    A template that jinja2 cannot use is replaced, one that llama.cpp cannot read is used for prompts only.
    """
    findings = []
    template, problem = open_chat_template(source, bos_text=bos_text, eos_text=eos_text)
    if problem is not None:
        findings.append(ChatFinding("chat-template-fallback", f"{problem}; {FALLBACK_TEMPLATE_NAME} is used"))
    try:
        own_format = knowledge.open_format(template.source, bos_text=bos_text, eos_text=eos_text)
        findings += _differences(template, own_format)
    except ValueError as error:
        own_format = knowledge.open_format(_TEXT_ONLY, bos_text=bos_text, eos_text=eos_text)
        message = f"llama.cpp cannot read the chat template, so answers are plain text: {error}"
        findings.append(ChatFinding("answer-format-unknown", message))
    if not own_format.writes_tool_calls:
        message = "the chat template has no form for tools, so Hermes' form is used in plain text"
        findings.append(ChatFinding("tools-in-plain-text", message))
    return Chat(template, own_format, knowledge), findings


# Answers without any marks, told of no tools.
_TEXT_ONLY = "{% for message in messages %}{{ message.content }}\n{% endfor %}"


def _differences(template: ChatTemplate, answer_format: AnswerFormat) -> list[ChatFinding]:
    """A finding when llama.cpp makes another prompt of one plain question than jinja2 does.

    Raises:
        ValueError: llama.cpp makes none.
    """
    plan = answer_format.plan({"messages": [dict(message) for message in PROBE_MESSAGES]})
    turns = adapted(PROBE_MESSAGES, answer_format, template.source)
    if plan.prompt == template.render(turns, enable_thinking=True):
        return []
    message = "jinja2 and llama.cpp make different prompts of the chat template; thinking and calls of tools "
    return [ChatFinding("answer-format-doubtful", message + "may be read wrongly")]


def _name(tool: Mapping[str, object]) -> str:
    function = tool["function"]
    assert isinstance(function, Mapping)
    return str(function["name"])
