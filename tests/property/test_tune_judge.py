"""Properties of the judge on machines nobody has seen: fair order, no winner by luck or drift, honest bounds."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from planner.calibration import LEAST_BLOCKS
from stratad.tune import Decision, Limits, block_order
from tests.unit.test_tune_judge import SyntheticEngine, judged

SPEEDS = st.dictionaries(
    st.sampled_from("abcdef"), st.floats(1, 200, allow_nan=False), min_size=2, max_size=5
)
DRIFTS = st.floats(-0.2, 0.2)
SEEDS = st.integers(0, 10_000)


@given(st.lists(st.text(min_size=1), min_size=1, max_size=7, unique=True), st.integers(0, 50))
def test_in_every_block_each_arm_has_the_same_mean_place(arms: list[str], block: int) -> None:
    order = block_order(arms, block)
    middle = (len(order) - 1) / 2
    for arm in arms:
        places = [place for place, name in enumerate(order) if name == arm]
        assert len(places) == 2
        assert sum(places) / 2 == middle


@settings(deadline=None, max_examples=60)
@given(SPEEDS, DRIFTS)
def test_without_noise_drift_changes_no_ratio(speeds: dict[str, float], drift: float) -> None:
    outcome = judged(SyntheticEngine(speeds, drift=drift), Limits(1e9, 4))
    assert outcome.leader is not None
    for arm, interval in outcome.comparisons.items():
        assert abs(interval.ratio / (speeds[outcome.leader] / speeds[arm]) - 1) < 1e-9
        assert interval.ratio >= 1 - 1e-9


@settings(deadline=None, max_examples=60)
@given(SPEEDS, DRIFTS, st.floats(0, 0.3), SEEDS, st.integers(0, 40))
def test_bounds_hold_whatever_the_machine_does(
    speeds: dict[str, float], drift: float, noise: float, seed: int, minutes: int
) -> None:
    engine = SyntheticEngine(speeds, drift=drift, noise=noise, seed=seed)
    outcome = judged(engine, Limits(60.0 * minutes, 5))
    assert engine.clock_seconds <= 60.0 * minutes
    assert outcome.block_count <= 5
    for record in outcome.records:
        assert len(record.trials) % 2 == 0
    if outcome.decision in (Decision.WINNER, Decision.TIE):
        assert outcome.second is not None
        assert outcome.comparisons[outcome.second].block_count >= LEAST_BLOCKS
    for interval in outcome.comparisons.values():
        assert interval.low <= interval.ratio <= interval.high


def test_equals_under_noise_seldom_make_a_winner() -> None:
    """Of 200 ties with 3 % noise, few end with a winner, and none far from 1: several looks cost something."""
    outcomes = [
        judged(SyntheticEngine({"one": 50.0, "two": 50.0}, noise=0.03, seed=seed), Limits(1e9, 8))
        for seed in range(200)
    ]
    winners = [outcome for outcome in outcomes if outcome.decision is Decision.WINNER]
    print(f"{len(winners)} of {len(outcomes)} ties ended with a winner")
    # One per cent for each of up to six looks.
    assert len(winners) <= 0.06 * len(outcomes)
    for outcome in winners:
        assert outcome.second is not None
        assert outcome.comparisons[outcome.second].ratio < 1.1


def test_a_real_difference_under_noise_is_found_and_never_turned_round() -> None:
    outcomes = [
        judged(SyntheticEngine({"one": 50.0, "two": 55.0}, noise=0.03, seed=seed), Limits(1e9, 8))
        for seed in range(100)
    ]
    winners = [outcome.leader for outcome in outcomes if outcome.decision is Decision.WINNER]
    assert winners.count("two") >= 90
    assert winners.count("one") == 0
