"""From raw page samples to ratios, and from ratios to the verdict that gates start-up.

The kernel answers `move_pages` with one number a page: a node, or a negative errno. Here these become
counts per slice and node, and the verdict compares each slice's share of local pages with the limit.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import Enum

import numpy as np
import numpy.typing as npt

from stratad.runner.protocol import PlacementReport, SlicePlacement

PageNodes = npt.NDArray[np.int32]


class Verdict(Enum):
    """What a placement check says about the arena as a whole."""

    MET = "met"
    BELOW_LIMIT = "below-limit"
    # Not one page of a slice with a home is known: the kernel refuses to tell (seccomp), or none is touched.
    UNVERIFIABLE = "unverifiable"
    # No slice has a home node: off, or test mode.
    NOT_APPLICABLE = "not-applicable"


@dataclass(frozen=True, slots=True)
class PlacementCheck:
    """A report held against the limit.

    `worst_slice` is the slice with the smallest share of local pages, `worst_ratio` that share; both are None
    where no slice has a home node and a known page.
    """

    report: PlacementReport
    limit_ratio: float
    verdict: Verdict
    worst_slice: int | None
    worst_ratio: float | None

    @property
    def is_met(self) -> bool:
        """True unless pages are known to lie elsewhere than planned."""
        return self.verdict is not Verdict.BELOW_LIMIT


def slice_placement(slice_index: int, home_nodes: Sequence[int], page_nodes: PageNodes) -> SlicePlacement:
    """One slice's sample as counts.

    `page_nodes` holds, for each sampled page, the node it lies on or a negative errno (move_pages(2)).
    """
    known = page_nodes[page_nodes >= 0]
    node_ids, page_counts = np.unique(known, return_counts=True)
    return SlicePlacement(
        slice_index=slice_index,
        home_nodes=tuple(sorted(home_nodes)),
        pages_per_node=tuple(zip(node_ids.tolist(), page_counts.tolist(), strict=True)),
        unknown_pages=int(page_nodes.size - known.size),
    )


def projected_arena_bytes(
    slices: Sequence[SlicePlacement], slice_bytes: Sequence[int]
) -> tuple[tuple[int, int], ...]:
    """The arena's bytes per node when each slice lies as its sample does: pairs sorted by node id.

    Bytes of a slice without one known page count nowhere.
    """
    bytes_per_node: dict[int, float] = {}
    for placement, size_bytes in zip(slices, slice_bytes, strict=True):
        for node_id, page_count in placement.pages_per_node:
            share = page_count / placement.known_pages
            bytes_per_node[node_id] = bytes_per_node.get(node_id, 0.0) + share * size_bytes
    return tuple((node_id, round(size)) for node_id, size in sorted(bytes_per_node.items()))


def node_ratios(placement: SlicePlacement) -> tuple[tuple[int, float], ...]:
    """Share of the slice's known pages on each node, as pairs sorted by node id."""
    if placement.known_pages == 0:
        return ()
    return tuple((node_id, pages / placement.known_pages) for node_id, pages in placement.pages_per_node)


def check_placement(report: PlacementReport, limit_ratio: float) -> PlacementCheck:
    """Holds every slice with a home node against `limit_ratio`; exactly at the limit is met.

    Pages whose node the kernel does not tell are left out: NUMA balancing makes it answer -EFAULT for pages
    that lie where they should (DESIGN.md section 5). A slice with no known page cannot be judged at all.
    """
    report = _one_entry_a_slice(report)
    homes = [placement for placement in report.slices if placement.home_nodes]
    ratios = {slot.slice_index: ratio for slot in homes if (ratio := slot.local_ratio) is not None}
    worst_slice = min(ratios, key=lambda index: (ratios[index], index)) if ratios else None
    worst_ratio = ratios[worst_slice] if worst_slice is not None else None
    return PlacementCheck(
        report, limit_ratio, _verdict(homes, worst_ratio, limit_ratio), worst_slice, worst_ratio
    )


def _one_entry_a_slice(report: PlacementReport) -> PlacementReport:
    """The report with the samples of each slice added up: a model in several arenas has one for each."""
    by_index: dict[int, list[SlicePlacement]] = {}
    for placement in report.slices:
        by_index.setdefault(placement.slice_index, []).append(placement)
    return replace(report, slices=tuple(_sum(by_index[index]) for index in sorted(by_index)))


def _sum(parts: Sequence[SlicePlacement]) -> SlicePlacement:
    pages = Counter[int]()
    for part in parts:
        pages.update(dict(part.pages_per_node))
    return replace(
        parts[0],
        pages_per_node=tuple(sorted(pages.items())),
        unknown_pages=sum(part.unknown_pages for part in parts),
    )


def _verdict(homes: Sequence[SlicePlacement], worst_ratio: float | None, limit_ratio: float) -> Verdict:
    if not homes:
        return Verdict.NOT_APPLICABLE
    if worst_ratio is not None and worst_ratio < limit_ratio:
        return Verdict.BELOW_LIMIT
    if any(placement.known_pages == 0 for placement in homes):
        return Verdict.UNVERIFIABLE
    return Verdict.MET


def placement_document(check: PlacementCheck) -> dict[str, object]:
    """The check as JSON values, for `/placement`, `/status` and `stratactl verify --json`."""
    return {
        "verdict": check.verdict.value,
        "limit_ratio": check.limit_ratio,
        "worst_slice": check.worst_slice,
        "worst_ratio": check.worst_ratio,
        "page_bytes": check.report.page_bytes,
        "arena_bytes_per_node": {str(node): size for node, size in check.report.arena_bytes_per_node},
        "slices": [_slice_document(placement) for placement in check.report.slices],
    }


def _slice_document(placement: SlicePlacement) -> dict[str, object]:
    return {
        "slice": placement.slice_index,
        "home_nodes": list(placement.home_nodes),
        "pages_per_node": {str(node): pages for node, pages in placement.pages_per_node},
        "unknown_pages": placement.unknown_pages,
        "local_ratio": placement.local_ratio,
    }
