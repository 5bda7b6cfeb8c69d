"""The body of /v1/chat/completions: messages, tools and the form of the answer, as OpenAI has them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Literal

from pydantic import Field, JsonValue, ValidationInfo, field_validator, model_validator

from stratad.chat.chat import Chat, ChatRequest, PreparedChat, ToolChoice
from stratad.chat.json_schema import UnsupportedSchema, require_enforceable
from stratad.chat.messages import Message
from stratad.engine.generation import GenerationRequest
from stratad.server.bodies import MOST_LIKELIHOODS, SamplingBody
from stratad.server.failures import bad_request
from stratad.server.response_format import FunctionName, GrammarOfSchema, ResponseFormat, Schema
from stratad.server.strict import Strict

# As many functions as OpenAI takes.
_MOST_TOOLS = 128

# Templates get these from us.
_RESERVED_ARGUMENTS = frozenset(
    {"messages", "tools", "add_generation_prompt", "bos_token", "eos_token", "reasoning_effort"}
)


class TextPart(Strict):
    """One part of a message that is given in parts."""

    type: Literal["text"]
    text: str


class CalledFunction(Strict):
    """What a call names: `arguments` is JSON text."""

    name: str
    arguments: str


class Call(Strict):
    """A call in an earlier answer."""

    id: str
    type: Literal["function"] = "function"
    function: CalledFunction


class MessageBody(Strict):
    """One turn. `refusal`, `audio`, ... come back in answers that clients send again, and say nothing here."""

    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: str | list[TextPart] | None = None
    name: str | None = None
    reasoning_content: str | None = None
    tool_calls: list[Call] | None = None
    tool_call_id: str | None = None
    refusal: None = None
    audio: None = None
    function_call: None = None
    annotations: list[JsonValue] | None = None

    @model_validator(mode="after")
    def _be_whole(self) -> MessageBody:
        if self.content is None and not (self.role == "assistant" and self.tool_calls):
            raise ValueError("content is missing")
        if (self.role == "tool") != (self.tool_call_id is not None):
            raise ValueError("tool_call_id belongs to messages of role tool, and to each of them")
        if self.role != "assistant" and (self.tool_calls or self.reasoning_content):
            raise ValueError("tool_calls and reasoning_content belong to messages of role assistant")
        return self

    def as_message(self) -> Message:
        """The turn with the keys that templates know; parts of text are joined."""
        parts = self.content or ""
        turn: dict[str, object] = {
            "role": self.role,
            "content": parts if isinstance(parts, str) else "".join(part.text for part in parts),
        }
        for key in ("name", "reasoning_content", "tool_call_id"):
            if (value := getattr(self, key)) is not None:
                turn[key] = value
        if self.tool_calls:
            turn["tool_calls"] = [call.model_dump() for call in self.tool_calls]
        return turn


class Function(Strict):
    """A function that the model may call."""

    name: FunctionName
    description: str | None = None
    parameters: Schema | None = None
    strict: bool | None = None


class Tool(Strict):
    """A tool; functions are the only kind."""

    type: Literal["function"]
    function: Function

    def as_template_value(self) -> dict[str, object]:
        """The tool as templates show it; `strict` is between client and server."""
        function = self.function.model_dump(exclude_none=True, exclude={"strict"})
        function.setdefault("description", "")
        function.setdefault("parameters", {"type": "object", "properties": {}})
        return {"type": "function", "function": function}


class FunctionReference(Strict):
    """The name of a function."""

    name: str


class NamedToolChoice(Strict):
    """The one tool that must be called."""

    type: Literal["function"]
    function: FunctionReference


class ChatBody(SamplingBody):
    """POST /v1/chat/completions."""

    messages: Annotated[list[MessageBody], Field(min_length=1)]
    logprobs: bool | None = None
    top_logprobs: Annotated[int, Field(ge=0, le=MOST_LIKELIHOODS)] | None = None
    max_completion_tokens: Annotated[int, Field(ge=1)] | None = None
    tools: Annotated[list[Tool], Field(max_length=_MOST_TOOLS)] | None = None
    tool_choice: ToolChoice | NamedToolChoice | None = None
    parallel_tool_calls: bool | None = None
    response_format: ResponseFormat | None = None
    reasoning_effort: Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"] | None = None
    chat_template_kwargs: dict[str, JsonValue] | None = None

    @field_validator("top_logprobs")
    @classmethod
    def _need_logprobs(cls, top_logprobs: int | None, info: ValidationInfo) -> int | None:
        if top_logprobs and not info.data.get("logprobs"):
            raise ValueError("alternatives are told with the tokens: set logprobs to true")
        return top_logprobs

    @field_validator("tools")
    @classmethod
    def _have_names_of_their_own(cls, tools: list[Tool] | None) -> list[Tool] | None:
        names = [tool.function.name for tool in tools or []]
        if len(set(names)) < len(names):
            raise ValueError("two functions have the same name")
        return tools

    @field_validator("tool_choice")
    @classmethod
    def _be_possible(
        cls, choice: ToolChoice | NamedToolChoice | None, info: ValidationInfo
    ) -> ToolChoice | NamedToolChoice | None:
        names = [tool.function.name for tool in info.data.get("tools") or []]
        if choice in (None, "none", "auto"):
            return choice
        if not names:
            raise ValueError("there are no tools to choose from")
        if isinstance(choice, NamedToolChoice) and choice.function.name not in names:
            raise ValueError(f"no tool has the name {choice.function.name!r}")
        return choice

    def chat_request(self, chat: Chat) -> ChatRequest:
        """What `chat` is asked. Raises HttpFailure for what this model or a grammar cannot do."""
        grammar_of = chat.grammar_of_schema
        schema = self.response_format.enforceable_schema(grammar_of) if self.response_format else None
        self._require_one_grammar(schema)
        for index, tool in enumerate(self.tools or []):
            _require_enforceable_tool(index, tool.function, grammar_of)
        named = self.tool_choice if isinstance(self.tool_choice, NamedToolChoice) else None
        arguments = self._template_arguments(chat)
        thinks = arguments.pop("enable_thinking", True)
        if not isinstance(thinks, bool):
            raise bad_request(
                "enable_thinking must be true or false",
                code="invalid_value",
                parameter="chat_template_kwargs",
            )
        return ChatRequest(
            messages=[message.as_message() for message in self.messages],
            tools=[tool.as_template_value() for tool in self.tools or []],
            tool_choice=self._choice(),
            callable_tools=(named.function.name,) if named else None,
            calls_in_parallel=self.parallel_tool_calls is not False,
            json_schema=schema,
            enable_thinking=thinks and self.reasoning_effort != "none",
            template_arguments=arguments,
        )

    def generation_request(self, prepared: PreparedChat) -> GenerationRequest:
        """What the engine is to do with the prepared chat."""
        sampling = self.sampling(prepared.plan.grammar)
        return GenerationRequest(
            prompt=prepared.prompt,
            sampling=sampling,
            max_tokens=self.max_completion_tokens or self.max_tokens,
            stop_strings=(*self.stop_strings, *prepared.plan.stop_strings),
            likelihood_count=(self.top_logprobs or 0) if self.logprobs else None,
            is_rendered=True,
            marks=prepared.plan.marks,
            grammar_parameter=self._grammar_parameter(),
        )

    def _choice(self) -> ToolChoice:
        if isinstance(self.tool_choice, NamedToolChoice):
            return "required"
        return self.tool_choice or "auto"

    def _grammar_parameter(self) -> str:
        """What the answer's grammar comes from."""
        if self.grammar is not None:
            return "grammar"
        return "tools" if self._offers_tools() else "response_format"

    def _offers_tools(self) -> bool:
        """Whether the model may call one."""
        return bool(self.tools) and self._choice() != "none"

    def _require_one_grammar(self, schema: Mapping[str, object] | None) -> None:
        """An answer has one form: a schema, a grammar of the client's, or text with calls of tools."""
        forms = [
            name for name, is_given in (("response_format", schema), ("grammar", self.grammar)) if is_given
        ]
        if self._offers_tools():
            forms.append("tools")
        if len(forms) > 1:
            raise bad_request(
                f"{' and '.join(forms)} cannot be combined in one request",
                code="unsupported_parameter",
                parameter=forms[0],
            )

    def _template_arguments(self, chat: Chat) -> dict[str, object]:
        """What the template is given beside messages; what it never reads would change nothing, so is refused."""
        arguments: dict[str, object] = dict(self.chat_template_kwargs or {})
        for name in arguments:
            if name in _RESERVED_ARGUMENTS or not chat.reads(name):
                raise bad_request(
                    f"the model's chat template takes no argument {name!r}",
                    code="unsupported_parameter",
                    parameter=f"chat_template_kwargs.{name}",
                )
        if self.reasoning_effort not in (None, "none"):
            if not chat.reads("reasoning_effort"):
                raise bad_request(
                    "this model knows no degrees of reasoning; 'none' asks it not to think",
                    code="unsupported_parameter",
                    parameter="reasoning_effort",
                )
            arguments["reasoning_effort"] = self.reasoning_effort
        return arguments


def _require_enforceable_tool(index: int, function: Function, grammar_of: GrammarOfSchema) -> None:
    if not function.parameters:
        return
    try:
        require_enforceable(function.parameters, is_strict=bool(function.strict), grammar_of=grammar_of)
    except UnsupportedSchema as error:
        raise bad_request(
            str(error), code="unsupported_schema", parameter=f"tools.{index}.function.parameters"
        ) from error
