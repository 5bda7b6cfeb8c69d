"""Free memory in blocks of a huge page, from /proc/buddyinfo."""

from __future__ import annotations

from pathlib import Path

import pytest

from planner.sysfs import Tree
from stratad.machine.free_blocks import free_huge_page_bytes, large_block_bytes

MIB = 1 << 20
BUDDYINFO = """\
Node 0, zone      DMA      0      0      0      0      0      0      0      0      1      1      3
Node 0, zone   Normal  20750  24812  11888  14433   6206   3921   2427   2624   1391    496   1292
Node 1, zone   Normal      9      9      9      9      9      9      9      9      9      0      1
"""


def _tree(root: Path, text: str | None) -> Tree:
    (root / "proc").mkdir()
    if text is not None:
        (root / "proc" / "buddyinfo").write_text(text)
    return Tree(root)


@pytest.mark.parametrize(
    ("node_ids", "expected"),
    [
        ((0,), (1 + 496) * 2 * MIB + (3 + 1292) * 4 * MIB),
        ((1,), 4 * MIB),
        # Interleaved pages come from both alike, so the poorer one decides.
        ((0, 1), 2 * 4 * MIB),
        ((2,), 0),
        ((), 0),
    ],
)
def test_blocks_of_two_mib_and_more_count(tmp_path: Path, node_ids: tuple[int, ...], expected: int) -> None:
    assert free_huge_page_bytes(_tree(tmp_path, BUDDYINFO), node_ids) == expected


@pytest.mark.parametrize("text", [None, "", "Node x, zone\n\nNode 0\nNode 0, zone Normal a b\n"])
def test_what_cannot_be_read_is_no_memory(tmp_path: Path, text: str | None) -> None:
    assert free_huge_page_bytes(_tree(tmp_path, text), (0,)) == 0


def test_free_blocks_are_counted_from_two_mebibytes_on() -> None:
    text = (
        "Node 0, zone    DMA      1 1 1 1 1 1 1 1 1 3 1\n"
        "Node 0, zone Normal 0 0 0 0 0 0 0 0 0 1 0\nNode 1, zone X oops"
    )
    assert large_block_bytes(text) == {0: (3 * 2 + 4 + 2) << 20}
