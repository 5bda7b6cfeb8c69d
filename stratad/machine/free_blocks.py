"""How much of a node's free memory still lies in blocks of a huge page's size."""

from __future__ import annotations

import re
from collections.abc import Sequence

from planner.request import SMALL_PAGE_BYTES
from planner.sysfs import MachineFiles

HUGE_PAGE_BYTES = 2 << 20


def free_huge_page_bytes(files: MachineFiles, node_ids: Sequence[int]) -> int:
    """Bytes that can be had as huge pages without compacting memory, when spread evenly over these nodes.

    0 where it cannot be read.
    """
    blocks = large_block_bytes(files.text("/proc/buddyinfo") or "")
    return min((blocks.get(node_id, 0) for node_id in node_ids), default=0) * len(set(node_ids))


def large_block_bytes(buddyinfo: str) -> dict[int, int]:
    """Give the free bytes by node that lie in blocks of a huge page or more.

    Source: proc(5), /proc/buddyinfo: columns count free blocks of 4 KiB, 8 KiB and so on by node and zone.
    """
    found: dict[int, int] = {}
    for line in buddyinfo.splitlines():
        # "Node 0, zone   Normal  20750  24812 ..."
        match = re.fullmatch(r"Node\s+(\d{1,5}), zone\s+\S+((?:\s+\d+)+)\s*", line)
        if match is None:
            continue
        sizes = (
            int(count) * (SMALL_PAGE_BYTES << order)
            for order, count in enumerate(match[2].split())
            if SMALL_PAGE_BYTES << order >= HUGE_PAGE_BYTES
        )
        found[int(match[1])] = found.get(int(match[1]), 0) + sum(sizes)
    return found
