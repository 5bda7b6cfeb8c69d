"""What the engine is told and what it tells: its limits, its totals, and where it reports durations."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

from stratad.engine.generation import Timings
from stratad.engine.prompt_cache import PromptCacheStatus
from stratad.engine.saved_prompts import SavedPromptsPlace


@dataclass(frozen=True, slots=True)
class EngineSettings:
    """The limits from the configuration; see `stratad.config.ServerSection` and `ModelSection`.

    `saved_prompts` is where prompts are kept over a restart; None keeps none. `on_device_failure`
    is told, on the decode thread, that a GPU has failed and every request was ended.
    """

    max_queue: int
    request_timeout_seconds: float
    max_tokens_default: int | None
    chunk_tokens: int = 64
    prompt_cache_bytes: int = 0
    saved_prompts: SavedPromptsPlace | None = None
    on_device_failure: Callable[[str], None] = lambda failure: None


@dataclass(frozen=True, slots=True)
class SlotStatus:
    """One slot after the last step: the tokens it holds, and of its request those of prompt and answer.

    The last two are None while the slot is free; an answer has begun as soon as it has a token.
    """

    held_tokens: int
    prompt_tokens: int | None = None
    generated_tokens: int | None = None


@dataclass(frozen=True, slots=True)
class EngineStatus:
    """A consistent look at the engine; totals count since start.

    `slots` requests can run at once. `held_tokens` are in the model's memory now, of running requests and of
    earlier ones. `cached_tokens` are those of prompts that were held already, beside `prompt_tokens` computed.
    `decode_steps` are calls without a prompt's tokens, and `decode_seconds` the time in them.
    `finish_reasons` holds pairs of reason and count, sorted. `failure` says why no request can be answered
    any more; None while the engine works.
    """

    running: int
    waiting: int
    slots: int
    held_tokens: int
    prompt_tokens: int
    cached_tokens: int
    generation_tokens: int
    decode_steps: int
    decode_seconds: float
    prefill_seconds: float
    finish_reasons: tuple[tuple[str, int], ...]
    last_timings: Timings | None
    failure: str | None
    slot_list: tuple[SlotStatus, ...] = ()
    prompt_cache: PromptCacheStatus = field(default_factory=PromptCacheStatus)


class LatencyObserver(Protocol):
    """Where the engine reports durations that only histograms can hold."""

    def observe_first_token(self, seconds: float) -> None:
        """From submitting a request to its first token."""

    def observe_token_gap(self, seconds: float) -> None:
        """Between two tokens of one request."""

    def observe_request(self, seconds: float) -> None:
        """From submitting a request to its end, whatever the end."""


@dataclass(slots=True)
class EngineTotals:
    """The engine's running sums; `RequestQueue` guards them with its lock."""

    held_tokens: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    generation_tokens: int = 0
    decode_steps: int = 0
    decode_seconds: float = 0.0
    prefill_seconds: float = 0.0
    finish_reasons: Counter[str] = field(default_factory=Counter)
    last_timings: Timings | None = None
    slot_list: tuple[SlotStatus, ...] = ()
    prompt_cache: PromptCacheStatus = field(default_factory=PromptCacheStatus)
