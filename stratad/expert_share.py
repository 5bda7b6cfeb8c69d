"""Who has read the experts: the part of their bytes that was the CPUs', and how often VRAM had the one asked for."""

from __future__ import annotations

from stratad.runner import NativeCounters


def expert_share_document(counters: NativeCounters) -> dict[str, object]:
    """Totals since the model was loaded, and what they say, as JSON values.

    `cpu_share` is null before any expert was read, `hit_ratio` without a cache in VRAM. Large batches that a GPU
    computes count for neither: a plan is about the pool's work.
    """
    cpu_bytes = sum(part.expert_bytes for part in counters.slices)
    vram_bytes = sum(gpu.cache_hit_bytes for gpu in counters.gpus)
    hits = sum(gpu.cache_hits for gpu in counters.gpus)
    uses = hits + sum(gpu.cache_misses for gpu in counters.gpus)
    has_cache = any(gpu.cache_slots for gpu in counters.gpus)
    read_bytes = cpu_bytes + vram_bytes
    return {
        "cpu_bytes": cpu_bytes,
        "vram_bytes": vram_bytes,
        "cpu_share": cpu_bytes / read_bytes if read_bytes else None,
        "hit_ratio": hits / uses if has_cache and uses else None,
        "pinned_bytes": counters.pinned_bytes,
    }
