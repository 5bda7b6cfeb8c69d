"""Hard rules: each refuses a candidate, or the whole request, with the numbers it compared.

A rule takes facts and a draft and gives a rejecting Reason or None. Unknown sizes never reject: a comparison
needs two numbers.
"""

from __future__ import annotations

from collections.abc import Callable

from planner.candidates import Draft, can_place
from planner.cpulist import format_id_list
from planner.facts import Facts, NodeBudget
from planner.quantity import count_of, format_bytes
from planner.reason import Effect, Reason
from planner.request import Policy

Rule = Callable[[Facts, Draft], Reason | None]

ALLOW_PLACEMENT = (
    "run under systemd, or give the container CAP_SYS_NICE or a seccomp profile that allows mbind, "
    "set_mempolicy and move_pages"
)
SEVERAL_NODES = (Policy.SPLIT, Policy.INTERLEAVE)


def placement_not_possible(facts: Facts, draft: Draft) -> Reason | None:
    """Reject policies that need pages on chosen nodes when the kernel refuses to place memory.

    Source: seed 3708-a (a split whose arena could not be placed lost prefill and steadiness),
    trap-moby-37241.
    """
    if can_place(facts) or draft.policy not in SEVERAL_NODES:
        return None
    return Reason(
        code="placement-not-possible",
        effect=Effect.REJECTS,
        message="memory cannot be placed here: the kernel or a seccomp filter refuses mbind or set_mempolicy",
        remedy=ALLOW_PLACEMENT,
        policy=draft.policy,
    )


def all_experts_in_vram(facts: Facts, draft: Draft) -> Reason | None:
    """Reject spreading the pool when the CPU computes no expert bytes at all.

    Source: seed 3708-a (prefill -7 % with the split on and every expert in VRAM).
    """
    if facts.request.cpu_share > 0 or draft.policy not in SEVERAL_NODES:
        return None
    return Reason(
        code="all-experts-in-vram",
        effect=Effect.REJECTS,
        message="all experts are computed in VRAM, so workers on several sockets could only cost",
        evidence={"cpu_share": facts.request.cpu_share},
        remedy="set the CPU share if experts do run on the CPU",
        policy=draft.policy,
    )


def too_few_workers(facts: Facts, draft: Draft) -> Reason | None:
    """Reject a split that would leave a slice without a worker."""
    if draft.policy is not Policy.SPLIT or draft.layout is not None:
        return None
    cores = {budget.node_id: len(budget.cores) for budget in facts.budgets_of(draft.node_ids)}
    requested = facts.request.requested_worker_count
    return Reason(
        code="too-few-workers",
        effect=Effect.REJECTS,
        message=f"{count_of(len(draft.arena_slices), 'slice')} need a worker each, "
        + (f"{count_of(requested, 'worker')} asked for, " if requested is not None else "")
        + f"usable cores by node: {', '.join(f'{node}: {count}' for node, count in cores.items())}",
        evidence={
            "slices": len(draft.arena_slices),
            "requested_workers": requested,
            "cores": tuple(cores.values()),
        },
        remedy="ask for more workers, widen the cpuset, or set policy = 'single-socket'",
        policy=Policy.SPLIT,
    )


def workers_lopsided(facts: Facts, draft: Draft) -> Reason | None:
    """Reject a split whose fullest node has more than twice the workers of the emptiest.

    The step ends with the slowest slice, and a node's bandwidth does not grow with its neighbour's cores.
    """
    if draft.policy is not Policy.SPLIT or draft.layout is None:
        return None
    counts = tuple(draft.layout.worker_count_of(index) for index in range(len(draft.layout.slices)))
    if min(counts) * 2 >= max(counts):
        return None
    return Reason(
        code="workers-lopsided",
        effect=Effect.REJECTS,
        message=f"workers by node would be {', '.join(map(str, counts))}: the fewest hold all others up",
        evidence={"workers": counts},
        remedy="widen the cpuset so that each node has about as many cores, or set policy = 'single-socket'",
        policy=Policy.SPLIT,
    )


def node_too_small_for_slice(facts: Facts, draft: Draft) -> Reason | None:
    """Reject a split when a node cannot hold its slice, its part of the other buffers, and headroom.

    Source: seed 3413 (half of the arena + 2 GiB a node); seed 3708-c (the other buffers are interleaved).
    """
    if draft.policy is not Policy.SPLIT:
        return None
    slice_bytes = dict(draft.arena_bytes)
    short = [
        (available - needed, budget, available, needed)
        for budget in facts.budgets_of(draft.node_ids)
        if (available := budget.available_bytes) is not None
        and (needed := needed_bytes(facts, budget, slice_bytes[budget.node_id])) > available
    ]
    if not short:
        return None
    _, budget, available, needed = min(short, key=lambda item: (item[0], item[1].node_id))
    return Reason(
        code="node-too-small-for-slice",
        effect=Effect.REJECTS,
        message=f"node {budget.node_id} has {format_bytes(available)} available, "
        f"its slice with headroom needs {format_bytes(needed)}",
        evidence={
            "node": budget.node_id,
            "available_bytes": available,
            "needed_bytes": needed,
            "slice_bytes": slice_bytes[budget.node_id],
            "headroom_bytes": budget.headroom_bytes,
            "slices": len(draft.arena_slices),
        },
        remedy="free memory on that node, keep fewer experts in host memory, or set policy = 'interleave'",
        policy=Policy.SPLIT,
    )


def arena_exceeds_nodes(facts: Facts, draft: Draft) -> Reason | None:
    """Reject one socket when the arena and headroom do not fit its nodes.

    Other host buffers are preferred there and may spill, so they do not count here. An arena that spills is
    read over the link by every step (cost-model.md, section 1).
    """
    if draft.policy is not Policy.SINGLE_SOCKET:
        return None
    budgets = facts.budgets_of(draft.node_ids)
    available = total_available_bytes(budgets)
    needed = facts.request.arena.size_bytes + sum(budget.headroom_bytes for budget in budgets)
    if available is None or facts.request.arena.size_bytes == 0 or needed <= available:
        return None
    return Reason(
        code="arena-exceeds-nodes",
        effect=Effect.REJECTS,
        message=f"{node_phrase(draft.node_ids)} {'has' if len(draft.node_ids) == 1 else 'have'} "
        f"{format_bytes(available)} available, the arena with headroom needs {format_bytes(needed)}",
        evidence={"nodes": draft.node_ids, "available_bytes": available, "needed_bytes": needed},
        remedy="free memory there, or keep fewer experts in host memory",
        policy=Policy.SINGLE_SOCKET,
    )


def staging_under_interleave(facts: Facts, draft: Draft) -> Reason | None:
    """Reject a blanket interleave that would scatter the buffers which feed a GPU.

    Source: pub-colibri-82-4s (ten-fold loss under numactl --interleave). Seed 3708-c gained 29 % with a placed
    split under process interleave on a box with both GPUs on one node, so a split is warned about and kept.
    """
    is_caught = facts.has_gpu and facts.request.staging_placeable is False
    if draft.policy is not Policy.INTERLEAVE or not is_caught:
        return None
    return Reason(
        code="staging-under-interleave",
        effect=Effect.REJECTS,
        message="the GPU's staging buffers cannot be placed apart, and interleaving them cost ten-fold once",
        remedy="place only the arena (not the process), or use an engine that puts staging on the GPU's node",
        policy=draft.policy,
    )


def policy_excluded(facts: Facts, draft: Draft) -> Reason | None:
    """Reject what the request does not allow: the engine cannot do it, or the operator will not have it."""
    if draft.policy in facts.request.allowed_policies:
        return None
    allowed = ", ".join(facts.request.allowed_policies)
    return Reason(
        code="policy-excluded",
        effect=Effect.REJECTS,
        message=f"{draft.policy} is not among the policies to choose from ({allowed})",
        evidence={"allowed": allowed},
        policy=draft.policy,
    )


HARD_RULES: tuple[Rule, ...] = (
    policy_excluded,
    placement_not_possible,
    staging_under_interleave,
    all_experts_in_vram,
    too_few_workers,
    workers_lopsided,
    node_too_small_for_slice,
    arena_exceeds_nodes,
)


def objections(facts: Facts, draft: Draft) -> tuple[Reason, ...]:
    """Give everything that speaks against a candidate, in the rules' order."""
    found = (rule(facts, draft) for rule in HARD_RULES)
    return tuple(reason for reason in found if reason is not None)


def request_refusals(facts: Facts) -> tuple[Reason, ...]:
    """Give the reasons why no policy at all can hold the arena and the other host buffers."""
    found = (arena_exceeds_memory(facts), arena_exceeds_cgroup_limit(facts))
    return tuple(reason for reason in found if reason is not None)


def arena_exceeds_memory(facts: Facts) -> Reason | None:
    """Refuse when arena, other buffers and headroom are more than all usable nodes can give."""
    available = total_available_bytes(facts.budgets)
    wanted = facts.request.arena.size_bytes + facts.request.other_host_bytes
    needed = wanted + sum(budget.headroom_bytes for budget in facts.budgets)
    if available is None or wanted == 0 or needed <= available:
        return None
    node_ids = tuple(budget.node_id for budget in facts.budgets)
    is_narrowed = len(facts.budgets) < facts.hardware_node_count
    return Reason(
        code="arena-exceeds-memory",
        effect=Effect.REJECTS,
        message=f"arena {format_bytes(facts.request.arena.size_bytes)}, other buffers "
        f"{format_bytes(facts.request.other_host_bytes)} and headroom need {format_bytes(needed)}, "
        f"{'only ' if is_narrowed else ''}{node_phrase(node_ids)} "
        f"{'is' if len(node_ids) == 1 else 'are'} usable with {format_bytes(available)} available",
        evidence={
            "arena_bytes": facts.request.arena.size_bytes,
            "other_host_bytes": facts.request.other_host_bytes,
            "needed_bytes": needed,
            "available_bytes": available,
            "nodes": node_ids,
        },
        remedy="allow more memory nodes in the cpuset"
        if is_narrowed
        else "use a smaller model or quantisation, keep more experts in VRAM, or free memory",
    )


def arena_exceeds_cgroup_limit(facts: Facts) -> Reason | None:
    """Refuse when arena and other buffers are more than memory.max lets this process have.

    Source: trap-oomd (60 GiB of arena and 32 GiB of caches under 75 GiB).
    """
    limit = facts.topology.limits.memory_limit_bytes
    needed = facts.request.arena.size_bytes + facts.request.other_host_bytes
    if limit is None or needed <= limit:
        return None
    return Reason(
        code="arena-exceeds-cgroup-limit",
        effect=Effect.REJECTS,
        message=f"arena {format_bytes(facts.request.arena.size_bytes)} and other buffers "
        f"{format_bytes(facts.request.other_host_bytes)} need {format_bytes(needed)}, "
        f"the cgroup allows {format_bytes(limit)}",
        evidence={"needed_bytes": needed, "limit_bytes": limit},
        remedy="raise MemoryMax= of the service or the container's memory limit, or use a smaller model",
    )


def needed_bytes(facts: Facts, budget: NodeBudget, arena_bytes: int) -> int:
    """Give what a node must have available: its part of the arena and of the interleaved buffers, and
    headroom.
    """
    other_bytes = -(-facts.request.other_host_bytes // len(facts.budgets))
    return arena_bytes + other_bytes + budget.headroom_bytes


def total_available_bytes(budgets: tuple[NodeBudget, ...]) -> int | None:
    """Give the sum of available bytes, or None when any node's is unknown."""
    sizes = [budget.available_bytes for budget in budgets]
    return sum(size for size in sizes if size is not None) if sizes and None not in sizes else None


def node_phrase(node_ids: tuple[int, ...]) -> str:
    """Give "node 1" or "nodes 0-1,4"."""
    return f"node{'' if len(node_ids) == 1 else 's'} {format_id_list(node_ids)}"
