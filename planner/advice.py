"""Soft rules: what an operator should know about a chosen plan. Each gives a Reason or None; none changes the
plan.
"""

from __future__ import annotations

from collections.abc import Callable

from planner.candidates import Draft, can_place
from planner.cpulist import format_id_list
from planner.facts import Facts, NodeBudget
from planner.gpu_layers import gpu_far_from_arena, gpu_layers_assigned
from planner.measured_advice import MEASURED_RULES, Decided
from planner.pages import huge_pages_stranded, huge_pages_too_few, page_larger_than_slice
from planner.plan import MemoryMode
from planner.quantity import count_of, format_bytes
from planner.reason import Effect, Reason
from planner.request import SMALL_PAGE_BYTES, Policy
from planner.rules import ALLOW_PLACEMENT, needed_bytes, node_phrase, total_available_bytes
from planner.topology import Topology

Advice = Callable[[Facts, Draft], Reason | None]


# Seed 3413: 24 of 31 GiB a node worked, and only after the model file's page cache was dropped. From there on
# another process's few gigabytes decide whether the slice still fits.
TIGHT_SHARE = 0.75
# A twentieth of a node is past what other programs usually reserve for themselves.
IDLE_HUGE_PAGES_SHARE = 0.05
# A tenth: the reported node had under one percent, and ordinary machines differ by less than half.
SKEWED_SHARE = 0.1


def advice_for(facts: Facts, decided: Decided) -> tuple[Reason, ...]:
    """Give every warning and note about the chosen candidate, warnings first."""
    found = [reason for rule in SOFT_RULES if (reason := rule(facts, decided.draft)) is not None]
    found += [reason for rule in MEASURED_RULES if (reason := rule(facts, decided)) is not None]
    return tuple(sorted(found, key=lambda reason: reason.effect is not Effect.WARNS))


def headroom_tight(facts: Facts, draft: Draft) -> Reason | None:
    """Warn when the fullest node of the plan keeps little beside its part."""
    parts = dict(draft.arena_bytes)
    shares = [
        (needed_bytes(facts, budget, parts[budget.node_id]), budget.available_bytes, budget.node_id)
        for budget in facts.budgets_of(draft.node_ids)
        if budget.available_bytes
    ]
    if facts.request.arena.size_bytes == 0 or not shares:
        return None
    needed, available, node_id = max(shares, key=lambda share: (share[0] / share[1], -share[2]))
    if needed <= TIGHT_SHARE * available:
        return None
    return Reason(
        code="headroom-tight",
        effect=Effect.WARNS,
        message=f"node {node_id} needs {format_bytes(needed)} of {format_bytes(available)} available",
        evidence={"node": node_id, "needed_bytes": needed, "available_bytes": available},
        remedy="stop other programs that use memory there, or shorten the context to shrink the KV cache",
    )


def other_buffers_crowd_node(facts: Facts, draft: Draft) -> Reason | None:
    """Warn when one socket holds the arena and not the other host buffers beside it.

    Source: seed 3708-c (buffers piled beside a placed arena halved the speed).
    """
    other_bytes = facts.request.other_host_bytes
    budgets = facts.budgets_of(draft.node_ids)
    available = total_available_bytes(budgets)
    if draft.policy is not Policy.SINGLE_SOCKET or available is None or other_bytes == 0:
        return None
    needed = facts.request.arena.size_bytes + other_bytes + sum(budget.headroom_bytes for budget in budgets)
    if needed <= available:
        return None
    return Reason(
        code="other-buffers-crowd-node",
        effect=Effect.WARNS,
        message=f"{format_bytes(other_bytes)} of other buffers do not fit beside the arena on "
        f"{node_phrase(draft.node_ids)}; what is left over goes to other nodes",
        evidence={"nodes": draft.node_ids, "needed_bytes": needed, "available_bytes": available},
        remedy="shorten the context, or set policy = 'split' or 'interleave'",
        policy=Policy.SINGLE_SOCKET,
    )


def placement_left_out(facts: Facts, draft: Draft) -> Reason | None:
    """Warn that a machine with several nodes runs without memory placement: only CPUs are pinned."""
    if can_place(facts) or len(facts.budgets) < 2:
        return None
    return Reason(
        code="placement-not-possible",
        effect=Effect.WARNS,
        message="workers are pinned, memory is not placed: the kernel or a seccomp filter refuses it",
        remedy=ALLOW_PLACEMENT,
    )


def workers_uneven(facts: Facts, draft: Draft) -> Reason | None:
    """Warn when slices differ in workers, or say that cores idle so that they do not."""
    if draft.policy is not Policy.SPLIT or draft.layout is None:
        return None
    counts = tuple(draft.layout.worker_count_of(index) for index in range(len(draft.layout.slices)))
    cores = tuple(len(budget.cores) for budget in facts.budgets_of(draft.node_ids))
    if len(set(counts)) == 1 and max(cores) - min(cores) <= 1:
        return None
    differs = len(set(counts)) > 1
    return Reason(
        code="workers-lopsided",
        effect=Effect.WARNS if differs else Effect.INFORMS,
        message=f"usable cores by node are {_listed(cores)}, workers {_listed(counts)}"
        + ("; slices follow the workers in size" if differs else "; every slice has the same number"),
        evidence={"cores": cores, "workers": counts},
        remedy="widen the cpuset so that each node has as many cores",
        policy=Policy.SPLIT,
    )


def workers_not_as_asked(facts: Facts, draft: Draft) -> Reason | None:
    """Say when the worker count differs from the one asked for, and why."""
    requested = facts.request.requested_worker_count
    if requested is None or draft.layout is None or draft.worker_count >= requested:
        return None
    slice_count = len(draft.layout.slices)
    evidence: dict[str, int] = {"requested_workers": requested, "workers": draft.worker_count}
    if requested - draft.worker_count < slice_count and requested % slice_count:
        return Reason(
            code="workers-rounded",
            effect=Effect.INFORMS,
            message=f"{requested} workers were asked for; {draft.worker_count} are the same number a slice",
            evidence=evidence,
        )
    return Reason(
        code="workers-clamped",
        effect=Effect.WARNS,
        message=f"{requested} workers were asked for, "
        f"{count_of(draft.worker_count, 'physical core')} can serve: two workers on one core lose",
        evidence=evidence | {"usable_cores": len(facts.cores)},
        remedy=f"leave the worker count unset, or set it to {draft.worker_count} or less",
    )


def cpuset_one_cpu(facts: Facts, draft: Draft) -> Reason | None:
    """Warn when a single CPU must serve requests and compute."""
    if len(facts.topology.usable_cpu_ids) != 1:
        return None
    online_count = len(facts.topology.cpus)
    return Reason(
        code="cpuset-one-cpu",
        effect=Effect.WARNS,
        message=f"only CPU {facts.topology.usable_cpu_ids[0]} of {online_count} may be used; "
        "server and pool share it",
        evidence={"usable_cpus": 1, "online_cpus": online_count},
        remedy="widen AllowedCPUs= or the container's cpuset"
        if online_count > 1
        else "use a machine with more CPUs",
    )


def affinity_narrows_cpuset(facts: Facts, draft: Draft) -> Reason | None:
    """Warn that an inherited affinity mask keeps workers off CPUs that the cpuset allows.

    Source: trap-colibri-471 (48 workers on two CPUs: 0.11 instead of 4.34 tokens a second).
    """
    limits, usable = facts.topology.limits, facts.topology.usable_cpu_ids
    online = {cpu.cpu_id for cpu in facts.topology.cpus}
    allowed = online if limits.allowed_cpu_ids is None else online & set(limits.allowed_cpu_ids)
    if limits.affinity_cpu_ids is None or len(usable) >= len(allowed):
        return None
    return Reason(
        code="affinity-narrows-cpuset",
        effect=Effect.WARNS,
        message=f"an affinity mask leaves CPUs {format_id_list(usable)} of {len(allowed)} the cpuset allows",
        evidence={"usable_cpus": len(usable), "allowed_cpus": len(allowed)},
        remedy="start without taskset or CPUAffinity= if that was not meant",
    )


def huge_pages_idle(facts: Facts, draft: Draft) -> Reason | None:
    """Warn about a reserved huge page pool that lies idle on a node of the plan.

    Source: seed 2684 (24,000 idle pages made loading fail and the unit restart in a loop).
    """
    if facts.request.page_bytes != SMALL_PAGE_BYTES:
        # They were asked for; planner.pages compares what is needed.
        return None
    idle = dict(idle_huge_pages(facts.topology))
    node_id = min(set(idle) & set(draft.node_ids), default=None)
    if node_id is not None:
        return Reason(
            code="huge-pages-idle",
            effect=Effect.WARNS,
            message=f"node {node_id} keeps {format_bytes(idle[node_id])} of free huge pages "
            "that the arena cannot use",
            evidence={"node": node_id, "idle_bytes": idle[node_id]},
            remedy="write 0 to the node's nr_hugepages unless another program needs them",
        )
    return None


def idle_huge_pages(topology: Topology) -> tuple[tuple[int, int], ...]:
    """Give (node id, free reserved bytes) of every node where the reserved pages nobody uses are worth a word."""
    found = []
    for node in topology.nodes:
        idle_bytes = sum(pool.page_bytes * (pool.free_count or 0) for pool in node.huge_pages)
        if idle_bytes > IDLE_HUGE_PAGES_SHARE * (node.memory_total_bytes or idle_bytes):
            found.append((node.node_id, idle_bytes))
    return tuple(found)


def skewed_node(budgets: tuple[NodeBudget, ...]) -> tuple[int, int, int] | None:
    """Give (node id, its available bytes, the most of any node) where one node is nearly full and another is not."""
    sizes = {
        budget.node_id: budget.available_bytes for budget in budgets if budget.available_bytes is not None
    }
    least, most = min(sizes.values(), default=0), max(sizes.values(), default=0)
    if len(sizes) < 2 or least >= SKEWED_SHARE * most:
        return None
    return min(node for node, size in sizes.items() if size == least), least, most


def gpu_node_unknown(facts: Facts, draft: Draft) -> Reason | None:
    """Warn on a machine with several nodes that a GPU's node is unknown, so it cannot break a tie.

    Source: trap-cucascade-119, trap-tf-58428 (on one node -1 is ordinary and deserves no word).
    """
    if len(facts.budgets) < 2 or facts.unknown_gpu_count == 0:
        return None
    return Reason(
        code="gpu-node-unknown",
        effect=Effect.WARNS,
        message=f"the node of {count_of(facts.unknown_gpu_count, 'accelerator')} is unknown",
        evidence={"accelerators": facts.unknown_gpu_count},
        remedy="update the firmware (ACPI _PXM); `stratactl plan --gpu-node NODE` shows what it changes",
    )


def gpu_node_outside_cpuset(facts: Facts, draft: Draft) -> Reason | None:
    """Warn that the GPU's node may not be used. Source: trap-sglang-27368."""
    node_ids = tuple(budget.node_id for budget in facts.budgets)
    outside = tuple(node_id for node_id in facts.gpu_node_ids if node_id not in node_ids)
    if not outside or facts.hardware_node_count < 2:
        return None
    return Reason(
        code="gpu-node-outside-cpuset",
        effect=Effect.WARNS,
        message=f"the GPU is at {node_phrase(outside)}, this process may use {node_phrase(node_ids)}",
        evidence={"gpu_nodes": outside, "usable_nodes": node_ids},
        remedy="allow the GPU's node in the cpuset, or use a GPU at a usable node",
    )


def numa_balancing_on(facts: Facts, draft: Draft) -> Reason | None:
    """Note that automatic NUMA balancing is on. It leaves memory with an explicit policy alone (lab,
    arena-policy).
    """
    if len(facts.budgets) < 2 or not facts.topology.numa_balancing:
        return None
    return Reason(
        code="numa-balancing-on",
        effect=Effect.INFORMS,
        message="kernel.numa_balancing is 1: memory without its own policy may move between nodes",
        evidence={"numa_balancing": 1},
    )


def memory_unknown(facts: Facts, draft: Draft) -> Reason | None:
    """Note that sizes could not be compared because the kernel states none."""
    unknown = tuple(budget.node_id for budget in facts.budgets if budget.available_bytes is None)
    if not unknown or facts.request.arena.size_bytes == 0:
        return None
    return Reason(
        code="memory-unknown",
        effect=Effect.WARNS,
        message=f"the memory of {node_phrase(unknown)} is unknown; whether the arena fits was not checked",
        evidence={"nodes": unknown},
        remedy="plan on the live machine, or capture it with its node meminfo files",
    )


def free_memory_skewed(facts: Facts, draft: Draft) -> Reason | None:
    """Warn that one node is nearly full while another is not.

    Source: pub-colibri-82-2s (766 MB free on node 0, node 1 idle: interleave won all pairings by 7 %).
    """
    skewed = None if facts.request.arena.size_bytes == 0 else skewed_node(facts.budgets)
    if skewed is None:
        return None
    node_id, least, most = skewed
    return Reason(
        code="free-memory-skewed",
        effect=Effect.WARNS,
        message=f"node {node_id} has {format_bytes(least)} available, another has {format_bytes(most)}: "
        "what has no policy piles up there",
        evidence={"node": node_id, "available_bytes": least, "most_available_bytes": most},
        remedy="free memory on that node before the daemon starts",
    )


def staging_caught(facts: Facts, draft: Draft) -> Reason | None:
    """Warn that an interleaved process scatters staging buffers that cannot be placed apart."""
    is_caught = facts.has_gpu and facts.request.staging_placeable is False
    if not is_caught or draft.process_memory.mode is not MemoryMode.INTERLEAVE:
        return None
    return Reason(
        code="staging-under-interleave",
        effect=Effect.WARNS,
        message="the process interleaves and the GPU's staging buffers cannot be placed apart from it",
        remedy="compare prompts with `stratactl tune` before relying on this policy",
        policy=draft.policy,
    )


def iommu_translated(facts: Facts, draft: Draft) -> Reason | None:
    """Note that DMA is translated. Source: seed 3413 (7.7 to 9.2 GB/s pinned against 12.3 with passthrough)."""
    if not facts.has_gpu or facts.topology.iommu != "translated":
        return None
    return Reason(
        code="iommu-translated",
        effect=Effect.INFORMS,
        message="the IOMMU translates the GPU's DMA; prompts ran about 30 % slower so on one box",
        evidence={"iommu": "translated"},
        remedy="boot with iommu=pt if prompts matter",
    )


def cpu_share_measured(facts: Facts, draft: Draft) -> Reason | None:
    """Note the share of expert bytes that the running daemon's CPUs read, which this plan goes by."""
    running = facts.request.running
    if running is None:
        return None
    hits = (
        ""
        if running.hit_ratio is None
        else f", and VRAM answers {running.hit_ratio:.0%} of the router's choices"
    )
    return Reason(
        code="cpu-share-measured",
        effect=Effect.INFORMS,
        message=f"the running daemon's CPUs read {running.cpu_share:.1%} of the expert bytes{hits} "
        f"({count_of(running.decode_steps, 'step')})",
        evidence={
            "cpu_share": running.cpu_share,
            "hit_ratio": running.hit_ratio,
            "decode_steps": running.decode_steps,
        },
    )


def running_plan_differs(facts: Facts, draft: Draft) -> Reason | None:
    """Warn that the running daemon has another policy, or as many more or fewer workers, than would be chosen now."""
    running = facts.request.running
    if running is None or (running.policy, running.worker_count) == (draft.policy, draft.worker_count):
        return None
    return Reason(
        code="running-plan-differs",
        effect=Effect.WARNS,
        message=f"the daemon runs {running.policy} with {count_of(running.worker_count, 'worker')}; with what it "
        f"measured, {draft.policy} with {count_of(draft.worker_count, 'worker')} would be chosen now",
        evidence={
            "running": running.policy.value,
            "running_workers": running.worker_count,
            "chosen": draft.policy.value,
            "chosen_workers": draft.worker_count,
        },
        remedy="run `sudo stratactl apply`; the daemon is restarted with the new plan",
    )


def _listed(numbers: tuple[int, ...]) -> str:
    return ", ".join(map(str, numbers))


SOFT_RULES: tuple[Advice, ...] = (
    headroom_tight,
    other_buffers_crowd_node,
    placement_left_out,
    workers_uneven,
    workers_not_as_asked,
    cpuset_one_cpu,
    affinity_narrows_cpuset,
    huge_pages_idle,
    gpu_node_unknown,
    gpu_node_outside_cpuset,
    gpu_layers_assigned,
    gpu_far_from_arena,
    numa_balancing_on,
    memory_unknown,
    free_memory_skewed,
    staging_caught,
    page_larger_than_slice,
    huge_pages_too_few,
    huge_pages_stranded,
    iommu_translated,
    cpu_share_measured,
    running_plan_differs,
)
