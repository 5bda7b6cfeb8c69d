"""The bars of `make bench`: what counts as reached, missed, and not judged."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from tests.bench.__main__ import best_of, is_missed
from tests.bench.bars import Measured, Verdict, measured, table
from tests.bench.native_programs import KernelRow, kernel_results

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
