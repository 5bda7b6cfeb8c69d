"""The bars of `make bench`: what counts as reached, missed, and not judged."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from stratad.machine.load import CpuTimes
from tests.bench.__main__ import best_of, is_missed
from tests.bench.bars import Measured, Verdict, measured, table
from tests.bench.native_programs import KernelRow, kernel_results
from tests.bench.other_work import Usage, share_of_others, usage_now, watched

QUIET = (10.0, 14.9)
BUSY = (10.0, 15.1)


@pytest.mark.parametrize(
    ("key", "ratio", "verdict"),
    [
        ("1", 0.89, Verdict.BELOW),
        ("1", 0.90, Verdict.MUST),
        ("1", 0.97, Verdict.GOAL),
        ("8", 0.51, Verdict.BELOW),
        ("8", 0.50, Verdict.MUST),
        ("8", 0.35, Verdict.GOAL),
    ],
)
def test_a_median_is_held_against_its_bar(key: str, ratio: float, verdict: Verdict) -> None:
    assert measured(key, "here", [0.0, ratio, 9.0], QUIET).verdict is verdict


@pytest.mark.parametrize("ratio", [0.1, 1.0])
def test_on_a_busy_machine_nothing_is_proven(ratio: float) -> None:
    result = measured("1", "here", [ratio], BUSY)
    assert result.verdict is Verdict.NOT_JUDGED
    assert not is_missed(result)
    assert "not judged" in table([result])


@pytest.mark.parametrize(
    ("key", "ratios", "is_failed"),
    [
        ("1", [0.89], False),
        ("1", [0.7], True),
        ("1", [0.65, 0.7, 0.89], True),
        ("1", [0.65, 0.7, 0.91], False),
        ("8", [0.51], False),
        ("8", [0.6], True),
        ("8", [0.51, 0.6, 0.7], True),
        ("8", [0.49, 0.6, 0.7], False),
    ],
)
def test_a_margin_forgives_what_a_neighbour_may_explain(
    key: str, ratios: list[float], is_failed: bool
) -> None:
    result = measured(key, "here", ratios, QUIET)
    assert is_missed(result)
    assert is_missed(result, margin=0.15) is is_failed


def usage(busy_ticks: int, own_ticks: float) -> Usage:
    return Usage(CpuTimes(total_ticks=10 * busy_ticks, busy_ticks=busy_ticks), own_ticks)


@pytest.mark.parametrize(
    ("before", "after", "share"),
    [
        (usage(100, 50), usage(300, 250), 0.0),
        (usage(100, 50), usage(300, 50), 0.1),
        # Ticks of one CPU are counted a little later than those of a process.
        (usage(100, 50), usage(300, 251), 0.0),
        (None, usage(300, 250), 0.0),
        (usage(100, 50), usage(100, 50), 0.0),
    ],
)
def test_what_others_did_is_what_is_busy_but_not_ours(
    before: Usage | None, after: Usage, share: float
) -> None:
    assert share_of_others(before, after) == pytest.approx(share)


def test_beside_others_nothing_is_judged() -> None:
    result = measured("8", "here", [0.6], QUIET)
    assert is_missed(result)
    assert replace(result, others_share=0.1).verdict is Verdict.BELOW
    busy = replace(result, others_share=0.11)
    assert busy.verdict is Verdict.NOT_JUDGED
    assert not is_missed(busy)


def test_our_own_work_is_not_others() -> None:
    before = usage_now()
    assert before is not None
    sum(number * number for number in range(2_000_000))
    after = usage_now()
    assert after is not None
    assert after.own_ticks > before.own_ticks
    [result] = watched(lambda: [measured("8", "here", [0.5])])
    assert 0.0 <= result.others_share <= 1.0


def test_kernels_carry_the_variation_of_their_own_reads() -> None:
    alone = KernelRow.parse("q4_K 768 2048 1 1 avx512 0.950 0.900 1.000 9.50 10.00 9.00 11.00")
    together = KernelRow.parse("q4_K 768 2048 2 1 avx512 0.855 0.810 0.900 17.10 20.00 10.00 21.00")
    single, scaling = kernel_results([alone, together])
    assert (single.bar.key, single.setting, single.median) == ("1", "Q4_K 768x2048", 0.95)
    assert single.verdict is Verdict.MUST
    assert scaling.bar.key == "4"
    assert scaling.median == pytest.approx(0.9)
    assert scaling.verdict is Verdict.NOT_JUDGED


def tries_of(*results: Measured) -> list[list[Measured]]:
    """One result a try."""
    return [[result] for result in results]


@pytest.mark.parametrize(
    ("tries", "taken", "counted"),
    [
        # Reached at once: nothing more is measured.
        (tries_of(measured("1", "", [0.95])), 1, 0),
        # The better of two missed tries counts, also before a worse third.
        (tries_of(measured("1", "", [0.7]), measured("1", "", [0.8]), measured("1", "", [0.75])), 3, 1),
        # What could be judged counts, even though the other looks better.
        (tries_of(measured("1", "", [0.99], BUSY), measured("1", "", [0.91])), 2, 1),
        (tries_of(measured("1", "", [0.5]), measured("1", "", [0.99], BUSY), measured("1", "", [0.6])), 3, 2),
        # A bar that does not count in CI is not worth a second try.
        (tries_of(measured("5", "", [0.1])), 1, 0),
    ],
)
def test_a_bar_gets_three_tries_and_the_better_median(
    tries: Sequence[list[Measured]], taken: int, counted: int
) -> None:
    left = iter(tries)
    assert best_of(3, lambda: next(left)) == tries[counted]
    assert len(list(left)) == len(tries) - taken
