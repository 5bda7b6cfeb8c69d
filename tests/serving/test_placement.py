"""From raw page samples to the verdict: both sides of every limit."""

from __future__ import annotations

import errno

import numpy as np
import pytest

from stratad.runner.protocol import PlacementReport, SlicePlacement
from stratad.runner.verify import (
    Verdict,
    check_placement,
    node_ratios,
    placement_document,
    projected_arena_bytes,
    slice_placement,
)


def _report(*slices: SlicePlacement) -> PlacementReport:
    return PlacementReport(slices, (), 4096)


def _slice(index: int, homes: tuple[int, ...], pages: dict[int, int], unknown: int = 0) -> SlicePlacement:
    return SlicePlacement(index, homes, tuple(sorted(pages.items())), unknown)


def test_a_raw_sample_becomes_counts_per_node() -> None:
    nodes = np.array([1, 1, 0, -errno.EFAULT, 1, -errno.ENOENT], dtype=np.int32)
    placement = slice_placement(3, (1,), nodes)
    assert placement == SlicePlacement(3, (1,), ((0, 1), (1, 3)), 2)
    assert placement.local_ratio == 0.75
    assert node_ratios(placement) == ((0, 0.25), (1, 0.75))


def test_an_empty_and_an_unknown_sample_have_no_ratio() -> None:
    empty = slice_placement(0, (0,), np.array([], dtype=np.int32))
    unknown = slice_placement(0, (0,), np.array([-errno.EPERM] * 4, dtype=np.int32))
    assert (empty.local_ratio, unknown.local_ratio) == (None, None)
    assert (empty.unknown_pages, unknown.unknown_pages) == (0, 4)
    assert node_ratios(unknown) == ()


@pytest.mark.parametrize(("local_pages", "verdict"), [(95, Verdict.MET), (94, Verdict.BELOW_LIMIT)])
def test_the_limit_itself_is_met(local_pages: int, verdict: Verdict) -> None:
    report = _report(_slice(0, (0,), {0: 100}), _slice(1, (1,), {0: 100 - local_pages, 1: local_pages}))
    check = check_placement(report, 0.95)
    assert check.verdict is verdict
    assert (check.worst_slice, check.worst_ratio) == (1, local_pages / 100)
    assert check.is_met == (verdict is Verdict.MET)


def test_pages_on_any_of_several_home_nodes_are_at_home() -> None:
    check = check_placement(_report(_slice(0, (0, 1), {0: 49, 1: 49, 2: 2})), 0.95)
    assert (check.verdict, check.worst_ratio) == (Verdict.MET, 0.98)


def test_unknown_pages_are_left_out_and_nothing_but_unknown_cannot_be_judged() -> None:
    some = check_placement(_report(_slice(0, (0,), {0: 1}, unknown=99)), 0.95)
    none = check_placement(_report(_slice(0, (0,), {0: 9}), _slice(1, (1,), {}, unknown=9)), 0.95)
    both = check_placement(_report(_slice(0, (0,), {1: 9}), _slice(1, (1,), {}, unknown=9)), 0.95)
    assert some.verdict is Verdict.MET
    assert none.verdict is Verdict.UNVERIFIABLE
    assert none.is_met
    assert both.verdict is Verdict.BELOW_LIMIT


def test_without_a_home_node_there_is_nothing_to_verify() -> None:
    check = check_placement(_report(_slice(0, (), {0: 1, 1: 1})), 0.95)
    assert (check.verdict, check.worst_slice, check.worst_ratio) == (Verdict.NOT_APPLICABLE, None, None)


def test_a_slice_in_several_arenas_is_judged_as_one() -> None:
    check = check_placement(_report(_slice(0, (0,), {0: 90}), _slice(0, (0,), {1: 10}, unknown=5)), 0.95)
    assert check.report.slices == (SlicePlacement(0, (0,), ((0, 90), (1, 10)), 5),)
    assert (check.verdict, check.worst_ratio) == (Verdict.BELOW_LIMIT, 0.9)


def test_arena_bytes_follow_each_slices_sample() -> None:
    slices = (_slice(0, (0,), {0: 3, 1: 1}), _slice(1, (1,), {1: 8}), _slice(2, (1,), {}, unknown=8))
    assert projected_arena_bytes(slices, (1000, 500, 70)) == ((0, 750), (1, 750))


def test_the_document_has_json_values_only() -> None:
    document = placement_document(check_placement(_report(_slice(0, (1,), {0: 1, 1: 3}, unknown=2)), 0.95))
    assert document["verdict"] == "below-limit"
    assert document["slices"] == [
        {
            "slice": 0,
            "home_nodes": [1],
            "pages_per_node": {"0": 1, "1": 3},
            "unknown_pages": 2,
            "local_ratio": 0.75,
        }
    ]
