"""Every metric of stratad in one table, and the registry built from it.

The table is the source for the code, for docs/METRICS.md (`python -m stratad.metrics > docs/METRICS.md`)
and, later, for the dashboards. Durations of single requests are pushed into histograms by the engine;
everything else is read when Prometheus asks, from sources that the daemon registers.

Names follow vLLM's stems for serving; buckets tell 54 from 59 tokens a second apart, which vLLM's
per-token buckets do not (reference/ecosystem.md section 5).
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from enum import Enum

import prometheus_client
from prometheus_client import CollectorRegistry, Histogram, ProcessCollector, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

CONTENT_TYPE = prometheus_client.CONTENT_TYPE_LATEST

STATES = ("loading", "ready", "degraded", "draining", "failed")

# fmt: off
_TOKEN_BUCKETS_SECONDS = (
    .002, .004, .006, .008, .01, .0125, .015, .0175, .02, .025, .03,
    .04, .05, .075, .1, .15, .2, .3, .5, 1, 2.5,
)
_FIRST_TOKEN_BUCKETS_SECONDS = (.05, .1, .25, .5, .75, 1, 2.5, 5, 7.5, 10, 20, 40, 80, 160)
_REQUEST_BUCKETS_SECONDS = (.3, .5, .8, 1, 1.5, 2, 2.5, 5, 10, 15, 20, 30, 40, 50, 60, 120, 240, 480, 960)
# fmt: on


class MetricKind(Enum):
    """Prometheus' types as far as we use them; INFO and STATES are gauges on the wire."""

    COUNTER = "counter"
    GAUGE = "gauge"
    HISTOGRAM = "histogram"


@dataclass(frozen=True, slots=True)
class MetricSpec:
    """One row of the table; `unit` is a word for people, `buckets` upper bounds in that unit."""

    name: str
    kind: MetricKind
    help: str
    labels: tuple[str, ...] = ()
    unit: str = "1"
    buckets: tuple[float, ...] = ()


@dataclass(frozen=True, slots=True)
class Sample:
    """One value at the moment of a scrape; `labels` in the order of the metric's row."""

    name: str
    value: float
    labels: tuple[str, ...] = ()


_COUNTER, _GAUGE, _HISTOGRAM = MetricKind.COUNTER, MetricKind.GAUGE, MetricKind.HISTOGRAM
_MODEL = ("model_name",)
_GPU = ("gpu",)

TABLE: tuple[MetricSpec, ...] = (
    MetricSpec(
        "stratad_build_info", _GAUGE, "Version of the daemon and its engine; always 1.", ("version", "engine")
    ),
    MetricSpec(
        "stratad_state", _GAUGE, "1 for the state the daemon is in, 0 for the others.", ("stratad_state",)
    ),
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
        "Prompt tokens reused because a slot still held them.",
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
    MetricSpec("stratad_requests_running", _GAUGE, "Requests being computed.", _MODEL, "requests"),
    MetricSpec("stratad_requests_waiting", _GAUGE, "Requests in the queue.", _MODEL, "requests"),
    MetricSpec(
        "stratad_requests_total",
        _COUNTER,
        "Requests ended, by how: stop, length, cancelled, or the error's code.",
        ("model_name", "finish_reason"),
        "requests",
    ),
    MetricSpec(
        "stratad_decode_steps_total",
        _COUNTER,
        "Calls for the next token of each answer.",
        (),
        "steps",
    ),
    MetricSpec("stratad_decode_seconds_total", _COUNTER, "Time in these calls.", (), "seconds"),
    MetricSpec(
        "stratad_prefill_seconds_total",
        _COUNTER,
        "Time in calls with tokens of prompts, in which answers go on as well.",
        (),
        "seconds",
    ),
    MetricSpec("stratad_plan_info", _GAUGE, "The plan in force; always 1.", ("policy", "fingerprint")),
    MetricSpec(
        "stratad_plan_reason",
        _GAUGE,
        "Reasons of the plan and of the checks after it; always 1.",
        ("code", "effect"),
    ),
    MetricSpec(
        "stratad_placement_local_ratio",
        _GAUGE,
        "Share of a slice's sampled pages on the node the plan gives it.",
        ("slice", "node"),
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
        "stratad_placement_repaired_pages_total",
        _COUNTER,
        "Pages that lay elsewhere and were moved to their slice's node.",
        (),
        "pages",
    ),
    MetricSpec(
        "stratad_pinned_bytes",
        _GAUGE,
        "Bytes of the arena that are registered with a GPU's runtime; 0 without one.",
        (),
        "bytes",
    ),
    MetricSpec(
        "stratad_arena_bytes",
        _GAUGE,
        "Expert weights per node, projected from the sample.",
        ("node",),
        "bytes",
    ),
    MetricSpec("stratad_node_memory_free_bytes", _GAUGE, "Free memory per node.", ("node",), "bytes"),
    MetricSpec(
        "stratad_pool_barrier_wait_seconds_total",
        _COUNTER,
        "Time workers of a slice stood at barriers.",
        ("slice",),
        "seconds",
    ),
    MetricSpec(
        "stratad_pool_drain_seconds_total",
        _COUNTER,
        "Time from a slice's first idle worker to the batch's end.",
        ("slice",),
        "seconds",
    ),
    MetricSpec("stratad_pool_tasks_total", _COUNTER, "Row blocks computed by a slice.", ("slice",), "tasks"),
    MetricSpec(
        "stratad_expert_bytes_total", _COUNTER, "Expert weight bytes read by a slice.", ("slice",), "bytes"
    ),
    MetricSpec("stratad_fused_chains_total", _COUNTER, "Expert layers computed as one job.", (), "layers"),
    MetricSpec(
        "stratad_fallback_operations_total",
        _COUNTER,
        "Expert operations computed one by one.",
        (),
        "operations",
    ),
    MetricSpec("stratad_gpu_steps_total", _COUNTER, "Passes over the model with a GPU.", _GPU, "steps"),
    MetricSpec(
        "stratad_gpu_wait_seconds_total",
        _COUNTER,
        "Time the decode thread waited for a GPU to reach a layer's experts.",
        _GPU,
        "seconds",
    ),
    MetricSpec(
        "stratad_gpu_pool_seconds_total", _COUNTER, "Time the pool computed cold experts.", _GPU, "seconds"
    ),
    MetricSpec(
        "stratad_gpu_copy_seconds_total",
        _COUNTER,
        "Time the decode thread handed activations over or waited for weights.",
        _GPU,
        "seconds",
    ),
    MetricSpec(
        "stratad_gpu_upload_seconds_total",
        _COUNTER,
        "Time weights were copied to a GPU, beside the decode thread.",
        _GPU,
        "seconds",
    ),
    MetricSpec(
        "stratad_gpu_prefill_bytes_total",
        _COUNTER,
        "Expert weight bytes copied to a GPU for large batches.",
        _GPU,
        "bytes",
    ),
    MetricSpec(
        "stratad_expert_cache_hits_total",
        _COUNTER,
        "Choices of the router that were computed in VRAM.",
        _GPU,
        "experts",
    ),
    MetricSpec(
        "stratad_expert_cache_misses_total",
        _COUNTER,
        "Choices of the router that the pool computed.",
        _GPU,
        "experts",
    ),
    MetricSpec(
        "stratad_expert_cache_hit_bytes_total",
        _COUNTER,
        "Expert weight bytes of the hits, which the pool did not read.",
        _GPU,
        "bytes",
    ),
    MetricSpec(
        "stratad_expert_cache_swaps_total",
        _COUNTER,
        "Experts copied into VRAM while serving.",
        _GPU,
        "experts",
    ),
    MetricSpec("stratad_expert_cache_swap_bytes_total", _COUNTER, "Their bytes.", _GPU, "bytes"),
    MetricSpec("stratad_expert_cache_slots", _GAUGE, "Experts that VRAM has room for.", _GPU, "experts"),
    MetricSpec("stratad_expert_cache_resident", _GAUGE, "Experts in VRAM now.", _GPU, "experts"),
    MetricSpec("stratad_expert_cache_bytes", _GAUGE, "VRAM of the expert cache.", _GPU, "bytes"),
)

_SPECS = {spec.name: spec for spec in TABLE}


class Metrics:
    """The registry of one daemon. Observing and scraping are safe from any thread."""

    def __init__(self, model_name: str) -> None:
        """`model_name` labels the serving metrics, as vLLM and SGLang do."""
        # A creation time per series would double the scrape, and nobody asks for it.
        prometheus_client.disable_created_metrics()  # type: ignore[no-untyped-call]
        self._registry = CollectorRegistry()
        self._sources: tuple[Callable[[], Iterable[Sample]], ...] = ()
        self._first_token = self._histogram("stratad_time_to_first_token_seconds", model_name)
        self._token_gap = self._histogram("stratad_inter_token_latency_seconds", model_name)
        self._request = self._histogram("stratad_e2e_request_latency_seconds", model_name)
        self._registry.register(_SampledMetrics(self._samples))
        ProcessCollector(registry=self._registry)

    def add_source(self, source: Callable[[], Iterable[Sample]]) -> None:
        """Has every scrape include what `source` gives; it must be quick and safe from any thread."""
        self._sources = (*self._sources, source)

    def observe_first_token(self, seconds: float) -> None:
        """From submitting a request to its first token."""
        self._first_token.observe(seconds)

    def observe_token_gap(self, seconds: float) -> None:
        """Between two tokens of one request."""
        self._token_gap.observe(seconds)

    def observe_request(self, seconds: float) -> None:
        """From submitting a request to its end."""
        self._request.observe(seconds)

    def render(self) -> bytes:
        """Everything in Prometheus' text format, of type `CONTENT_TYPE`."""
        return generate_latest(self._registry)

    def _samples(self) -> Iterator[Sample]:
        for source in self._sources:
            yield from source()

    def _histogram(self, name: str, model_name: str) -> Histogram:
        spec = _SPECS[name]
        metric = Histogram(name, spec.help, spec.labels, buckets=spec.buckets, registry=self._registry)
        return metric.labels(model_name)


class _SampledMetrics(Collector):
    """Turns samples into metric families, in the order of the table and by its types."""

    def __init__(self, samples: Callable[[], Iterable[Sample]]) -> None:
        self._read_samples = samples

    def collect(self) -> Iterator[Metric]:
        """The families that have a sample. A name without a row is a program error."""
        by_name: dict[str, list[Sample]] = {}
        for sample in self._read_samples():
            assert sample.name in _SPECS, sample.name
            by_name.setdefault(sample.name, []).append(sample)
        for spec in TABLE:
            if spec.name in by_name:
                yield _family(spec, by_name[spec.name])

    def describe(self) -> Iterator[Metric]:
        """Nothing: asking for samples while registering would come before there are any."""
        return iter(())


def _family(spec: MetricSpec, samples: list[Sample]) -> Metric:
    is_counter = spec.kind is MetricKind.COUNTER
    family = (CounterMetricFamily if is_counter else GaugeMetricFamily)(
        spec.name, spec.help, labels=spec.labels
    )
    for sample in samples:
        family.add_metric(sample.labels, sample.value)
    return family


def render_documentation() -> str:
    """docs/METRICS.md, generated from the table."""
    lines = [
        "# Metrics",
        "",
        "Generated by `python -m stratad.metrics > docs/METRICS.md`; do not edit.",
        "",
        "All are served at `/metrics`, on the API's address, beside prometheus_client's `process_*`.",
        "",
        "| name | type | unit | labels | meaning |",
        "|---|---|---|---|---|",
    ]
    for spec in TABLE:
        labels = ", ".join(f"`{label}`" for label in spec.labels)
        lines.append(f"| `{spec.name}` | {spec.kind.value} | {spec.unit} | {labels} | {spec.help} |")
    lines += ["", "## Histogram buckets", ""]
    for spec in TABLE:
        if spec.buckets:
            lines.append(f"- `{spec.name}`: {', '.join(f'{bound:g}' for bound in spec.buckets)} {spec.unit}")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    sys.stdout.write(render_documentation())
