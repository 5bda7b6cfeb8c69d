"""Builds the candidates: each policy on each set of nodes, with its layout, before any rule has judged it."""

from __future__ import annotations

import itertools
from dataclasses import dataclass

from planner.facts import Facts, NodeBudget
from planner.layout import one_slice_layout, split_layout
from planner.plan import ArenaSlice, MemoryMode, ProcessMemory, WorkerLayout
from planner.request import Policy

# Pages without a policy lie where their loader ran: a parallel loader put about 60 % on the fuller of two
# nodes (seed 3413), which is one and a half times the other's part.
UNPLACED_WEIGHT = 1.5


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
    """Give every candidate worth a look: split over nodes, split over packages where they hold several nodes,
    one single-socket for each package, interleave, off.
    """
    drafts: list[Draft] = []
    with_cores = facts.slice_budgets
    if len(with_cores) > 1:
        drafts.append(split_draft(facts, tuple((budget,) for budget in with_cores)))
    packages = tuple(
        budgets
        for group in facts.groups
        if (budgets := tuple(budget for budget in facts.budgets_of(group) if budget.cores))
    )
    if 1 < len(packages) < len(with_cores):
        drafts.append(split_draft(facts, packages))
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


def split_draft(facts: Facts, parts: tuple[tuple[NodeBudget, ...], ...]) -> Draft:
    """Give the candidate with one slice for each part; pages of a part with several nodes are interleaved
    there.
    """
    layout = split_layout(facts, parts, can_place(facts))
    weights = tuple(part.weight for part in layout.slices) if layout else tuple(1 for _ in parts)
    sizes = weighted_parts(facts.request.arena.size_bytes, weights)
    slices: list[ArenaSlice] = []
    held: dict[int, int] = {}
    for index, (part, size) in enumerate(zip(parts, sizes, strict=True)):
        node_ids = tuple(budget.node_id for budget in part)
        slices.append(ArenaSlice(index, node_ids, size))
        held |= dict(zip(node_ids, fitted_parts(size, tuple(map(_room_bytes, part))), strict=True))
    memory = ProcessMemory(MemoryMode.INTERLEAVE, tuple(budget.node_id for budget in facts.budgets))
    return Draft(
        Policy.SPLIT, tuple(sorted(held)), layout, tuple(slices), tuple(sorted(held.items())), memory
    )


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
    size_bytes = facts.request.arena.size_bytes
    parts = unplaced_parts(size_bytes, tuple(_room_bytes(budget) for budget in facts.budgets))
    return Draft(
        policy=Policy.OFF,
        node_ids=node_ids,
        layout=layout,
        arena_slices=(ArenaSlice(0, (), size_bytes),),
        arena_bytes=tuple(zip(node_ids, parts, strict=True)),
        process_memory=ProcessMemory(MemoryMode.DEFAULT),
    )


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


def unplaced_parts(total_bytes: int, room_bytes: tuple[int | None, ...]) -> tuple[int, ...]:
    """Give where pages without a policy come to lie: skewed to the node with most room, as far as each has
    room.
    """
    if len(room_bytes) < 2:
        return fitted_parts(total_bytes, room_bytes)
    fullest = max(range(len(room_bytes)), key=lambda i: (room_bytes[i] is None, room_bytes[i] or 0, -i))
    room = room_bytes[fullest]
    wanted = int(total_bytes * UNPLACED_WEIGHT / (UNPLACED_WEIGHT + len(room_bytes) - 1))
    taken = wanted if room is None else min(wanted, room)
    others = (*room_bytes[:fullest], *room_bytes[fullest + 1 :])
    parts = list(fitted_parts(total_bytes - taken, others))
    parts.insert(fullest, taken)
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
