"""GPUs for one model: opened by name, their memory shared out, large batches measured, counters read."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence

from planner import ArenaScope, Effect, Plan, Reason
from planner.quantity import format_bytes
from stratad import _native
from stratad.config import GpuSection
from stratad.gpu.runtime import FoundGpu
from stratad.runner.protocol import GpuCounters

ExpertProfile = Mapping[int, Sequence[float]]
Progress = Callable[[str, float], bool]

# Smaller batches are the pool's in any case: copying a layer's experts takes longer than reading them once.
_SMALLEST_MEASURED_TOKENS = 16


def open_offload(settings: GpuSection, found: Sequence[FoundGpu], plan: Plan) -> _native.GpuOffload | None:
    """The GPUs that this model is computed on, in the plan's order; None for the CPUs alone."""
    if not found or settings.layers == 0 or plan.arena_scope is ArenaScope.WEIGHTS:
        return None
    order = [layers.pci_address for layers in plan.gpu_layers]
    placed = sorted(
        found, key=lambda gpu: order.index(gpu.pci_address) if gpu.pci_address in order else len(order)
    )
    return _native.GpuOffload([gpu.name for gpu in placed])


def layer_count(settings: GpuSection) -> int:
    """What llama.cpp takes for `gpu.layers`; negative for all."""
    return -1 if settings.layers is None else settings.layers


def open_memory(
    gpu: _native.GpuOffload, settings: GpuSection, profile: ExpertProfile, progress: Progress
) -> tuple[Reason, ...]:
    """Shares out what the contexts have left: areas for large batches, then hot experts; gives what to tell."""
    outcomes = gpu.open_memory(
        reserve_bytes=settings.vram_reserve_bytes,
        cache_bytes=_cache_bytes(settings),
        is_frozen=settings.freeze_cache,
        profile={layer: list(scores) for layer, scores in profile.items()},
        progress=progress,
    )
    return tuple(
        reason
        for outcome in outcomes
        if outcome.expert_layers
        for reason in _memory_reasons(outcome, settings)
    )


def _cache_bytes(settings: GpuSection) -> int | None:
    if settings.cache == "auto":
        return None
    return 0 if settings.cache == "off" else settings.cache


def _memory_reasons(outcome: _native.GpuMemoryOutcome, settings: GpuSection) -> list[Reason]:
    evidence: dict[str, str | int] = {
        "gpu": outcome.device,
        "free_bytes": outcome.free_bytes,
        "reserve_bytes": settings.vram_reserve_bytes,
        "asked_bytes": outcome.asked_bytes,
        "cache_bytes": outcome.cache_bytes,
        "slots": outcome.cached_slots,
        "expert_layers": outcome.expert_layers,
    }
    reasons = []
    if not outcome.has_staging:
        reasons.append(
            Reason(
                "gpu-prefill-off",
                Effect.WARNS,
                f"{outcome.device} has no memory to pass experts through: the pool computes prompts as well",
                evidence,
                "lower gpu.layers, model.slots or model.context_tokens",
            )
        )
    if settings.cache == "off":
        return reasons
    if outcome.cached_slots == 0:
        reasons.append(
            Reason(
                "gpu-cache-off",
                Effect.WARNS,
                f"{outcome.device} has {format_bytes(outcome.free_bytes)} free, "
                f"{format_bytes(settings.vram_reserve_bytes)} are kept back: there is no room for hot experts",
                evidence,
                "lower gpu.vram_reserve_bytes, model.slots or model.context_tokens",
            )
        )
        return reasons
    is_smaller = outcome.was_refused
    reasons.append(
        Reason(
            "gpu-cache-smaller" if is_smaller else "gpu-cache",
            Effect.WARNS if is_smaller else Effect.INFORMS,
            f"{outcome.device} holds {outcome.cached_slots} experts of {outcome.expert_layers} layers in "
            f"{format_bytes(outcome.cache_bytes)}" + ("; it refused more" if is_smaller else ""),
            evidence,
            "see what else uses the GPU's memory" if is_smaller else "",
        )
    )
    return reasons


def measured_threshold(
    gpu: _native.GpuOffload, context: _native.Context, batch_tokens: int, token_count: int
) -> tuple[int, tuple[Reason, ...]]:
    """The largest batch that the pool computes faster than the GPU, by computing some of both kinds.

    From `_SMALLEST_MEASURED_TOKENS` on in doubling sizes, each once with either, until the GPU is faster; then
    nothing is held. Raises DecodeError when that fails.
    """
    outcomes = gpu.open_memory(reserve_bytes=0, cache_bytes=0)
    if not any(outcome.expert_layers for outcome in outcomes):
        return batch_tokens, ()  # a model without experts, or with none on a GPU
    if not all(outcome.has_staging for outcome in outcomes if outcome.expert_layers):
        return _native.DEFAULT_GPU_POOL_TOKENS, ()
    rows: list[tuple[int, float, float]] = []
    threshold, tokens = batch_tokens, min(_SMALLEST_MEASURED_TOKENS, batch_tokens)
    while True:
        _seconds(gpu, context, tokens, token_count, pool_tokens=0)  # makes the device's kernels ready
        gpu_seconds = _seconds(gpu, context, tokens, token_count, pool_tokens=0)
        pool_seconds = _seconds(gpu, context, tokens, token_count, pool_tokens=batch_tokens)
        rows.append((tokens, pool_seconds, gpu_seconds))
        if gpu_seconds < pool_seconds:
            threshold = tokens - 1
            break
        if tokens == batch_tokens:
            break
        tokens = min(2 * tokens, batch_tokens)
    tokens, pool_seconds, gpu_seconds = rows[-1]
    reason = Reason(
        "gpu-prefill-threshold",
        Effect.INFORMS,
        f"calls of up to {threshold} tokens are the pool's: {tokens} took it {pool_seconds:.3f} s and "
        f"the GPU {gpu_seconds:.3f} s",
        {
            "threshold": threshold,
            "tokens": tokens,
            "pool_seconds": pool_seconds,
            "gpu_seconds": gpu_seconds,
        },
    )
    return threshold, (reason,)


def _seconds(
    gpu: _native.GpuOffload, context: _native.Context, tokens: int, token_count: int, *, pool_tokens: int
) -> float:
    """How long one call takes; a model that knows `token_count` tokens is given that many different ones."""
    gpu.set_pool_tokens(pool_tokens)
    batch = _native.Batch()
    for position in range(tokens):
        # Any prompt will do, but one token over and over would use the same few experts.
        batch.add(position * 7919 % token_count, position, 0, position == tokens - 1)
    start_seconds = time.perf_counter()
    context.decode(batch)
    seconds = time.perf_counter() - start_seconds
    context.forget(0)
    return seconds


def gpu_counters(gpu: _native.GpuOffload) -> tuple[GpuCounters, ...]:
    """Running totals by device."""
    return tuple(
        GpuCounters(
            device=name,
            steps=total.graphs,
            wait_seconds=total.gpu_wait_seconds,
            pool_seconds=total.pool_seconds,
            copy_seconds=total.copy_seconds,
            upload_seconds=total.upload_seconds,
            prefill_bytes=total.staged_bytes,
            cache_hits=total.cache.hits,
            cache_misses=total.cache.misses,
            cache_hit_bytes=total.cache.hit_bytes,
            cache_swaps=total.cache.swaps,
            cache_swap_bytes=total.cache.swap_bytes,
            cache_slots=total.cache.slots,
            cache_resident=total.cache.resident,
            cache_bytes=total.cache.device_bytes,
        )
        for name, total in gpu.counters()
    )
