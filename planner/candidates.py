"""Builds the candidates: each policy on each set of nodes, with its layout, before any rule has judged it."""

from __future__ import annotations

import itertools
from dataclasses import dataclass

from planner.cost import (
    TYPICAL_EXPERTS_PER_USED,
    TYPICAL_LAYER_COUNT,
    Arm,
    CostConstants,
    step_estimate,
)
from planner.facts import Facts, NodeBudget
from planner.layout import one_slice_layout, split_layout
from planner.plan import ArenaSlice, Estimate, MemoryMode, ProcessMemory, WorkerLayout
from planner.request import Policy


@dataclass(frozen=True, slots=True)
class Draft:
    """A candidate with everything a rule may compare. `layout` None means it cannot be laid out at all.

    `node_ids` are the nodes that hold the arena, `arena_bytes` the expected bytes on each of them.
    """

    policy: Policy
    node_ids: tuple[int, ...]
    layout: WorkerLayout | None
    arena_slices: tuple[ArenaSlice, ...]
    arena_bytes: tuple[tuple[int, int], ...]
    process_memory: ProcessMemory

    @property
    def worker_count(self) -> int:
        """Workers of the layout, 0 without one."""
        return len(self.layout.workers) if self.layout else 0


def build_drafts(facts: Facts) -> tuple[Draft, ...]:
    """Give every candidate worth a look: split, one single-socket for each package group, interleave, off."""
    drafts: list[Draft] = []
    with_cores = facts.slice_budgets
    if len(with_cores) > 1:
        drafts.append(split_draft(facts, with_cores))
    for group in facts.groups:
        budgets = facts.budgets_of(group)
        if any(budget.cores for budget in budgets):
            drafts.append(single_socket_draft(facts, budgets))
    if len(facts.budgets) > 1:
        drafts.append(interleave_draft(facts))
    drafts.append(off_draft(facts))
    return tuple(drafts)


def can_place(facts: Facts) -> bool:
    """Whether memory placement may be planned; only a known refusal says no."""
    return facts.request.placement_possible is not False


def split_draft(facts: Facts, budgets: tuple[NodeBudget, ...]) -> Draft:
    """Give the candidate with one slice for each node, each on its own node."""
    layout = split_layout(facts, budgets, can_place(facts))
    node_ids = tuple(budget.node_id for budget in budgets)
    weights = tuple(part.weight for part in layout.slices) if layout else tuple(1 for _ in budgets)
    sizes = weighted_parts(facts.request.arena.size_bytes, weights)
    slices = tuple(
        ArenaSlice(i, (node,), size) for i, (node, size) in enumerate(zip(node_ids, sizes, strict=True))
    )
    memory = ProcessMemory(MemoryMode.INTERLEAVE, tuple(budget.node_id for budget in facts.budgets))
    return Draft(Policy.SPLIT, node_ids, layout, slices, tuple(zip(node_ids, sizes, strict=True)), memory)


def single_socket_draft(facts: Facts, budgets: tuple[NodeBudget, ...]) -> Draft:
    """Give the candidate with arena and workers on one package's nodes."""
    node_ids = tuple(budget.node_id for budget in budgets)
    placed_ids = node_ids if can_place(facts) else ()
    cores = tuple(budget.cores for budget in budgets if budget.cores)
    layout = one_slice_layout(facts, cores, placed_ids, worker_limit(facts))
    if not can_place(facts):
        memory = ProcessMemory(MemoryMode.DEFAULT)
    elif len(node_ids) == 1:
        memory = ProcessMemory(MemoryMode.PREFERRED, node_ids)
    else:
        # The kernel's preferred policy takes one node; interleaving inside the package keeps it whole.
        memory = ProcessMemory(MemoryMode.INTERLEAVE, node_ids)
    return _one_slice_draft(facts, Policy.SINGLE_SOCKET, node_ids, layout, memory)


def interleave_draft(facts: Facts) -> Draft:
    """Give the candidate with pages spread over all usable nodes and workers on all of them."""
    node_ids = tuple(budget.node_id for budget in facts.budgets)
    cores = tuple(budget.cores for budget in facts.budgets if budget.cores)
    layout = one_slice_layout(facts, cores, node_ids, worker_limit(facts)) if cores else None
    memory = ProcessMemory(MemoryMode.INTERLEAVE, node_ids)
    return _one_slice_draft(facts, Policy.INTERLEAVE, node_ids, layout, memory)


def off_draft(facts: Facts) -> Draft:
    """Give the candidate without placement: workers on any usable core, pages wherever they land."""
    node_ids = tuple(budget.node_id for budget in facts.budgets)
    homes = sorted({core.home_node_id for core in facts.cores}, key=lambda home: (home is None, home or 0))
    cores = tuple(tuple(core for core in facts.cores if core.home_node_id == home) for home in homes)
    layout = one_slice_layout(facts, cores, (), worker_limit(facts))
    return _one_slice_draft(facts, Policy.OFF, node_ids, layout, ProcessMemory(MemoryMode.DEFAULT))


def worker_limit(facts: Facts) -> int | None:
    """Give the most workers a one-slice candidate may use: what was asked for, or 1 when the CPU has no
    experts.

    With every expert in VRAM the pool only waits, and waiting workers cost prompts 7 % on seed 3708.
    """
    if facts.request.requested_worker_count is not None:
        return facts.request.requested_worker_count
    return 1 if facts.request.cpu_share == 0 else None


def weighted_parts(total_bytes: int, weights: tuple[int, ...]) -> tuple[int, ...]:
    """Cut a size by weights; the parts add up to it exactly."""
    weight_sum, edges, passed = sum(weights), [0], 0
    for weight in weights:
        passed += weight
        edges.append(total_bytes * passed // weight_sum)
    return tuple(end - start for start, end in itertools.pairwise(edges))


def fitted_parts(total_bytes: int, room_bytes: tuple[int | None, ...]) -> tuple[int, ...]:
    """Spread a size evenly over nodes, no more on each than it has room for while others have some.

    That is where interleaved pages end up: the kernel goes on to the next node when one is full. None is room
    without a known end. What fits nowhere is spread evenly, for a rule to refuse.
    """
    parts = [0] * len(room_bytes)
    open_indices = sorted(range(len(parts)), key=lambda i: (room_bytes[i] is None, room_bytes[i] or 0, i))
    left_bytes = total_bytes
    while open_indices:
        index = open_indices.pop(0)
        even = left_bytes // (len(open_indices) + 1)
        room = room_bytes[index]
        parts[index] = even if room is None else min(even, room)
        left_bytes -= parts[index]
    for index, extra in enumerate(weighted_parts(left_bytes, tuple(1 for _ in parts))):
        parts[index] += extra
    return tuple(parts)


def _room_bytes(budget: NodeBudget) -> int | None:
    return None if budget.available_bytes is None else max(0, budget.available_bytes - budget.headroom_bytes)


def _one_slice_draft(
    facts: Facts,
    policy: Policy,
    node_ids: tuple[int, ...],
    layout: WorkerLayout | None,
    memory: ProcessMemory,
) -> Draft:
    size_bytes = facts.request.arena.size_bytes
    parts = fitted_parts(size_bytes, tuple(_room_bytes(budget) for budget in facts.budgets_of(node_ids)))
    placed_ids = layout.slices[0].node_ids if layout else ()
    slices = (ArenaSlice(0, placed_ids, size_bytes),)
    return Draft(policy, node_ids, layout, slices, tuple(zip(node_ids, parts, strict=True)), memory)


def estimate(facts: Facts, draft: Draft, constants: CostConstants) -> Estimate | None:
    """Give the draft's estimated step, or None when it has no workers or there is nothing to compute."""
    arena = facts.request.arena
    if draft.layout is None or arena.size_bytes == 0 or facts.request.cpu_share == 0:
        return None
    token_bytes = arena.bytes_per_token or arena.size_bytes / TYPICAL_EXPERTS_PER_USED
    workers = workers_by_node(facts, draft)
    group_of = {budget.node_id: budget.group_index for budget in facts.budgets}
    arm = Arm(
        read_bytes=_read_bytes(draft, workers, token_bytes * facts.request.cpu_share),
        workers=workers,
        package_of=group_of,
        nodes_in_package={index: len(group) for index, group in enumerate(facts.groups)},
        is_sliced=draft.policy is Policy.SPLIT,
        layer_count=arena.layer_count or TYPICAL_LAYER_COUNT,
        has_gpu=bool(facts.gpu_node_ids or facts.unknown_gpu_count),
    )
    return step_estimate(arm, constants)


def workers_by_node(facts: Facts, draft: Draft) -> dict[int, int]:
    """Count a draft's workers by the node they read from; cores without a home count at the first node."""
    home_of = {core.cpu_ids[0]: core.home_node_id for core in facts.cores}
    counts: dict[int, int] = {}
    for worker in draft.layout.workers if draft.layout else ():
        home = home_of.get(worker.cpu_id) if worker.cpu_id is not None else None
        node_id = facts.budgets[0].node_id if home is None else home
        counts[node_id] = counts.get(node_id, 0) + 1
    return counts


def _read_bytes(draft: Draft, workers: dict[int, int], step_bytes: float) -> dict[int, dict[int, float]]:
    """Give bytes[reader][memory] of one step: own slice only when split, else each reader a part of every
    node.
    """
    arena_bytes = sum(size for _, size in draft.arena_bytes)
    part = {node: step_bytes * size / arena_bytes for node, size in draft.arena_bytes}
    if draft.policy is Policy.SPLIT:
        return {node: {node: size} for node, size in part.items()}
    worker_count = sum(workers.values())
    return {
        reader: {node: size * count / worker_count for node, size in part.items()}
        for reader, count in workers.items()
    }
