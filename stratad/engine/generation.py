"""What a request to the engine is, what comes back, and how it can fail.

RequestError              a request that got no (whole) answer, said to its sender
    InvalidRequest        it asks for something impossible
        PromptTooLong     more tokens than the context holds
    QueueFull             too many are waiting
    NotAccepting          the daemon is loading, draining or stopped
    DeadlineExceeded      no answer within the time limit
    ReaderTooSlow         too much of the answer waits to be read
    EngineFailure         the native side failed
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal

from stratad.engine.text_stream import TextStream
from stratad.runner.protocol import SamplingParameters

FinishReason = Literal["stop", "length"]

_MILLISECONDS = 1000.0


class RequestError(Exception):
    """A request that could not be answered; `parameter` names the field at fault, `code` is stable."""

    code: str = "request_failed"

    def __init__(self, message: str, parameter: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.parameter = parameter


class InvalidRequest(RequestError):
    """The request asks for something that no later attempt would give."""

    code = "invalid_value"


class PromptTooLong(InvalidRequest):
    """The prompt leaves no room for an answer in the context."""

    code = "context_length_exceeded"

    def __init__(self, prompt_tokens: int, context_tokens: int, parameter: str | None = None) -> None:
        super().__init__(
            f"the prompt has {prompt_tokens} tokens, but the context holds {context_tokens} "
            "with at least one for the answer; shorten it or raise model.context_tokens",
            parameter,
        )
        self.prompt_tokens = prompt_tokens
        self.context_tokens = context_tokens


class QueueFull(RequestError):
    """As many requests wait as the configuration allows; `retry_seconds` is when to try again."""

    code = "queue_full"

    def __init__(self, waiting: int, retry_seconds: int) -> None:
        super().__init__(f"{waiting} requests are waiting already; try again later")
        self.retry_seconds = retry_seconds


class NotAccepting(RequestError):
    """The daemon takes no requests now: it is loading, draining or stopped."""

    code = "unavailable"


class DeadlineExceeded(RequestError):
    """The answer was not complete within the time limit."""

    code = "timeout"


class ReaderTooSlow(RequestError):
    """The client reads its stream more slowly than the answer is computed, and more waits than is kept."""

    code = "reader_too_slow"

    def __init__(self, unread_bytes: int, limit_bytes: int) -> None:
        super().__init__(
            f"{unread_bytes} bytes of the answer wait to be read, {limit_bytes} are kept; read faster"
        )


class EngineFailure(RequestError):
    """The native side failed; the cause stands in the daemon's log."""

    code = "engine_failure"


@dataclass(frozen=True, slots=True)
class GenerationRequest:
    """One prompt to continue.

    Attributes:
        prompt: Text, or token ids as they are.
        sampling: How tokens are chosen.
        max_tokens: Most tokens to generate; None takes the configured default.
        stop_strings: The answer ends before the first of these.
        likelihood_count: Tell with every token its likelihood and those of so many likeliest ones; None: nothing.
        is_rendered: The prompt comes out of a chat template, which may have written the start token itself.
        marks: Texts that stand in the answer's text also where each is one token without text of its own.
        grammar_parameter: What of the request the grammar comes from; named when the grammar fails.
        client: Who asks; places are shared out fairly among clients. Requests of one name are one client's.
    """

    prompt: str | tuple[int, ...]
    sampling: SamplingParameters
    max_tokens: int | None = None
    stop_strings: tuple[str, ...] = ()
    likelihood_count: int | None = None
    is_rendered: bool = False
    marks: tuple[str, ...] = ()
    grammar_parameter: str = "grammar"
    client: str = ""


@dataclass(frozen=True, slots=True)
class Timings:
    """Where one request's time went, measured by the engine around its own steps.

    `prompt_tokens` were computed in `prompt_seconds`, which other requests' tokens may have shared;
    `cached_tokens` more were reused from an earlier request. The first token falls out of the prompt, so
    `predicted_seconds` runs from there.
    """

    cached_tokens: int
    prompt_tokens: int
    prompt_seconds: float
    predicted_tokens: int
    predicted_seconds: float

    def as_document(self) -> dict[str, float | int | None]:
        """The fields as llama.cpp's server names them; a rate is null where nothing was measured."""
        return {
            "cache_n": self.cached_tokens,
            "prompt_n": self.prompt_tokens,
            "prompt_ms": self.prompt_seconds * _MILLISECONDS,
            "prompt_per_token_ms": _quotient(self.prompt_seconds * _MILLISECONDS, self.prompt_tokens),
            "prompt_per_second": _quotient(self.prompt_tokens, self.prompt_seconds),
            "predicted_n": self.predicted_tokens,
            "predicted_ms": self.predicted_seconds * _MILLISECONDS,
            "predicted_per_token_ms": _quotient(
                self.predicted_seconds * _MILLISECONDS, self.predicted_tokens
            ),
            "predicted_per_second": _quotient(self.predicted_tokens, self.predicted_seconds),
        }


@dataclass(frozen=True, slots=True)
class LikelyToken:
    """A token's bytes, possibly a part of one character, and the logarithm of its probability."""

    token_bytes: bytes
    log_probability: float


@dataclass(frozen=True, slots=True)
class ChosenToken:
    """A token of the answer, and the likeliest in its place, most likely first."""

    chosen: LikelyToken
    likeliest: tuple[LikelyToken, ...]


@dataclass(frozen=True, slots=True)
class TextPiece:
    """More of the answer; never empty, always whole characters.

    `tokens` are those chosen since the piece before, when their likelihoods are asked for. A piece can end within
    its last token, where a stop string might begin.
    """

    text: str
    tokens: tuple[ChosenToken, ...] = ()


@dataclass(frozen=True, slots=True)
class Finished:
    """The answer is complete. `stop`: the model or a stop string ended it; `length`: the limit did."""

    reason: FinishReason
    timings: Timings

    @property
    def is_cut(self) -> bool:
        """Whether the limit ended the answer, before the model came to an end."""
        return self.reason == "length"

    @property
    def prompt_tokens(self) -> int:
        """All tokens of the prompt, reused ones included."""
        return self.timings.prompt_tokens + self.timings.cached_tokens


@dataclass(frozen=True, slots=True)
class Failed:
    """The answer will not be completed."""

    error: RequestError


Event = TextPiece | Finished | Failed

# Called on the decode thread (or, for a request that fails in the queue, on any): must return at once.
Deliver = Callable[[Event], None]


class Generation:
    """One request from its submission to its end; compared by identity."""

    def __init__(
        self,
        prompt: tuple[int, ...],
        request: GenerationRequest,
        deliver: Deliver,
        token_limit: int,
        marks: Mapping[int, bytes] | None = None,
    ) -> None:
        self.prompt = prompt
        # The prompt and every token of the answer so far.
        self.tokens = list(prompt)
        self.request = request
        self.deliver = deliver
        self.token_limit = token_limit
        self.is_cancelled = False
        # Tokens that are marks, with their text.
        self.marks: Mapping[int, bytes] = marks or {}
        self.text = TextStream(request.stop_strings)
        # Tokens whose text has not gone out yet.
        self.untold_tokens: list[ChosenToken] = []
        self.submitted_seconds = time.perf_counter()
        self.first_token_seconds = self.submitted_seconds
        self.last_token_seconds = self.submitted_seconds
        self.cached_tokens = 0
        self.prompt_seconds = 0.0

    @property
    def predicted_tokens(self) -> int:
        """Tokens of the answer so far."""
        return len(self.tokens) - len(self.prompt)

    def deliver_text(self, text: str) -> None:
        """Sends a piece of the answer, unless it is empty."""
        if text and not self.is_cancelled:
            self.deliver(TextPiece(text, tuple(self.untold_tokens)))
            self.untold_tokens.clear()

    def timings(self) -> Timings:
        """Where the time went until now."""
        return Timings(
            cached_tokens=self.cached_tokens,
            prompt_tokens=len(self.prompt) - self.cached_tokens,
            prompt_seconds=self.prompt_seconds,
            predicted_tokens=self.predicted_tokens,
            predicted_seconds=time.perf_counter() - self.first_token_seconds,
        )


def _quotient(dividend: float, divisor: float) -> float | None:
    return dividend / divisor if divisor else None
