"""How much of a node's free memory still lies in blocks of a huge page's size."""

from __future__ import annotations

from collections.abc import Sequence

from planner.request import SMALL_PAGE_BYTES
from planner.sysfs import MachineFiles

HUGE_PAGE_BYTES = 2 << 20


def free_huge_page_bytes(files: MachineFiles, node_ids: Sequence[int]) -> int:
    """Bytes that can be had as huge pages without compacting memory, when spread evenly over these nodes.

    Source: /proc/buddyinfo, whose columns count free blocks of 4 KiB, 8 KiB and so on by node and zone (proc(5)).
    0 where it cannot be read.
    """
    free_bytes = dict.fromkeys(node_ids, 0)
    for line in (files.text("/proc/buddyinfo") or "").splitlines():
        # "Node 0, zone   Normal  20750  24812 ..."
        node, _, zone = line.partition(",")
        node_id, counts = node.removeprefix("Node").strip(), zone.split()[2:]
        if not node_id.isdigit() or int(node_id) not in free_bytes:
            continue
        for order, count in enumerate(counts):
            block_bytes = SMALL_PAGE_BYTES << order
            if block_bytes >= HUGE_PAGE_BYTES and count.isdigit():
                free_bytes[int(node_id)] += int(count) * block_bytes
    return min(free_bytes.values(), default=0) * len(free_bytes)
