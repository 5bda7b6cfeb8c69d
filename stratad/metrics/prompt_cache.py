"""Rows of the metric table for prompts that are kept in host memory, see `stratad.engine.prompt_cache`."""

from __future__ import annotations

from stratad.metrics.spec import MetricKind, MetricSpec

_COUNTER, _GAUGE = MetricKind.COUNTER, MetricKind.GAUGE
_MODEL = ("model_name",)

PROMPT_CACHE: tuple[MetricSpec, ...] = (
    MetricSpec("stratad_prompt_cache_bytes", _GAUGE, "Host memory that saved prompts take.", _MODEL, "bytes"),
    MetricSpec("stratad_prompt_cache_limit_bytes", _GAUGE, "Host memory they may take.", _MODEL, "bytes"),
    MetricSpec("stratad_prompt_cache_entries", _GAUGE, "Prompts saved in host memory.", _MODEL, "prompts"),
    MetricSpec(
        "stratad_prompt_cache_lookups_total",
        _COUNTER,
        "Requests that got a slot while there was a prompt cache.",
        _MODEL,
        "requests",
    ),
    MetricSpec(
        "stratad_prompt_cache_restores_total",
        _COUNTER,
        "Requests whose prompt's beginning was copied from the prompt cache.",
        _MODEL,
        "requests",
    ),
    MetricSpec(
        "stratad_prompt_cache_restored_tokens_total",
        _COUNTER,
        "Prompt tokens copied from there, also counted as cached.",
        _MODEL,
        "tokens",
    ),
    MetricSpec(
        "stratad_prompt_cache_saves_total",
        _COUNTER,
        "Prompts saved when they left their slot.",
        _MODEL,
        "prompts",
    ),
    MetricSpec(
        "stratad_prompt_cache_evictions_total",
        _COUNTER,
        "Saved prompts that went to make room.",
        _MODEL,
        "prompts",
    ),
    MetricSpec(
        "stratad_prompt_cache_copy_seconds_total",
        _COUNTER,
        "Time in saving and restoring, in which no answer goes on.",
        _MODEL,
        "seconds",
    ),
)
