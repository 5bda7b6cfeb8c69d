"""Checks of memory: what is installed, what is free, and how the kernel moves it."""

from __future__ import annotations

from planner import Topology
from planner.advice import SKEWED_SHARE, skewed_node
from planner.facts import gather_facts, node_headroom_bytes
from planner.quantity import format_bytes
from planner.request import PlanRequest
from planner.rules import node_phrase
from stratad.doctor.check import (
    DROP_CACHE,
    Check,
    Finding,
    Group,
    Severity,
    bytes_by_node,
    fine,
    from_reason,
    unknown,
)
from stratad.doctor.facts import MachineFacts

# Nodes of one machine differ by a few per cent (firmware, kernel); a missing module is a sixth or more.
UNEVEN_SHARE = 0.85


def node_nearly_full(facts: MachineFacts) -> Finding:
    """One node has a tenth or less of another's available memory (the planner's own bound)."""
    skewed = skewed_node(gather_facts(facts.planned_topology, PlanRequest()).budgets)
    sizes = _available(facts.planned_topology)
    if skewed is None and not sizes:
        return unknown("the kernel states no memory by node here")
    if skewed is None:
        return fine(f"available by node: {bytes_by_node(sizes)}", least_bytes=min(sizes.values()))
    node_id, least, most = skewed
    return Finding(
        Severity.WARNING,
        f"node {node_id} has {format_bytes(least)} available, another has {format_bytes(most)}: "
        "memory without a policy piles up there",
        {
            "node": node_id,
            "available_bytes": least,
            "most_available_bytes": most,
            "least_share": SKEWED_SHARE,
        },
        (f"ps -eo pid,rss,comm --sort=-rss | head; numastat -p PID  # who fills node {node_id}",),
    )


def page_cache_crowds_node(facts: MachineFacts) -> Finding:
    """A node whose free memory alone does not hold its part of the arena, and with the page cache it would."""
    if facts.plan is None:
        return unknown(
            "whether the page cache is in the way depends on the model: name one with --config or --model"
        )
    parts: dict[int, int] = {}
    for part in facts.plan.arena_slices:
        for node_id in part.node_ids:
            parts[node_id] = parts.get(node_id, 0) + part.size_bytes // len(part.node_ids)
    for node in facts.planned_topology.nodes:
        needed = parts.get(node.node_id, 0) + node_headroom_bytes(node.memory_total_bytes)
        if node.node_id in parts and node.free_bytes is not None and node.free_bytes < needed:
            cache_bytes = node.reclaimable_bytes or 0
            return Finding(
                Severity.WARNING,
                f"node {node.node_id} has {format_bytes(node.free_bytes)} free and {format_bytes(cache_bytes)} "
                f"of page cache; its part of the arena with headroom needs {format_bytes(needed)}",
                {
                    "node": node.node_id,
                    "free_bytes": node.free_bytes,
                    "cache_bytes": cache_bytes,
                    "needed_bytes": needed,
                },
                (DROP_CACHE,),
            )
    return fine("every node of the plan has its part free without giving up page cache")


def memory_uneven(facts: MachineFacts) -> Finding:
    """Nodes with cores differ in installed memory by more than a seventh."""
    sizes = {
        node.node_id: node.memory_total_bytes
        for node in facts.topology.nodes
        if node.has_cpus and node.memory_total_bytes
    }
    if not sizes:
        return unknown("the kernel states no memory by node here")
    if min(sizes.values()) >= UNEVEN_SHARE * max(sizes.values()):
        return fine(f"memory by node: {bytes_by_node(sizes)}", least_bytes=min(sizes.values()))
    return Finding(
        Severity.HINT,
        f"nodes differ in memory ({bytes_by_node(sizes)}): channels are filled unevenly, or a module is not seen",
        {"least_bytes": min(sizes.values()), "most_bytes": max(sizes.values())},
        ("sudo dmidecode -t memory  # which slots are filled", "fill the sockets alike"),
    )


def node_without_memory(facts: MachineFacts) -> Finding:
    """Nodes with cores and no memory of their own."""
    bare = tuple(node.node_id for node in facts.topology.nodes if node.has_cpus and not node.has_memory)
    if not bare:
        return fine("every node with cores has memory")
    return Finding(
        Severity.HINT,
        f"{node_phrase(bare)} {'has' if len(bare) == 1 else 'have'} cores and no memory; "
        "their cores read from the nearest node that has some",
        {"nodes": bare},
        ("move memory modules so that every node has some",),
    )


def swap_on(facts: MachineFacts) -> Finding:
    """Swap is on, and the service is not kept from it."""
    swap = facts.settings.swap
    if swap.total_bytes is None:
        return unknown("/proc/meminfo does not say whether there is swap")
    if swap.total_bytes == 0:
        return fine("no swap", swap_bytes=0)
    running, unit = facts.service.running, facts.service.unit
    evidence = {"swap_bytes": swap.total_bytes, "used_bytes": swap.used_bytes, "swappiness": swap.swappiness}
    if running is not None and running.swapped_bytes:
        return Finding(
            Severity.WARNING,
            f"{format_bytes(running.swapped_bytes)} of the service are in swap",
            {**evidence, "swapped_bytes": running.swapped_bytes},
            ("sudo systemctl restart stratad", "systemctl show -p MemorySwapMax -p LimitMEMLOCK stratad"),
        )
    if unit is not None and unit.get("MemorySwapMax") == "0":
        return fine(f"{format_bytes(swap.total_bytes)} of swap, and the unit may not use it", **evidence)
    return Finding(
        Severity.HINT,
        f"{format_bytes(swap.total_bytes)} of swap with vm.swappiness {swap.swappiness}: "
        "an arena that is not locked can be swapped out",
        evidence,
        ("run the service by its unit (MemorySwapMax=0, LimitMEMLOCK=infinity), or: sudo swapoff -a",),
    )


def overcommit_strict(facts: MachineFacts) -> Finding:
    """Strict overcommit whose limit is below the arena."""
    commit, wanted = facts.settings.commit, facts.wanted_bytes
    if commit.mode is None:
        return unknown("vm.overcommit_memory cannot be read")
    if commit.mode != 2:
        return fine(f"vm.overcommit_memory is {commit.mode}", overcommit_memory=commit.mode)
    if facts.service.running is not None:
        return fine("strict overcommit, and the service that runs has its memory", overcommit_memory=2)
    left = commit.left_bytes
    if left is None or wanted is None:
        return Finding(
            Severity.HINT,
            "vm.overcommit_memory is 2: a mapping past the commit limit is refused with memory free",
            {"overcommit_memory": 2, "left_bytes": left},
            ("sudo sysctl vm.overcommit_memory=0",),
        )
    if wanted <= left:
        return fine(f"strict overcommit leaves {format_bytes(left)}", left_bytes=left, wanted_bytes=wanted)
    return Finding(
        Severity.ERROR,
        f"strict overcommit leaves {format_bytes(left)}, arena and buffers need {format_bytes(wanted)}",
        {"overcommit_memory": 2, "left_bytes": left, "wanted_bytes": wanted},
        ("sudo sysctl vm.overcommit_memory=0",),
    )


def zone_reclaim_on(facts: MachineFacts) -> Finding:
    """vm.zone_reclaim_mode on a machine with several nodes."""
    mode = facts.settings.zone_reclaim_mode
    if mode is None:
        return unknown("vm.zone_reclaim_mode cannot be read")
    if mode == 0 or len(facts.topology.nodes) < 2:
        return fine(f"vm.zone_reclaim_mode is {mode}", zone_reclaim_mode=mode)
    return Finding(
        Severity.WARNING,
        f"vm.zone_reclaim_mode is {mode}: a full node throws away its page cache, and stalls for it, "
        "before it takes memory of another",
        {"zone_reclaim_mode": mode},
        ("sudo sysctl vm.zone_reclaim_mode=0",),
    )


def numa_balancing_on(facts: MachineFacts) -> Finding:
    """Automatic NUMA balancing (the planner's reason)."""
    reason = facts.reason("numa-balancing-on")
    if reason is not None:
        return from_reason(
            Severity.HINT, reason, "nothing for the service; compare measurements under the same setting only"
        )
    if facts.topology.numa_balancing is None:
        return unknown("kernel.numa_balancing cannot be read")
    return fine(f"kernel.numa_balancing is {int(facts.topology.numa_balancing)}")


def _available(topology: Topology) -> dict[int, int]:
    return {
        node.node_id: node.available_bytes
        for node in topology.nodes
        if node.has_cpus and node.available_bytes is not None
    }


MEMORY_CHECKS: tuple[Check, ...] = (
    Check(
        "free-memory-skewed",
        Group.MEMORY,
        "Is one node nearly full while another is not?",
        "Memory without a policy goes to the node of whoever touches it first. With one node full it piles up on the "
        "others, and a split can no longer put its slice there.",
        "pub-colibri-82-2s: 766 MB free on node 0 and node 1 idle; interleaving won all pairings by 7 %",
        (Severity.WARNING,),
        node_nearly_full,
    ),
    Check(
        "page-cache-crowds-node",
        Group.MEMORY,
        "Does page cache take the place of the arena on a node?",
        "The kernel rather uses another node than to drop cache, so a slice loses its place while memory is called "
        "available. The daemon drops the cache of its own model file; that of other files stays.",
        "seed 3413: with the model's files cached, one 32 GiB node fell below 95 % placed; trap-vllm-51584",
        (Severity.WARNING,),
        page_cache_crowds_node,
    ),
    Check(
        "memory-uneven",
        Group.MEMORY,
        "Do the nodes have the same memory?",
        "Bandwidth grows with filled channels. A node with fewer modules is the slower half of a split and the first "
        "to be full.",
        "seed 3708-b: 3 modules on node 1; pub-colibri-537-bw: 4 modules over two sockets read 63 GB/s a node",
        (Severity.HINT,),
        memory_uneven,
    ),
    Check(
        "node-without-memory",
        Group.MEMORY,
        "Has every node with cores memory of its own?",
        "Cores without memory read everything over a link, and a split cannot have a slice there.",
        "trap-epyc7551-holes: eight nodes, memory on two of them",
        (Severity.HINT,),
        node_without_memory,
    ),
    Check(
        "swap-on",
        Group.MEMORY,
        "Can the arena be swapped out?",
        "An expert that was swapped out is read from a disk in the middle of a token. Locked memory never is, and the "
        "shipped unit allows no swap.",
        "proc_sys_vm(5), systemd.resource-control(5); no measurement of ours",
        (Severity.HINT, Severity.WARNING),
        swap_on,
    ),
    Check(
        "overcommit-strict",
        Group.MEMORY,
        "Does strict overcommit refuse the arena?",
        "With vm.overcommit_memory = 2 the kernel refuses mappings past its commit limit although memory is free.",
        "proc_sys_vm(5), overcommit_memory",
        (Severity.HINT, Severity.ERROR),
        overcommit_strict,
    ),
    Check(
        "zone-reclaim-on",
        Group.MEMORY,
        "Does the kernel reclaim within a node before it uses another?",
        "A node that is full of page cache then stalls every allocation to free its own, also where interleaved "
        "buffers could go elsewhere.",
        "the kernel's documentation of vm.zone_reclaim_mode; no measurement of ours",
        (Severity.WARNING,),
        zone_reclaim_on,
    ),
    Check(
        "numa-balancing-on",
        Group.MEMORY,
        "Does the kernel move pages by itself?",
        "It leaves the arena alone, which has a policy of its own, and moves everything else. Other programs may gain "
        "by it, so it is not to be turned off for the service's sake.",
        "lab: an unprotected arena had moved wholly after 25 s, one with a policy not at all; trap-numa-balancing "
        "(turning it off cost others up to 20 %)",
        (Severity.HINT,),
        numa_balancing_on,
    ),
)
