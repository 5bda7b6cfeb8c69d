"""Rows of the metric table for GPU offload, see docs/GPU.md."""

from __future__ import annotations

from dataclasses import replace

from stratad.metrics.spec import MetricKind, MetricSpec

_COUNTER, _GAUGE = MetricKind.COUNTER, MetricKind.GAUGE
_GPU = ("gpu",)

_ROWS = (
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

GPU: tuple[MetricSpec, ...] = tuple(replace(spec, only_with="a GPU") for spec in _ROWS)
