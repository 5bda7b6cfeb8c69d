"""Metric samples from what the daemon holds: values in, samples out."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from planner.sysfs import Tree
from stratad.engine_status import EngineStatus
from stratad.metrics import STATES, Sample
from stratad.runner import GpuCounters, NativeCounters
from stratad.verify import PlacementCheck, node_ratios

_KIB = 1024


def state_samples(state: str) -> Iterator[Sample]:
    """One sample for each state, 1 for the current one."""
    for name in STATES:
        yield Sample("stratad_state", float(name == state), (name,))


def engine_samples(status: EngineStatus, model_name: str) -> Iterator[Sample]:
    """The engine's totals."""
    model = (model_name,)
    yield Sample("stratad_generation_tokens_total", status.generation_tokens, model)
    yield Sample("stratad_prompt_tokens_total", status.prompt_tokens, model)
    yield Sample("stratad_prompt_tokens_cached_total", status.cached_tokens, model)
    yield Sample("stratad_slots", status.slots, model)
    yield Sample("stratad_held_tokens", status.held_tokens, model)
    yield Sample("stratad_requests_running", status.running, model)
    yield Sample("stratad_requests_waiting", status.waiting, model)
    yield Sample("stratad_decode_steps_total", status.decode_steps)
    yield Sample("stratad_decode_seconds_total", status.decode_seconds)
    yield Sample("stratad_prefill_seconds_total", status.prefill_seconds)
    for reason, count in status.finish_reasons:
        yield Sample("stratad_requests_total", count, (model_name, reason))


def counter_samples(counters: NativeCounters) -> Iterator[Sample]:
    """The pool's and the backend's totals."""
    for index, slot in enumerate(counters.slices):
        label = (str(index),)
        yield Sample("stratad_pool_barrier_wait_seconds_total", slot.wait_seconds, label)
        yield Sample("stratad_pool_drain_seconds_total", slot.drain_seconds, label)
        yield Sample("stratad_pool_tasks_total", slot.tasks, label)
        yield Sample("stratad_expert_bytes_total", slot.expert_bytes, label)
    yield Sample("stratad_fused_chains_total", counters.fused_chains)
    yield Sample("stratad_fallback_operations_total", counters.fallback_operations)
    yield Sample("stratad_placement_repaired_pages_total", counters.repaired_pages)
    yield Sample("stratad_pinned_bytes", counters.pinned_bytes)
    for gpu in counters.gpus:
        yield from gpu_samples(gpu)


def gpu_samples(gpu: GpuCounters) -> Iterator[Sample]:
    """One GPU's totals."""
    for name, value in (
        ("stratad_gpu_steps_total", gpu.steps),
        ("stratad_gpu_wait_seconds_total", gpu.wait_seconds),
        ("stratad_gpu_pool_seconds_total", gpu.pool_seconds),
        ("stratad_gpu_copy_seconds_total", gpu.copy_seconds),
        ("stratad_gpu_upload_seconds_total", gpu.upload_seconds),
        ("stratad_gpu_prefill_bytes_total", gpu.prefill_bytes),
        ("stratad_expert_cache_hits_total", gpu.cache_hits),
        ("stratad_expert_cache_misses_total", gpu.cache_misses),
        ("stratad_expert_cache_hit_bytes_total", gpu.cache_hit_bytes),
        ("stratad_expert_cache_swaps_total", gpu.cache_swaps),
        ("stratad_expert_cache_swap_bytes_total", gpu.cache_swap_bytes),
        ("stratad_expert_cache_slots", gpu.cache_slots),
        ("stratad_expert_cache_resident", gpu.cache_resident),
        ("stratad_expert_cache_bytes", gpu.cache_bytes),
    ):
        yield Sample(name, value, (gpu.device,))


def check_samples(check: PlacementCheck, age_seconds: float) -> Iterator[Sample]:
    """The last placement check; a slice without a home node shows its share on each node that holds pages."""
    yield Sample("stratad_placement_check_age_seconds", age_seconds)
    for placement in check.report.slices:
        slice_label = str(placement.slice_index)
        yield Sample("stratad_placement_pages_unknown", placement.unknown_pages, (slice_label,))
        ratios = dict(node_ratios(placement))
        # A home node without one page is what an alert must see: it gets its 0 as well.
        for node_id in placement.home_nodes if ratios and placement.home_nodes else sorted(ratios):
            yield Sample(
                "stratad_placement_local_ratio", ratios.get(node_id, 0.0), (slice_label, str(node_id))
            )
    for node_id, size_bytes in check.report.arena_bytes_per_node:
        yield Sample("stratad_arena_bytes", size_bytes, (str(node_id),))


def node_memory_samples(tree: Tree, node_ids: Sequence[int]) -> Iterator[Sample]:
    """Free memory of the nodes now; a node without a readable meminfo has no sample."""
    for node_id in node_ids:
        text = tree.text(f"/sys/devices/system/node/node{node_id}/meminfo") or ""
        for line in text.splitlines():
            words = line.split()
            # "Node 0 MemFree:  123 kB"
            if len(words) >= 4 and words[2] == "MemFree:" and words[3].isdigit():
                yield Sample("stratad_node_memory_free_bytes", int(words[3]) * _KIB, (str(node_id),))
