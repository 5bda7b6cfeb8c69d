"""Metric samples from what the daemon holds: values in, samples out."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence

from planner import Reason
from planner.discover import read_node_memory
from planner.sysfs import MachineFiles
from stratad.engine.status import EngineStatus
from stratad.metrics.registry import STATES, Sample
from stratad.runner.protocol import GpuCounters, NativeCounters
from stratad.runner.verify import PlacementCheck, node_ratios

# Reasons which say that the plan was made for something else than what is here now.
DRIFT_CODES = (
    "applied-plan-differs",
    "cpuset-narrower-than-plan",
    "cpuset-wider-than-plan",
    "machine-differs-from-plan",
    "memory-nodes-narrower-than-plan",
    "process-policy-differs",
    "workers-displaced",
)


def state_samples(state: str) -> Iterator[Sample]:
    """One sample for each state, 1 for the current one."""
    for name in STATES:
        yield Sample("stratad_state", float(name == state), (name,))


def reason_samples(reasons: Collection[Reason]) -> Iterator[Sample]:
    """What the plan and the checks after it found, and for each kind of drift whether it is there."""
    for code, effect in sorted({(reason.code, reason.effect.value) for reason in reasons}):
        yield Sample("stratad_plan_reason", 1, (code, effect))
    codes = {reason.code for reason in reasons}
    for code in DRIFT_CODES:
        yield Sample("stratad_plan_drift", float(code in codes), (code,))


def engine_samples(status: EngineStatus, context_tokens: int, model_name: str) -> Iterator[Sample]:
    """The engine's totals; each of its slots can hold `context_tokens`."""
    model = (model_name,)
    yield Sample("stratad_generation_tokens_total", status.generation_tokens, model)
    yield Sample("stratad_prompt_tokens_total", status.prompt_tokens, model)
    yield Sample("stratad_prompt_tokens_cached_total", status.cached_tokens, model)
    yield Sample("stratad_slots", status.slots, model)
    yield Sample("stratad_held_tokens", status.held_tokens, model)
    yield Sample("stratad_kv_cache_usage_ratio", status.held_tokens / (status.slots * context_tokens), model)
    cache = status.prompt_cache
    yield Sample("stratad_prompt_cache_bytes", cache.size_bytes, model)
    yield Sample("stratad_prompt_cache_limit_bytes", cache.limit_bytes, model)
    yield Sample("stratad_prompt_cache_entries", cache.entries, model)
    yield Sample("stratad_prompt_cache_lookups_total", cache.lookups, model)
    yield Sample("stratad_prompt_cache_restores_total", cache.restores, model)
    yield Sample("stratad_prompt_cache_restored_tokens_total", cache.restored_tokens, model)
    yield Sample("stratad_prompt_cache_saves_total", cache.saves, model)
    yield Sample("stratad_prompt_cache_evictions_total", cache.evictions, model)
    yield Sample("stratad_prompt_cache_copy_seconds_total", cache.copy_seconds, model)
    yield Sample("stratad_requests_running", status.running, model)
    yield Sample("stratad_requests_waiting", status.waiting, model)
    yield Sample("stratad_decode_steps_total", status.decode_steps)
    yield Sample("stratad_decode_seconds_total", status.decode_seconds)
    yield Sample("stratad_prefill_seconds_total", status.prefill_seconds)
    for reason, count in status.finish_reasons:
        yield Sample("stratad_requests_total", count, (model_name, reason))


def refusal_samples(refused: Mapping[str, int], model_name: str) -> Iterator[Sample]:
    """How many requests were refused, by the error's code."""
    for code, count in sorted(refused.items()):
        yield Sample("stratad_requests_refused_total", count, (model_name, code))


def counter_samples(counters: NativeCounters) -> Iterator[Sample]:
    """The pool's and the backend's totals."""
    for index, slot in enumerate(counters.slices):
        label = (str(index),)
        yield Sample("stratad_pool_workers", slot.workers, label)
        yield Sample("stratad_pool_barrier_wait_seconds_total", slot.wait_seconds, label)
        yield Sample("stratad_pool_drain_seconds_total", slot.drain_seconds, label)
        yield Sample("stratad_pool_tasks_total", slot.tasks, label)
        yield Sample("stratad_expert_bytes_total", slot.expert_bytes, label)
        yield Sample("stratad_dense_bytes_total", slot.dense_bytes, label)
    yield Sample("stratad_fused_chains_total", counters.fused_chains)
    yield Sample("stratad_fallback_operations_total", counters.fallback_operations)
    for kind, count in counters.jobs:
        yield Sample("stratad_pool_jobs_total", count, (kind,))
    yield Sample("stratad_pool_small_runs_total", counters.small_runs)
    yield Sample("stratad_graphs_total", counters.pool_graphs, ("pool",))
    yield Sample("stratad_graphs_total", counters.ggml_graphs, ("ggml",))
    yield Sample("stratad_engine_calls_total", counters.calls)
    yield Sample("stratad_engine_tokens_total", counters.call_tokens)
    yield Sample("stratad_engine_seconds_total", counters.call_seconds)
    yield Sample("stratad_placement_repaired_pages_total", counters.repaired_pages)
    yield Sample("stratad_pinned_bytes", counters.pinned_bytes)
    yield Sample("stratad_arena_locked_bytes", counters.locked_bytes)
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
    yield Sample("stratad_placement_limit_ratio", check.limit_ratio)
    if check.worst_ratio is not None:
        yield Sample("stratad_placement_worst_ratio", check.worst_ratio)
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


def node_memory_samples(tree: MachineFiles, node_ids: Sequence[int]) -> Iterator[Sample]:
    """Memory and huge pages of the nodes now; what the kernel does not tell has no sample."""
    for node_id in node_ids:
        node, label = read_node_memory(tree, node_id), str(node_id)
        if node.memory_total_bytes is not None and node.free_bytes is not None:
            yield Sample("stratad_node_memory_total_bytes", node.memory_total_bytes, (label,))
            yield Sample("stratad_node_memory_free_bytes", node.free_bytes, (label,))
            yield Sample("stratad_node_memory_available_bytes", node.available_bytes or 0, (label,))
        for pool in node.huge_pages:
            labels = (label, str(pool.page_bytes))
            yield Sample("stratad_node_huge_pages_bytes", pool.total_count * pool.page_bytes, labels)
            if pool.free_count is not None:
                yield Sample("stratad_node_huge_pages_free_bytes", pool.free_count * pool.page_bytes, labels)
