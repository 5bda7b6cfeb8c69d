"""Worker layouts: which core does which slice's work, and which cores stay free.

The rules, in order:

1. One worker for each physical core, pinned to its lowest usable CPU; never two workers on one core.
2. With four or more cores two stay free: the host core (server, event loop) and a spare for the kernel and
everything else. With three, one stays free; with two or one, none. When usable cores lie outside the
candidate's nodes, the spare is one of those and only the host core is taken from the candidate.
3. A free core comes from the node with the most cores left; on a tie from a GPU's node, then from the
smallest id. It is the node's lowest core: CPU 0 and its neighbours serve interrupts.
4. A slice is one node's, or one package's with its workers taken from its nodes in turn. Slices of a split
get the same number of workers while that idles at most a quarter of the fuller node's cores; beyond that,
slices follow the workers in size.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import gcd

from planner.facts import Facts, NodeBudget, UsableCore
from planner.plan import Slice, Worker, WorkerLayout


@dataclass(frozen=True, slots=True)
class CoreShare:
    """Worker cores by node (in the order of the nodes given) and the cores kept free, host core first."""

    worker_cores: tuple[tuple[UsableCore, ...], ...]
    free_cores: tuple[UsableCore, ...]


def unpinned_layout(slice_count: int, worker_count: int) -> WorkerLayout:
    """Give a layout without CPUs or nodes, for tests of N slices on any machine; workers alternate."""
    if slice_count < 1 or worker_count < slice_count:
        raise ValueError("a layout needs at least one slice and one worker for each slice")
    return WorkerLayout(
        slices=tuple(Slice(()) for _ in range(slice_count)),
        workers=tuple(Worker(None, index % slice_count) for index in range(worker_count)),
        host_cpu_ids=(),
    )


def free_core_count(core_count: int, outside_core_count: int) -> int:
    """Give how many of a candidate's cores stay free (rule 2)."""
    wanted = 2 if core_count >= 4 else 1 if core_count == 3 else 0
    return 1 if wanted == 2 and outside_core_count > 0 else wanted


def share_cores(facts: Facts, core_lists: tuple[tuple[UsableCore, ...], ...]) -> CoreShare:
    """Set free cores aside from lists of cores, one list a node (rules 2 and 3)."""
    remaining = [list(cores) for cores in core_lists]
    core_count = sum(map(len, remaining))
    free: list[UsableCore] = []
    for _ in range(free_core_count(core_count, len(facts.cores) - core_count)):
        fullest = max(range(len(remaining)), key=lambda index: _freeing_order(facts, remaining[index], index))
        free.append(remaining[fullest].pop(0))
    return CoreShare(tuple(map(tuple, remaining)), tuple(free))


def _freeing_order(facts: Facts, cores: list[UsableCore], index: int) -> tuple[int, bool, int]:
    at_gpu = any(core.home_node_id in facts.gpu_node_ids for core in cores)
    return (len(cores), at_gpu, -index)


def even_counts(counts: tuple[int, ...]) -> tuple[int, ...]:
    """Give worker counts for slices: all equal while that idles at most a quarter of the fullest (rule 4)."""
    fewest, most = min(counts), max(counts)
    return tuple(fewest for _ in counts) if fewest * 4 >= most * 3 else counts


def split_layout(
    facts: Facts, parts: tuple[tuple[NodeBudget, ...], ...], is_placed: bool
) -> WorkerLayout | None:
    """Give the layout with one slice for each part, or None when a part would be left without a worker.

    Args:
        facts: The machine and the worker count asked for.
        parts: The nodes of each slice: one, or the nodes of a package.
        is_placed: Whether slices name their nodes.
    """
    share = share_cores(facts, tuple(_part_cores(part) for part in parts))
    counts = tuple(len(cores) for cores in share.worker_cores)
    requested = facts.request.requested_worker_count
    if requested is not None:
        counts = _requested_counts(counts, requested)
    counts = even_counts(counts)
    if min(counts) < 1:
        return None
    divisor = gcd(*counts)
    slices = tuple(
        Slice(tuple(budget.node_id for budget in part) if is_placed else (), count // divisor)
        for part, count in zip(parts, counts, strict=True)
    )
    chosen = [
        (core, Worker(core.cpu_ids[0], index))
        for index, (cores, count) in enumerate(zip(share.worker_cores, counts, strict=True))
        for core in cores[:count]
    ]
    at_gpu = (worker for core, worker in chosen if core.home_node_id in facts.gpu_node_ids)
    seat = next(at_gpu, chosen[0][1])
    workers = (seat, *(worker for _, worker in chosen if worker is not seat))
    worker_cpu_ids = [worker.cpu_id for worker in workers if worker.cpu_id is not None]
    return WorkerLayout(slices, workers, _host_cpu_ids(facts, share.free_cores, worker_cpu_ids))


def _part_cores(part: tuple[NodeBudget, ...]) -> tuple[UsableCore, ...]:
    """Give a part's cores in the order workers take them: its nodes in turn, so that few workers still spread."""
    if len(part) == 1:
        return part[0].cores
    return tuple(_alternating(tuple(budget.cores for budget in part)))


def _requested_counts(counts: tuple[int, ...], requested_count: int) -> tuple[int, ...]:
    """Spread a requested number evenly; never above what a node has."""
    each = requested_count // len(counts)
    return tuple(min(count, each) for count in counts)


def one_slice_layout(
    facts: Facts,
    core_lists: tuple[tuple[UsableCore, ...], ...],
    slice_node_ids: tuple[int, ...],
    worker_limit: int | None,
) -> WorkerLayout:
    """Give the layout with one slice; workers alternate over the lists of cores when fewer than all are used.

    Args:
        facts: The machine, for its GPUs' nodes and the cores outside the lists.
        core_lists: Cores by node. At least one list has a core.
        slice_node_ids: Where the slice lives; () when it is not placed.
        worker_limit: The most workers to use, or None for all that are left after the free cores.
    """
    share = share_cores(facts, core_lists)
    ordered = _alternating(share.worker_cores)
    chosen = sorted(core.cpu_ids[0] for core in ordered[:worker_limit])
    near_gpu = {core.cpu_ids[0] for core in ordered if core.home_node_id in facts.gpu_node_ids}
    seat = next((cpu_id for cpu_id in chosen if cpu_id in near_gpu), chosen[0])
    chosen.remove(seat)
    return WorkerLayout(
        slices=(Slice(slice_node_ids),),
        workers=tuple(Worker(cpu_id, 0) for cpu_id in (seat, *chosen)),
        host_cpu_ids=_host_cpu_ids(facts, share.free_cores, [seat, *chosen]),
    )


def _alternating(core_lists: tuple[tuple[UsableCore, ...], ...]) -> list[UsableCore]:
    longest = max(map(len, core_lists))
    return [cores[index] for index in range(longest) for cores in core_lists if index < len(cores)]


def _host_cpu_ids(
    facts: Facts, free_cores: tuple[UsableCore, ...], worker_cpu_ids: list[int]
) -> tuple[int, ...]:
    """Give the CPUs of the host core; without a free one those of cores that run no worker, else every usable
    CPU.
    """
    if free_cores:
        return free_cores[0].cpu_ids
    taken = set(worker_cpu_ids)
    idle = tuple(cpu_id for core in facts.cores if not taken & set(core.cpu_ids) for cpu_id in core.cpu_ids)
    return tuple(sorted(idle)) or facts.topology.usable_cpu_ids
