"""Request bodies: pydantic models at the edge, engine values behind it.

A parameter of OpenAI's that is not implemented is refused and named, unless it asks for nothing (null, false,
n = 1): a client that gets a plain answer where it asked for a tool call would not notice.
"""

from __future__ import annotations

import json
from http import HTTPStatus
from typing import Annotated, Any, TypeVar

from pydantic import Field, ValidationError
from pydantic_core import ErrorDetails

from stratad.engine.generation import GenerationRequest
from stratad.runner.protocol import Grammar, SamplingParameters
from stratad.server.failures import HttpFailure, bad_request
from stratad.server.response_format import GrammarOfSchema, ResponseFormat
from stratad.server.strict import Strict

# Refused unless they have one of these values, in which they change nothing.
_INACTIVE_VALUES: dict[str, tuple[object, ...]] = {
    "audio": (None,),
    "best_of": (None, 1),
    "echo": (None, False),
    "function_call": (None, "none"),
    "functions": (None, []),
    "modalities": (None, ["text"]),
    "n": (None, 1),
    "prediction": (None,),
    "store": (None, False),
    "suffix": (None, ""),
    "verbosity": (None, "medium"),
    "web_search_options": (None,),
}

# They say who asks; nothing depends on them here, and they are not kept.
_IGNORED = frozenset({"user", "metadata", "safety_identifier", "prompt_cache_key", "service_tier"})

# As many alternatives to a token as OpenAI tells at most.
MOST_LIKELIHOODS = 20

# The largest seed that the sampler takes; OpenAI's may be any integer and is folded into it.
_SEED_MODULUS = 2**32 - 1

Text = Annotated[str, Field(min_length=1)]
_Body = TypeVar("_Body", bound="Strict")


class StreamOptions(Strict):
    """`stream_options`."""

    include_usage: bool = False


class SamplingBody(Strict):
    """What both endpoints share. Defaults are llama.cpp's."""

    model: str | None = None
    stream: bool | None = False
    stream_options: StreamOptions | None = None
    stop: Text | Annotated[list[Text], Field(max_length=16)] | None = None
    temperature: Annotated[float, Field(ge=0, le=100)] | None = None
    top_k: Annotated[int, Field(ge=0, le=2**31 - 1)] | None = None
    top_p: Annotated[float, Field(ge=0, le=1)] | None = None
    min_p: Annotated[float, Field(ge=0, le=1)] | None = None
    seed: int | None = None
    repeat_penalty: Annotated[float, Field(gt=0, le=100)] | None = None
    repeat_last_n: Annotated[int, Field(ge=0, le=2**31 - 1)] | None = None
    frequency_penalty: Annotated[float, Field(ge=-2, le=2)] | None = None
    presence_penalty: Annotated[float, Field(ge=-2, le=2)] | None = None
    logit_bias: (
        dict[Annotated[str, Field(pattern=r"^\d{1,9}$")], Annotated[float, Field(ge=-100, le=100)]] | None
    ) = None
    grammar: Text | None = None
    max_tokens: Annotated[int, Field(ge=1)] | None = None

    @property
    def stop_strings(self) -> tuple[str, ...]:
        """The stop strings, one or many."""
        if self.stop is None:
            return ()
        return (self.stop,) if isinstance(self.stop, str) else tuple(self.stop)

    @property
    def includes_usage(self) -> bool:
        """Whether a stream ends with a chunk of usage."""
        return self.stream_options is not None and self.stream_options.include_usage

    def sampling(self, form: Grammar | None = None) -> SamplingParameters:
        """The engine's sampling parameters; what the client leaves out has the default.

        The client's own grammar comes before the `form` that the answer has otherwise.
        """
        named = {
            "temperature": self.temperature,
            "top_k": self.top_k,
            "top_p": self.top_p,
            "min_p": self.min_p,
            "seed": None if self.seed is None else self.seed % _SEED_MODULUS,
            "repeat_penalty": self.repeat_penalty,
            "penalty_last_tokens": self.repeat_last_n,
            "frequency_penalty": self.frequency_penalty,
            "presence_penalty": self.presence_penalty,
            "grammar": form if self.grammar is None else Grammar(self.grammar),
        }
        biases = tuple(sorted((int(token), bias) for token, bias in (self.logit_bias or {}).items()))
        given: dict[str, Any] = {name: value for name, value in named.items() if value is not None}
        return SamplingParameters(logit_bias=biases, **given)


class CompletionBody(SamplingBody):
    """POST /v1/completions."""

    prompt: (
        str
        | Annotated[list[int], Field(min_length=1)]
        | Annotated[list[str], Field(min_length=1, max_length=1)]
    )
    logprobs: Annotated[int, Field(ge=0, le=MOST_LIKELIHOODS)] | None = None
    response_format: ResponseFormat | None = None

    def generation_request(self, grammar_of: GrammarOfSchema) -> GenerationRequest:
        """What the engine is to do. Raises HttpFailure for a schema that no grammar can enforce."""
        prompt: str | tuple[int, ...]
        if isinstance(self.prompt, str):
            prompt = self.prompt
        else:
            first = self.prompt[0]
            prompt = first if isinstance(first, str) else tuple(int(token) for token in self.prompt)
        form = self._form(grammar_of)
        return GenerationRequest(
            prompt,
            self.sampling(form),
            self.max_tokens,
            self.stop_strings,
            likelihood_count=self.logprobs,
            grammar_parameter="grammar" if form is None else "response_format",
        )

    def _form(self, grammar_of: GrammarOfSchema) -> Grammar | None:
        """The grammar of the form asked for; None for text."""
        schema = self.response_format.enforceable_schema(grammar_of) if self.response_format else None
        if schema is None:
            return None
        if self.grammar is not None:
            raise bad_request(
                "response_format and grammar cannot be combined in one request",
                code="unsupported_parameter",
                parameter="response_format",
            )
        return Grammar(grammar_of(schema))


class TokenizeBody(Strict):
    """POST /tokenize, as llama.cpp's server has it."""

    content: str
    add_special: bool = False
    parse_special: bool = True
    model: str | None = None


def parse_body(body_type: type[_Body], raw: bytes, served_model: str) -> _Body:
    """The request in `raw`.

    Raises:
        HttpFailure: 400 for what is not JSON, a wrong type, an unknown or unsupported parameter, which it
            names; 404 for a model that is not served.
    """
    document = _json_object(raw)
    model = document.get("model")
    if isinstance(model, str) and model != served_model:
        raise HttpFailure(
            HTTPStatus.NOT_FOUND,
            f"the model {model!r} is not served here; {served_model!r} is",
            code="model_not_found",
            parameter="model",
        )
    try:
        return body_type.model_validate_json(json.dumps(_without_inactive(document)))
    except ValidationError as error:
        raise _named_failure(error.errors()[0]) from error


def _json_object(raw: bytes) -> dict[str, Any]:
    try:
        document = json.loads(raw, parse_constant=_refuse_constant)
    except (ValueError, RecursionError) as error:
        raise bad_request(f"the body is not JSON: {error}", code="invalid_json") from error
    if not isinstance(document, dict):
        raise bad_request("the body must be a JSON object", code="invalid_json")
    return document


def _refuse_constant(name: str) -> float:
    raise ValueError(f"{name} is not a JSON number")


def _without_inactive(document: dict[str, Any]) -> dict[str, Any]:
    """The document without parameters that change nothing; refuses the unsupported ones that would."""
    kept = {}
    for name, value in document.items():
        if name in _INACTIVE_VALUES:
            # 1 == True in Python: compare the JSON texts.
            if json.dumps(value) not in [json.dumps(inactive) for inactive in _INACTIVE_VALUES[name]]:
                raise bad_request(
                    f"the parameter {name!r} is not supported here",
                    code="unsupported_parameter",
                    parameter=name,
                )
        elif name not in _IGNORED:
            kept[name] = value
    return kept


def _named_failure(problem: ErrorDetails) -> HttpFailure:
    """One pydantic finding as a refusal that names the parameter as the client wrote it."""
    # Locations inside a union also name its members, such as "list[...]": only plain names and indices are
    # the client's.
    parts = [str(part) for part in problem["loc"] if isinstance(part, int) or str(part).isidentifier()]
    parameter = ".".join(part for part in parts if part not in ("str", "int", "constrained"))
    if problem["type"] == "extra_forbidden":
        return bad_request(f"unknown parameter {parameter!r}", code="unknown_parameter", parameter=parameter)
    if problem["type"] == "missing":
        return bad_request(f"{parameter!r} is missing", code="missing_parameter", parameter=parameter)
    message = problem["msg"][:1].lower() + problem["msg"][1:]
    return bad_request(f"{parameter}: {message}", code="invalid_value", parameter=parameter)
