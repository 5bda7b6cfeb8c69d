"""The status document from what the daemon holds: values in, the document out."""

from __future__ import annotations

from planner import Reason
from stratad.engine.status import EngineStatus, SlotStatus
from stratad.runner.protocol import ModelRunner, NativeCounters
from stratad.runner.verify import PlacementCheck, placement_document
from stratad.service.status_schema import (
    DecodeDocument,
    ExpertShareDocument,
    PlacementDocument,
    PoolDocument,
    PoolSliceDocument,
    ReasonDocument,
    SlotDocument,
    TimingsDocument,
)


def reason_document(reason: Reason) -> ReasonDocument:
    """One finding as it is shown."""
    return ReasonDocument(
        code=reason.code, effect=reason.effect.value, message=reason.message, remedy=reason.remedy
    )


def check_document(check: PlacementCheck, age_seconds: float) -> PlacementDocument:
    """One placement check, and how long ago it was."""
    return PlacementDocument.model_validate({**placement_document(check), "age_seconds": age_seconds})


def decode_document(status: EngineStatus, runner: ModelRunner) -> DecodeDocument:
    """Requests, tokens and slots."""
    steps_per_second = status.decode_steps / status.decode_seconds if status.decode_seconds else None
    timings = status.last_timings
    return DecodeDocument(
        requests_running=status.running,
        requests_waiting=status.waiting,
        slots=status.slots,
        slot_list=[_slot_document(index, slot) for index, slot in enumerate(status.slot_list)],
        context_tokens=runner.context_tokens,
        held_tokens=status.held_tokens,
        prompt_tokens_cached=status.cached_tokens,
        prompt_cache_bytes=status.prompt_cache.size_bytes,
        prompt_cache_limit_bytes=status.prompt_cache.limit_bytes,
        prompt_cache_entries=status.prompt_cache.entries,
        generation_tokens=status.generation_tokens,
        prompt_tokens=status.prompt_tokens,
        decode_steps=status.decode_steps,
        decode_seconds=status.decode_seconds,
        prefill_seconds=status.prefill_seconds,
        decode_steps_per_second=steps_per_second,
        last_timings=TimingsDocument.model_validate(timings.as_document()) if timings else None,
    )


def pool_document(counters: NativeCounters) -> PoolDocument:
    """The pool's totals, slice by slice."""
    return PoolDocument(
        slices=[
            PoolSliceDocument(
                slice=index,
                wait_seconds=part.wait_seconds,
                drain_seconds=part.drain_seconds,
                workers=part.workers,
                tasks=part.tasks,
                expert_bytes=part.expert_bytes,
                dense_bytes=part.dense_bytes,
            )
            for index, part in enumerate(counters.slices)
        ],
        fused_chains=counters.fused_chains,
        fallback_operations=counters.fallback_operations,
    )


def expert_share_document(counters: NativeCounters) -> ExpertShareDocument:
    """Who has read the experts, and how often VRAM had the one asked for."""
    cpu_bytes = sum(part.expert_bytes for part in counters.slices)
    vram_bytes = sum(gpu.cache_hit_bytes for gpu in counters.gpus)
    read_bytes = cpu_bytes + vram_bytes
    hits = sum(gpu.cache_hits for gpu in counters.gpus)
    misses = sum(gpu.cache_misses for gpu in counters.gpus)
    has_cache = any(gpu.cache_slots for gpu in counters.gpus)
    return ExpertShareDocument(
        cpu_bytes=cpu_bytes,
        vram_bytes=vram_bytes,
        cpu_share=cpu_bytes / read_bytes if read_bytes else None,
        hits=hits if has_cache else None,
        misses=misses if has_cache else None,
        hit_ratio=hits / (hits + misses) if has_cache and hits + misses else None,
        pinned_bytes=counters.pinned_bytes,
    )


def _slot_document(index: int, slot: SlotStatus) -> SlotDocument:
    work = None if slot.generated_tokens is None else "answer" if slot.generated_tokens else "prompt"
    return SlotDocument(
        slot=index,
        work=work,
        held_tokens=slot.held_tokens,
        prompt_tokens=slot.prompt_tokens,
        generated_tokens=slot.generated_tokens,
    )
