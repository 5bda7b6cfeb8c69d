"""The table behind `stratad.metrics.registry`: every metric once, in the order of docs/METRICS.md.

docs/METRICS.md and the Grafana dashboard are generated from it; tests hold the rules in etc/prometheus against it.
Names follow vLLM's stems for serving; buckets tell 54 from 59 tokens a second apart, which vLLM's per-token buckets
do not. Nothing is counted per request, client or prompt: labels have few values, known beforehand.
"""

from __future__ import annotations

from stratad.metrics.gpu import GPU
from stratad.metrics.prompt_cache import PROMPT_CACHE
from stratad.metrics.spec import MetricKind, MetricSpec

STATES = ("loading", "ready", "degraded", "draining", "failed")

# fmt: off
_TOKEN_BUCKETS_SECONDS = (
    .002, .004, .006, .008, .01, .0125, .015, .0175, .02, .025, .03,
    .04, .05, .075, .1, .15, .2, .3, .5, 1, 2.5,
)
_FIRST_TOKEN_BUCKETS_SECONDS = (.05, .1, .25, .5, .75, 1, 2.5, 5, 7.5, 10, 20, 40, 80, 160)
_REQUEST_BUCKETS_SECONDS = (.3, .5, .8, 1, 1.5, 2, 2.5, 5, 10, 15, 20, 30, 40, 50, 60, 120, 240, 480, 960)
# fmt: on

_COUNTER, _GAUGE, _HISTOGRAM = MetricKind.COUNTER, MetricKind.GAUGE, MetricKind.HISTOGRAM
_MODEL = ("model_name",)

_SERVICE = (
    MetricSpec(
        "stratad_build_info", _GAUGE, "Version of the daemon and its engine; always 1.", ("version", "engine")
    ),
    MetricSpec(
        "stratad_state", _GAUGE, "1 for the state the daemon is in, 0 for the others.", ("stratad_state",)
    ),
    MetricSpec(
        "stratad_loaded_ratio", _GAUGE, "How far the stage of loading has come that runs.", (), "ratio"
    ),
    MetricSpec(
        "stratad_stalled_seconds",
        _GAUGE,
        "Time since the last step while a request runs or waits; the watchdog's pings end when it grows too long.",
        (),
        "seconds",
    ),
    MetricSpec(
        "stratad_service_restarts_total",
        _COUNTER,
        "Restarts by systemd on its own, after the watchdog or a crash, since somebody last started the unit.",
        (),
        "restarts",
        only_with="systemd",
    ),
)

_SERVING = (
    MetricSpec("stratad_generation_tokens_total", _COUNTER, "Tokens generated.", _MODEL, "tokens"),
    MetricSpec(
        "stratad_prompt_tokens_total",
        _COUNTER,
        "Prompt tokens computed; reused ones are not.",
        _MODEL,
        "tokens",
    ),
    MetricSpec(
        "stratad_prompt_tokens_cached_total",
        _COUNTER,
        "Prompt tokens reused from a slot or the prompt cache.",
        _MODEL,
        "tokens",
    ),
    MetricSpec(
        "stratad_time_to_first_token_seconds",
        _HISTOGRAM,
        "From arrival of a request to its first token.",
        _MODEL,
        "seconds",
        _FIRST_TOKEN_BUCKETS_SECONDS,
    ),
    MetricSpec(
        "stratad_inter_token_latency_seconds",
        _HISTOGRAM,
        "Between two tokens of one request.",
        _MODEL,
        "seconds",
        _TOKEN_BUCKETS_SECONDS,
    ),
    MetricSpec(
        "stratad_e2e_request_latency_seconds",
        _HISTOGRAM,
        "From arrival of a request to its end, waiting included.",
        _MODEL,
        "seconds",
        _REQUEST_BUCKETS_SECONDS,
    ),
    MetricSpec("stratad_slots", _GAUGE, "Requests that can be computed side by side.", _MODEL, "requests"),
    MetricSpec(
        "stratad_held_tokens",
        _GAUGE,
        "Tokens in the slots' key-value memory, of running and of earlier requests.",
        _MODEL,
        "tokens",
    ),
    MetricSpec(
        "stratad_kv_cache_usage_ratio",
        _GAUGE,
        "Share of the slots' key-value memory that holds tokens; earlier requests' are given up when room is needed.",
        _MODEL,
        "ratio",
    ),
    MetricSpec("stratad_requests_running", _GAUGE, "Requests being computed.", _MODEL, "requests"),
    MetricSpec("stratad_requests_waiting", _GAUGE, "Requests in the queue.", _MODEL, "requests"),
    MetricSpec(
        "stratad_queue_capacity",
        _GAUGE,
        "Requests that may wait; more are refused (server.max_queue).",
        _MODEL,
        "requests",
    ),
    MetricSpec(
        "stratad_requests_total",
        _COUNTER,
        "Requests ended, by how: stop, length, cancelled, or the error's code.",
        ("model_name", "finish_reason"),
        "requests",
    ),
    MetricSpec(
        "stratad_requests_refused_total",
        _COUNTER,
        "Requests that were never queued, by the error's code.",
        ("model_name", "code"),
        "requests",
    ),
)

_ENGINE = (
    MetricSpec(
        "stratad_decode_steps_total", _COUNTER, "Calls for the next token of each answer.", (), "steps"
    ),
    MetricSpec("stratad_decode_seconds_total", _COUNTER, "Time in these calls.", (), "seconds"),
    MetricSpec(
        "stratad_prefill_seconds_total",
        _COUNTER,
        "Time in calls with tokens of prompts, in which answers go on as well.",
        (),
        "seconds",
    ),
    MetricSpec("stratad_engine_calls_total", _COUNTER, "Calls of llama.cpp, prompts included.", (), "calls"),
    MetricSpec("stratad_engine_tokens_total", _COUNTER, "Tokens computed in these calls.", (), "tokens"),
    MetricSpec(
        "stratad_engine_seconds_total",
        _COUNTER,
        "Time inside llama.cpp; the rest of a step is sampling and handing out text.",
        (),
        "seconds",
    ),
)

_PLACEMENT = (
    MetricSpec(
        "stratad_plan_info",
        _GAUGE,
        "The plan in force; always 1.",
        ("policy", "fingerprint", "confidence", "arena_scope"),
    ),
    MetricSpec(
        "stratad_plan_reason",
        _GAUGE,
        "Reasons of the plan and of the checks after it; always 1. docs/REASONS.md has the codes.",
        ("code", "effect"),
    ),
    MetricSpec(
        "stratad_plan_drift",
        _GAUGE,
        "1 where the machine, the unit or the configuration is no longer what the plan was made for, by reason.",
        ("code",),
    ),
    MetricSpec(
        "stratad_placement_local_ratio",
        _GAUGE,
        "Share of a slice's sampled pages on the node the plan gives it.",
        ("slice", "node"),
        "ratio",
    ),
    MetricSpec(
        "stratad_placement_limit_ratio",
        _GAUGE,
        "Least share of each slice's pages on its own nodes (placement.limit_ratio).",
        (),
        "ratio",
    ),
    MetricSpec(
        "stratad_placement_worst_ratio",
        _GAUGE,
        "The lowest share of pages on its own nodes that a slice has: what the limit is held against.",
        (),
        "ratio",
    ),
    MetricSpec(
        "stratad_placement_pages_unknown",
        _GAUGE,
        "Sampled pages of a slice whose node the kernel did not tell.",
        ("slice",),
        "pages",
    ),
    MetricSpec(
        "stratad_placement_check_age_seconds", _GAUGE, "Time since pages were last sampled.", (), "seconds"
    ),
    MetricSpec(
        "stratad_placement_check_interval_seconds",
        _GAUGE,
        "Time between samples; 0 when only the start is checked (metrics.placement_check_seconds).",
        (),
        "seconds",
    ),
    MetricSpec(
        "stratad_placement_repaired_pages_total",
        _COUNTER,
        "Pages that lay elsewhere and were moved to their slice's node.",
        (),
        "pages",
    ),
    MetricSpec(
        "stratad_arena_bytes",
        _GAUGE,
        "Weights in placed memory per node, projected from the sample.",
        ("node",),
        "bytes",
    ),
    MetricSpec("stratad_arena_locked_bytes", _GAUGE, "Bytes of the arena locked in memory.", (), "bytes"),
    MetricSpec(
        "stratad_pinned_bytes",
        _GAUGE,
        "Bytes of the arena that are registered with a GPU's runtime; 0 without one.",
        (),
        "bytes",
    ),
)

_MACHINE = (
    MetricSpec("stratad_node_memory_total_bytes", _GAUGE, "Memory of a node.", ("node",), "bytes"),
    MetricSpec("stratad_node_memory_free_bytes", _GAUGE, "Free memory of a node.", ("node",), "bytes"),
    MetricSpec(
        "stratad_node_memory_available_bytes",
        _GAUGE,
        "Free memory of a node and what the kernel can reclaim there: what the plan counts with.",
        ("node",),
        "bytes",
    ),
    MetricSpec(
        "stratad_node_huge_pages_bytes",
        _GAUGE,
        "Memory of a node reserved as huge pages of this size.",
        ("node", "page_bytes"),
        "bytes",
    ),
    MetricSpec(
        "stratad_node_huge_pages_free_bytes",
        _GAUGE,
        "The part of these that nobody uses, and nothing else can use.",
        ("node", "page_bytes"),
        "bytes",
    ),
)

_POOL = (
    MetricSpec("stratad_pool_workers", _GAUGE, "Workers of a slice.", ("slice",), "workers"),
    MetricSpec(
        "stratad_pool_barrier_wait_seconds_total",
        _COUNTER,
        "Time between a slice's last task of a phase and the next phase, when it waits for other slices.",
        ("slice",),
        "seconds",
    ),
    MetricSpec(
        "stratad_pool_drain_seconds_total",
        _COUNTER,
        "Time between a slice's last task of a job and the job's end.",
        ("slice",),
        "seconds",
    ),
    MetricSpec("stratad_pool_tasks_total", _COUNTER, "Row blocks computed by a slice.", ("slice",), "tasks"),
    MetricSpec(
        "stratad_expert_bytes_total", _COUNTER, "Expert weight bytes read by a slice.", ("slice",), "bytes"
    ),
    MetricSpec(
        "stratad_dense_bytes_total", _COUNTER, "Dense weight bytes read by a slice.", ("slice",), "bytes"
    ),
    MetricSpec("stratad_fused_chains_total", _COUNTER, "Expert layers computed as one job.", (), "layers"),
    MetricSpec(
        "stratad_fallback_operations_total",
        _COUNTER,
        "Operations of expert layers computed one by one.",
        (),
        "operations",
    ),
    MetricSpec(
        "stratad_pool_jobs_total",
        _COUNTER,
        "Jobs beside the expert layers: dense products of one token (dense) or of several (lane-product), attention.",
        ("kind",),
        "jobs",
    ),
    MetricSpec(
        "stratad_pool_small_runs_total",
        _COUNTER,
        "Runs of small operations on the decode thread alone.",
        (),
        "runs",
    ),
    MetricSpec(
        "stratad_graphs_total",
        _COUNTER,
        "Passes over the model by who computed them: the pool, or ggml's own threads. Own mode only.",
        ("computed_by",),
        "graphs",
    ),
)

GROUPS: tuple[tuple[str, tuple[MetricSpec, ...]], ...] = (
    ("Service", _SERVICE),
    ("Serving", _SERVING),
    ("Prompt cache", PROMPT_CACHE),
    ("Engine", _ENGINE),
    ("Plan and placement", _PLACEMENT),
    ("Machine", _MACHINE),
    ("Pool", _POOL),
    ("GPU", GPU),
)

TABLE: tuple[MetricSpec, ...] = tuple(spec for _, specs in GROUPS for spec in specs)
