"""Estimates a draft: turns a layout and the pages it places into the cost model's bytes[reader][memory]."""

from __future__ import annotations

from dataclasses import replace

from planner.candidates import Draft
from planner.cost import (
    LARGE_MODEL_BYTES,
    TYPICAL_EXPERTS_PER_USED,
    TYPICAL_LAYER_COUNT,
    Arm,
    CostConstants,
    Rest,
    prompt_seconds,
    rest_seconds,
    step_estimate,
)
from planner.facts import Facts
from planner.plan import Confidence, Estimate
from planner.rates import MachineRates
from planner.request import Policy

Reads = dict[int, dict[int, float]]


def estimate(facts: Facts, draft: Draft, rates: MachineRates, constants: CostConstants) -> Estimate | None:
    """Give the draft's estimated step, or None when it has no workers or there is nothing to compute."""
    if draft.layout is None or facts.request.arena.size_bytes == 0 or facts.request.cpu_share == 0:
        return None
    size = step_bytes(facts)
    arm = Arm(
        read_bytes=_read_bytes(facts, draft, size),
        workers=workers_by_node(facts, draft),
        package_of={budget.node_id: budget.group_index for budget in facts.budgets},
        slice_workers=max(draft.layout.worker_count_of(index) for index in range(len(draft.layout.slices))),
        is_sliced=draft.policy is Policy.SPLIT,
        layer_count=layer_count(facts),
        rest_seconds=machine_rest_seconds(facts, rates, constants),
        must_wake=must_wake(facts, rates, constants),
    )
    found = replace(
        step_estimate(arm, rates, constants),
        prompt_seconds=prompt_seconds(
            {node: float(size) for node, size in draft.arena_bytes},
            arm.package_of,
            facts.gpu_node_ids,
            constants,
        ),
    )
    return replace(found, confidence=Confidence.MEASURED) if rates.is_measured else found


def must_wake(facts: Facts, rates: MachineRates, constants: CostConstants) -> bool:
    """Whether workers fall asleep between layers: the GPU's part of one takes longer than they spin."""
    gap_seconds = machine_rest_seconds(facts, rates, constants) / layer_count(facts)
    return facts.has_gpu and facts.request.pool_spin_seconds < gap_seconds


def step_bytes(facts: Facts) -> float:
    """Give the expert bytes the CPU reads in one step."""
    arena = facts.request.arena
    token_bytes = arena.bytes_per_token or arena.size_bytes / TYPICAL_EXPERTS_PER_USED
    return token_bytes * facts.request.cpu_share * facts.request.tokens_per_step


def layer_count(facts: Facts) -> int:
    """Give the layers with experts, a typical number when the model's is not known."""
    return facts.request.arena.layer_count or TYPICAL_LAYER_COUNT


def machine_rest_seconds(facts: Facts, rates: MachineRates, constants: CostConstants) -> float:
    """Give the seconds of everything but the experts, the same for every candidate."""
    sockets = [facts.budgets_of(group) for group in facts.groups]
    best = max(sockets, key=lambda budgets: sum(len(budget.cores) for budget in budgets), default=())
    rest = Rest(
        step_bytes=step_bytes(facts),
        layer_count=layer_count(facts),
        has_gpu=facts.has_gpu,
        is_large_model=facts.request.arena.size_bytes >= LARGE_MODEL_BYTES,
        package_bandwidth=sum(rates.node_bandwidth[budget.node_id] for budget in best),
        package_cores=sum(len(budget.cores) for budget in best),
    )
    return rest_seconds(rest, rates, constants)


def workers_by_node(facts: Facts, draft: Draft, slice_index: int | None = None) -> dict[int, int]:
    """Count a draft's workers, all or one slice's, by the node they read from.

    Cores without a home count at the first node.
    """
    counts: dict[int, int] = {}
    for worker in draft.layout.workers if draft.layout else ():
        if slice_index in (None, worker.slice_index):
            home = facts.home_of_cpu.get(worker.cpu_id) if worker.cpu_id is not None else None
            node_id = facts.budgets[0].node_id if home is None else home
            counts[node_id] = counts.get(node_id, 0) + 1
    return counts


def spread_reads(workers: dict[int, int], held: dict[int, float]) -> Reads:
    """Give bytes[reader][memory] when workers take any row: each node's workers read a part of every page."""
    worker_count = sum(workers.values())
    return {
        reader: {node: size * count / worker_count for node, size in held.items()}
        for reader, count in workers.items()
    }


def _read_bytes(facts: Facts, draft: Draft, size: float) -> Reads:
    """Give bytes[reader][memory] of one step: a slice is read by its own workers only."""
    arena_bytes = sum(held for _, held in draft.arena_bytes)
    held = {node: size * part / arena_bytes for node, part in draft.arena_bytes}
    if draft.policy is not Policy.SPLIT:
        return spread_reads(workers_by_node(facts, draft), held)
    reads: Reads = {}
    for part in draft.arena_slices:
        workers = workers_by_node(facts, draft, part.slice_index)
        reads |= spread_reads(workers, {node: held[node] for node in part.node_ids})
    return reads
