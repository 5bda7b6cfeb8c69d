"""What the Grafana dashboard shows: sections of panels, each a title and its queries.

Which metric has no panel, and which query names a metric that does not exist, a test tells.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from stratad.metrics.table import TABLE

_SPECS = {spec.name: spec for spec in TABLE}
_HISTOGRAM_PART = re.compile(r"_(bucket|sum|count)$")


@dataclass(frozen=True, slots=True)
class Query:
    """One line of a panel: an expression, where `$filter` stands for the daemons shown, and its legend."""

    expression: str
    legend: str


@dataclass(frozen=True, slots=True)
class Panel:
    """One panel. `unit` is Grafana's name; "" takes it from the first metric's row in the table."""

    title: str
    queries: tuple[Query, ...]
    unit: str = ""
    kind: str = "timeseries"
    columns: int = 8
    rows: int = 7

    @property
    def metric_names(self) -> tuple[str, ...]:
        """Rows of the table that the queries name, each once."""
        words = re.findall(r"\bstratad_[a-z0-9_]+", " ".join(query.expression for query in self.queries))
        names = (word if word in _SPECS else _HISTOGRAM_PART.sub("", word) for word in words)
        return tuple(dict.fromkeys(name for name in names if name in _SPECS))

    @property
    def only_with(self) -> str:
        """What a machine must have for the panel to show anything; "" for nothing special."""
        needs = {_SPECS[name].only_with for name in self.metric_names}
        return ", ".join(sorted(needs)) if "" not in needs else ""


def _rate(name: str, *by: str, unit_legend: str = "") -> Query:
    """The rate of a counter, summed over the labels named."""
    expression = f"sum by (instance{''.join(f', {label}' for label in by)}) (rate({name}{{$filter}}[$__rate_interval]))"
    legend = " ".join(["{{instance}}", *(f"{label} {{{{{label}}}}}" for label in by), unit_legend])
    return Query(expression, legend.strip())


def _value(name: str, legend: str) -> Query:
    return Query(f"{name}{{$filter}}", legend)


def _quantiles(title: str, name: str) -> Panel:
    return Panel(
        title,
        tuple(
            Query(
                f"histogram_quantile({share}, sum by (instance, le) "
                f"(rate({name}_bucket{{$filter}}[$__rate_interval])))",
                f"{{{{instance}}}} p{round(share * 100)}",
            )
            for share in (0.5, 0.9, 0.99)
        ),
        "s",
    )


def _stat(title: str, query: Query, unit: str = "", columns: int = 4) -> Panel:
    return Panel(title, (query,), unit, "stat", columns, 4)


_BY_SLICE = "{{instance}} slice {{slice}}"
_BY_NODE = "{{instance}} node {{node}}"

SECTIONS: tuple[tuple[str, tuple[Panel, ...]], ...] = (
    (
        "Now",
        (
            _stat("State", Query("stratad_state{$filter} == 1", "{{instance}} {{stratad_state}}")),
            _stat(
                "Plan",
                _value("stratad_plan_info", "{{policy}}, {{confidence}}, {{arena_scope}}: {{fingerprint}}"),
                columns=6,
            ),
            _stat("Pages where planned", _value("stratad_placement_worst_ratio", "{{instance}}")),
            _stat("Tokens per second", _rate("stratad_generation_tokens_total"), "short"),
            _stat(
                "Restarts by systemd", _value("stratad_service_restarts_total", "{{instance}}"), "short", 3
            ),
            _stat("Version", _value("stratad_build_info", "{{version}}, {{engine}}"), columns=3),
            Panel(
                "Reasons of the plan and of the checks after it",
                (_value("stratad_plan_reason", "{{effect}} {{code}}"),),
                "short",
                "table",
                12,
            ),
            Panel(
                "Drift: no longer what the plan was made for",
                (_value("stratad_plan_drift", "{{instance}} {{code}}"),),
                "short",
                "state-timeline",
                12,
            ),
        ),
    ),
    (
        "Speed",
        (
            Panel(
                "Tokens per second",
                (
                    _rate("stratad_generation_tokens_total", unit_legend="generated"),
                    _rate("stratad_prompt_tokens_total", unit_legend="prompt, computed"),
                    _rate("stratad_prompt_tokens_cached_total", unit_legend="prompt, reused"),
                ),
                "short",
            ),
            Panel(
                "Time of a decode step, and of nine in ten last week",
                (
                    _value("stratad:decode_step_seconds:mean5m", "{{instance}}"),
                    _value("stratad:decode_step_seconds:baseline7d", "{{instance}} last week"),
                ),
                "s",
            ),
            Panel(
                "What the time goes to",
                (
                    _rate("stratad_decode_seconds_total", unit_legend="decode"),
                    _rate("stratad_prefill_seconds_total", unit_legend="prompts"),
                    _rate("stratad_engine_seconds_total", unit_legend="inside llama.cpp"),
                ),
                "percentunit",
            ),
            _quantiles("Between two tokens of an answer", "stratad_inter_token_latency_seconds"),
            _quantiles("Until the first token", "stratad_time_to_first_token_seconds"),
            _quantiles("Whole requests", "stratad_e2e_request_latency_seconds"),
            Panel(
                "Steps and calls per second",
                (
                    _rate("stratad_decode_steps_total", unit_legend="decode steps"),
                    _rate("stratad_engine_calls_total", unit_legend="calls"),
                ),
                "short",
            ),
            Panel("Tokens computed per second", (_rate("stratad_engine_tokens_total"),), "short"),
            Panel(
                "Loading and stalling",
                (
                    _value("stratad_loaded_ratio", "{{instance}} loaded"),
                    _value("stratad_stalled_seconds", "{{instance}} seconds without a step"),
                ),
                "short",
            ),
        ),
    ),
    (
        "Requests",
        (
            Panel(
                "Running and waiting",
                (
                    _value("stratad_requests_running", "{{instance}} running"),
                    _value("stratad_requests_waiting", "{{instance}} waiting"),
                    _value("stratad_slots", "{{instance}} slots"),
                    _value("stratad_queue_capacity", "{{instance}} room to wait"),
                ),
                "short",
            ),
            Panel("Ended, per second", (_rate("stratad_requests_total", "finish_reason"),), "reqps"),
            Panel("Refused, per second", (_rate("stratad_requests_refused_total", "code"),), "reqps"),
            Panel(
                "Key-value memory and reuse of prompts",
                (
                    _value("stratad_kv_cache_usage_ratio", "{{instance}} memory used"),
                    _value("stratad:prompt_cache_hit_ratio:rate5m", "{{instance}} prompt tokens reused"),
                ),
                "percentunit",
                columns=12,
            ),
            Panel("Tokens held", (_value("stratad_held_tokens", "{{instance}}"),), "short", columns=12),
            Panel(
                "Memory of the prompt cache",
                (
                    _value("stratad_prompt_cache_bytes", "{{instance}} used"),
                    _value("stratad_prompt_cache_limit_bytes", "{{instance}} limit"),
                ),
            ),
            Panel(
                "Prompt cache, per second",
                (
                    _rate("stratad_prompt_cache_lookups_total", unit_legend="looked up"),
                    _rate("stratad_prompt_cache_restores_total", unit_legend="copied back"),
                    _rate("stratad_prompt_cache_saves_total", unit_legend="saved"),
                    _rate("stratad_prompt_cache_evictions_total", unit_legend="given up"),
                ),
                "short",
            ),
            Panel(
                "Prompt cache: prompts, tokens copied back, and the time it takes",
                (
                    _value("stratad_prompt_cache_entries", "{{instance}} prompts"),
                    _rate("stratad_prompt_cache_restored_tokens_total", unit_legend="tokens per second"),
                    _rate("stratad_prompt_cache_copy_seconds_total", unit_legend="share of time"),
                ),
                "short",
            ),
        ),
    ),
    (
        "Placement",
        (
            Panel(
                "Pages on the slice's node",
                (
                    _value("stratad_placement_local_ratio", "{{instance}} slice {{slice}} node {{node}}"),
                    _value("stratad_placement_limit_ratio", "{{instance}} limit"),
                ),
            ),
            Panel("Arena by node", (_value("stratad_arena_bytes", _BY_NODE),)),
            Panel("Arena locked in memory", (_value("stratad_arena_locked_bytes", "{{instance}}"),)),
            Panel(
                "Age of the last check",
                (
                    _value("stratad_placement_check_age_seconds", "{{instance}}"),
                    _value("stratad_placement_check_interval_seconds", "{{instance}} interval"),
                ),
            ),
            Panel(
                "Pages unknown, and moved back",
                (
                    _value("stratad_placement_pages_unknown", f"{_BY_SLICE} unknown"),
                    _rate("stratad_placement_repaired_pages_total", unit_legend="moved back per second"),
                ),
                "short",
            ),
            Panel("Arena pinned for the GPU", (_value("stratad_pinned_bytes", "{{instance}}"),)),
        ),
    ),
    (
        "Pool",
        (
            Panel(
                "Share of computing time that a slice waits for others",
                (
                    _value("stratad:slice_wait_ratio:rate5m", f"{_BY_SLICE} between phases"),
                    _value("stratad:slice_drain_ratio:rate5m", f"{_BY_SLICE} at the end of jobs"),
                ),
                "percentunit",
            ),
            Panel(
                "Weights read while computing",
                (_value("stratad:slice_read_bytes_per_second:rate5m", _BY_SLICE),),
                "Bps",
            ),
            Panel(
                "Weights read, per second",
                (
                    _rate("stratad_expert_bytes_total", "slice", unit_legend="experts"),
                    _rate("stratad_dense_bytes_total", "slice", unit_legend="dense"),
                ),
                "Bps",
            ),
            Panel(
                "Idle time of slices",
                (
                    _rate("stratad_pool_barrier_wait_seconds_total", "slice", unit_legend="between phases"),
                    _rate("stratad_pool_drain_seconds_total", "slice", unit_legend="at the end of jobs"),
                ),
                "percentunit",
            ),
            Panel(
                "Tasks per second, and workers",
                (
                    _rate("stratad_pool_tasks_total", "slice", unit_legend="tasks"),
                    _value("stratad_pool_workers", f"{_BY_SLICE} workers"),
                ),
                "short",
            ),
            Panel(
                "Jobs per second",
                (
                    _rate("stratad_fused_chains_total", unit_legend="expert layers as one job"),
                    _rate("stratad_fallback_operations_total", unit_legend="expert operations one by one"),
                    _rate("stratad_pool_jobs_total", "kind"),
                    _rate("stratad_pool_small_runs_total", unit_legend="small operations"),
                    _rate("stratad_graphs_total", "computed_by", unit_legend="passes"),
                ),
                "short",
            ),
        ),
    ),
    (
        "GPU",
        (
            Panel(
                "Choices of the router found in VRAM, and not, per second",
                (
                    _rate("stratad_expert_cache_hits_total", "gpu", unit_legend="found"),
                    _rate("stratad_expert_cache_misses_total", "gpu", unit_legend="not found"),
                ),
                "short",
            ),
            Panel(
                "Where a step's time goes",
                (
                    _rate("stratad_gpu_wait_seconds_total", "gpu", unit_legend="waiting for the GPU"),
                    _rate("stratad_gpu_pool_seconds_total", "gpu", unit_legend="pool"),
                    _rate("stratad_gpu_copy_seconds_total", "gpu", unit_legend="handing over"),
                    _rate(
                        "stratad_gpu_upload_seconds_total", "gpu", unit_legend="copying weights, beside it"
                    ),
                ),
                "percentunit",
            ),
            Panel(
                "Bytes to the GPU, and bytes saved",
                (
                    _rate("stratad_gpu_prefill_bytes_total", "gpu", unit_legend="for prompts"),
                    _rate("stratad_expert_cache_swap_bytes_total", "gpu", unit_legend="swapped in"),
                    _rate("stratad_expert_cache_hit_bytes_total", "gpu", unit_legend="not read from memory"),
                ),
                "Bps",
            ),
            Panel(
                "Experts in VRAM",
                (
                    _value("stratad_expert_cache_slots", "{{instance}} {{gpu}} room"),
                    _value("stratad_expert_cache_resident", "{{instance}} {{gpu}} there"),
                ),
                "short",
            ),
            Panel(
                "VRAM of the expert cache", (_value("stratad_expert_cache_bytes", "{{instance}} {{gpu}}"),)
            ),
            Panel(
                "Steps and swaps per second",
                (
                    _rate("stratad_gpu_steps_total", "gpu", unit_legend="steps"),
                    _rate("stratad_expert_cache_swaps_total", "gpu", unit_legend="swaps"),
                ),
                "short",
            ),
        ),
    ),
    (
        "Machine",
        (
            Panel(
                "Memory of the nodes",
                (
                    _value("stratad_node_memory_available_bytes", f"{_BY_NODE} available"),
                    _value("stratad_node_memory_free_bytes", f"{_BY_NODE} free"),
                    _value("stratad_node_memory_total_bytes", f"{_BY_NODE} in all"),
                ),
            ),
            Panel(
                "Huge pages",
                (
                    _value(
                        "stratad_node_huge_pages_bytes", f"{_BY_NODE} reserved, {{{{page_bytes}}}} a page"
                    ),
                    _value(
                        "stratad_node_huge_pages_free_bytes", f"{_BY_NODE} unused, {{{{page_bytes}}}} a page"
                    ),
                ),
            ),
            Panel(
                "The daemon's CPUs and memory",
                (
                    _rate("process_cpu_seconds_total", unit_legend="CPUs busy"),
                    _value("process_resident_memory_bytes", "{{instance}} resident bytes"),
                ),
                "short",
            ),
        ),
    ),
)
