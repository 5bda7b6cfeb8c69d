"""Checks of huge pages: reserved ones that hide memory, and the transparent ones of the kernel."""

from __future__ import annotations

from planner.advice import idle_huge_pages
from planner.quantity import format_bytes
from planner.rules import node_phrase
from stratad.doctor.check import DROP_CACHE, Check, Finding, Group, Severity, bytes_by_node, fine, unknown
from stratad.doctor.facts import MachineFacts

# Below this share of free memory in blocks of 2 MiB, huge pages come slowly or not at all.
BLOCKS_SHARE = 0.5


def huge_pages_idle(facts: MachineFacts) -> Finding:
    """Reserved huge pages that nobody uses (the planner's own measure, on every node)."""
    idle = idle_huge_pages(facts.topology)
    if not idle:
        total = sum(pool.total_count for node in facts.topology.nodes for pool in node.huge_pages)
        return fine(f"{total} reserved huge pages, none of them idle in bulk", reserved_pages=total)
    node_ids, idle_bytes = tuple(node for node, _ in idle), sum(size for _, size in idle)
    emptying = tuple(
        f"echo 0 | sudo tee /sys/devices/system/node/node{node.node_id}/hugepages/"
        f"hugepages-{pool.page_bytes // 1024}kB/nr_hugepages"
        for node in facts.topology.nodes
        for pool in node.huge_pages
        if node.node_id in node_ids and pool.free_count
    )
    return Finding(
        Severity.WARNING,
        f"{format_bytes(idle_bytes)} lie in free reserved huge pages on {node_phrase(node_ids)}: "
        "the arena cannot use them, and no other program can either",
        {"nodes": node_ids, "idle_bytes": idle_bytes},
        (*emptying, "grep -rs hugepages /etc/sysctl.conf /etc/sysctl.d /proc/cmdline  # who reserves them"),
    )


def huge_pages_stranded(facts: MachineFacts) -> Finding:
    """Reserved pages on some nodes only, or on nodes that hold no part of the arena."""
    counts = {
        node.node_id: sum(pool.total_count * pool.page_bytes for pool in node.huge_pages)
        for node in facts.topology.nodes
        if node.has_cpus and node.has_memory
    }
    reserved = {node: size for node, size in counts.items() if size}
    if len(counts) < 2 or not reserved:
        return fine("no reserved huge pages, or one node" if not reserved else "one node holds them all")
    placed = set(facts.plan.memory_nodes) if facts.plan is not None else set(counts)
    outside = tuple(sorted(set(reserved) - placed))
    missing = tuple(sorted(placed - set(reserved)))
    if not outside and not missing:
        return fine(f"reserved huge pages by node: {bytes_by_node(reserved)}")
    where = f"none on {node_phrase(missing)}" if missing else f"the arena is not on {node_phrase(outside)}"
    return Finding(
        Severity.HINT,
        f"reserved huge pages are on {node_phrase(tuple(reserved))} ({bytes_by_node(reserved)}), and {where}",
        {"nodes": tuple(reserved), "outside_nodes": outside, "missing_nodes": missing},
        (
            "reserve by node if a program needs them, never by the global count: "
            "echo N | sudo tee /sys/devices/system/node/nodeK/hugepages/hugepages-2048kB/nr_hugepages",
        ),
    )


def transparent_huge_pages(facts: MachineFacts) -> Finding:
    """The transparent huge page mode, and whether a fault waits for compaction."""
    mode, defrag = facts.topology.transparent_huge_pages, facts.settings.huge_page_defrag
    if mode is None:
        return unknown("the transparent huge page mode cannot be read")
    evidence = {"mode": mode, "defrag": defrag}
    if mode == "never":
        return Finding(
            Severity.HINT,
            "transparent huge pages are off: an arena in one slice gets small pages",
            evidence,
            ("echo madvise | sudo tee /sys/kernel/mm/transparent_hugepage/enabled",),
        )
    if mode == "always" and defrag == "always":
        return Finding(
            Severity.WARNING,
            "transparent huge pages are always on with defrag always: every program's page faults wait "
            "for compaction, and programs beside the service take huge blocks they do not need",
            evidence,
            (
                "echo madvise | sudo tee /sys/kernel/mm/transparent_hugepage/enabled",
                "echo madvise | sudo tee /sys/kernel/mm/transparent_hugepage/defrag",
            ),
        )
    return fine(f"transparent huge pages: {mode}, defrag {defrag or 'not stated'}", **evidence)


def memory_fragmented(facts: MachineFacts) -> Finding:
    """Free memory of a node lies mostly in pieces below 2 MiB."""
    blocks = facts.settings.large_block_bytes
    free = {node.node_id: node.free_bytes for node in facts.topology.nodes if node.free_bytes}
    known = {node: (blocks[node], size) for node, size in free.items() if node in blocks}
    if not known:
        return unknown("/proc/buddyinfo cannot be read")
    poor = {node: pair for node, pair in known.items() if pair[0] < BLOCKS_SHARE * pair[1]}
    if not poor:
        return fine(
            f"free in blocks of 2 MiB and more: {bytes_by_node({n: pair[0] for n, pair in known.items()})}"
        )
    node_id, (large, total) = min(poor.items())
    return Finding(
        Severity.HINT,
        f"of {format_bytes(total)} free on node {node_id} only {format_bytes(large)} lie in blocks of 2 MiB: "
        "huge pages come slowly or not at all",
        {"node": node_id, "large_bytes": large, "free_bytes": total},
        (DROP_CACHE, "echo 1 | sudo tee /proc/sys/vm/compact_memory"),
    )


PAGE_CHECKS: tuple[Check, ...] = (
    Check(
        "huge-pages-idle",
        Group.PAGES,
        "Do reserved huge pages lie idle?",
        "Reserved pages can serve nothing but mappings that ask for them. They make memory vanish: loading fails with "
        "gigabytes free.",
        "seed 2684: 24,000 idle pages made every start fail and the unit restart in a loop",
        (Severity.WARNING,),
        huge_pages_idle,
    ),
    Check(
        "huge-pages-stranded",
        Group.PAGES,
        "Do reserved huge pages lie on the nodes that need them?",
        "The global count is divided over all nodes, so half of it may lie where no part of the arena is.",
        "pub-ik-278: the pool had to be doubled and half lay idle; trap-k8s-119851: all pages on node 0",
        (Severity.HINT,),
        huge_pages_stranded,
    ),
    Check(
        "transparent-huge-pages",
        Group.PAGES,
        "How does the kernel give transparent huge pages?",
        "The daemon asks for them where a slice can use them (madvise) and refuses them where a 2 MiB page would lie "
        "across two slices. It needs neither `always` nor waiting for compaction.",
        "pub-ik-278: 2 MiB pages gained 13 % on one box, transparent ones lost 20 % on another",
        (Severity.HINT, Severity.WARNING),
        transparent_huge_pages,
    ),
    Check(
        "memory-fragmented",
        Group.PAGES,
        "Is free memory in pieces too small for huge pages?",
        "After days of use free memory is in small pieces; huge pages then have to be made by moving others.",
        "trap-llamacpp-21821: 84,000 pages asked for, 13,567 given",
        (Severity.HINT,),
        memory_fragmented,
    ),
)
