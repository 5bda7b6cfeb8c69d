"""Which page size the arena gets: the one asked for where it can be cut and is there, else small pages."""

from __future__ import annotations

from planner.candidates import Draft
from planner.facts import Facts
from planner.quantity import format_bytes
from planner.reason import Effect, Reason
from planner.request import SMALL_PAGE_BYTES, Policy


def page_bytes_for(facts: Facts, draft: Draft) -> int:
    """Give the page size of a draft's arena."""
    refused = page_larger_than_slice(facts, draft) or huge_pages_too_few(facts, draft)
    return SMALL_PAGE_BYTES if refused else facts.request.page_bytes


def page_larger_than_slice(facts: Facts, draft: Draft) -> Reason | None:
    """Warn that a huge page cannot be cut at the slice borders inside every expert.

    Source: seed 3708-b (2 MiB pages, role halves of 0.5 to 1 MiB: slice ranges rounded to nothing).
    """
    page_bytes, matrix_bytes = facts.request.page_bytes, facts.request.arena.expert_matrix_bytes
    if page_bytes == SMALL_PAGE_BYTES or draft.policy is not Policy.SPLIT:
        return None
    part_bytes = None if matrix_bytes is None else matrix_bytes // len(draft.arena_slices)
    if part_bytes is not None and part_bytes % page_bytes == 0 and part_bytes:
        return None
    shown = "parts of unknown size" if part_bytes is None else f"parts of {format_bytes(part_bytes)}"
    return Reason(
        code="page-larger-than-slice",
        effect=Effect.WARNS,
        message=f"a {format_bytes(page_bytes)} page cannot be cut, and slices cut every expert into {shown}; "
        f"{format_bytes(SMALL_PAGE_BYTES)} pages are used",
        evidence={"page_bytes": page_bytes, "part_bytes": part_bytes},
        remedy="leave the page size unset, or set policy = 'single-socket'",
        policy=Policy.SPLIT,
    )


def huge_pages_too_few(facts: Facts, draft: Draft) -> Reason | None:
    """Warn that a node's free huge pages cannot hold its part, naming both numbers.

    Source: trap-k8s-119851 (all pages on one node), trap-llamacpp-21821 (84,000 asked for, 13,567 given).
    """
    page_bytes = facts.request.page_bytes
    if page_bytes == SMALL_PAGE_BYTES:
        return None
    for node_id, part_bytes in draft.arena_bytes:
        needed_count = -(-part_bytes // page_bytes)
        free_count = free_huge_pages(facts, node_id, page_bytes)
        if needed_count > free_count:
            return Reason(
                code="huge-pages-too-few",
                effect=Effect.WARNS,
                message=f"node {node_id} has {free_count} free pages of {format_bytes(page_bytes)}, its part "
                f"needs {needed_count}; {format_bytes(SMALL_PAGE_BYTES)} pages are used",
                evidence={"node": node_id, "free_pages": free_count, "needed_pages": needed_count},
                remedy=f"reserve {needed_count} pages through node {node_id}'s own nr_hugepages at boot",
            )
    return None


def huge_pages_stranded(facts: Facts, draft: Draft) -> Reason | None:
    """Warn about huge pages of the size asked for on nodes without a part of the arena.

    Source: trap-nr-hugepages-even, pub-ik-278 (the global count is divided over nodes; half lay idle).
    """
    page_bytes = facts.request.page_bytes
    if page_bytes == SMALL_PAGE_BYTES:
        return None
    for node in facts.topology.nodes:
        free_count = free_huge_pages(facts, node.node_id, page_bytes)
        if free_count and not dict(draft.arena_bytes).get(node.node_id):
            return Reason(
                code="huge-pages-stranded",
                effect=Effect.WARNS,
                message=f"node {node.node_id} keeps {free_count} free pages ("
                f"{format_bytes(free_count * page_bytes)}) and holds no part of the arena",
                evidence={"node": node.node_id, "free_pages": free_count},
                remedy="reserve pages through the nodes' own nr_hugepages files, not the global one",
            )
    return None


def free_huge_pages(facts: Facts, node_id: int, page_bytes: int) -> int:
    """Give a node's free huge pages of a size; a pool that is not there has none."""
    node = facts.topology.node(node_id)
    pools = () if node is None else node.huge_pages
    return next((pool.free_count or 0 for pool in pools if pool.page_bytes == page_bytes), 0)
