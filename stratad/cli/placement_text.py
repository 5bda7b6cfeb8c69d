"""A placement document as lines for people; shared by `status`, `verify` and the demo."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

_VERDICTS = {
    "met": "every slice lies where the plan says",
    "below-limit": "too few pages lie where the plan says",
    "unverifiable": "the kernel does not tell where pages lie",
    "not-applicable": "the plan places nothing",
}


def placement_lines(document: dict[str, Any]) -> Iterator[str]:
    """One line for each slice, one for the arena's bytes, one for the verdict."""
    for part in document["slices"]:
        yield f"slice {part['slice']:<3} {_slice_text(part)}"
    sizes = ", ".join(
        f"node {node} {size / 1024**2:.1f} MiB" for node, size in document["arena_bytes_per_node"].items()
    )
    if sizes:
        yield f"arena     {sizes}"
    worst = document["worst_ratio"]
    numbers = "" if worst is None else f" (worst {worst:.1%}, limit {document['limit_ratio']:.1%})"
    yield f"verdict   {document['verdict']}: {_VERDICTS.get(document['verdict'], '')}{numbers}"


def _slice_text(part: dict[str, Any]) -> str:
    total_pages = sum(part["pages_per_node"].values())
    found = ", ".join(
        f"node {node}: {pages} ({pages / total_pages:.1%})" for node, pages in part["pages_per_node"].items()
    )
    planned = ", ".join(map(str, part["home_nodes"])) or "any"
    unknown = f", {part['unknown_pages']} unknown" if part["unknown_pages"] else ""
    return f"planned on node {planned}; {total_pages} pages sampled{unknown}: {found or 'none known'}"
