"""The judge on synthetic engines with a clock of their own: a known winner, ties, noise, drift, failures."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Mapping
from itertools import pairwise

import pytest

from planner import Objective
from planner.calibration import LEAST_BLOCKS
from stratad.tune import ArmFailed, Decision, Judge, Limits, Outcome, Trial, block_order, ratio_interval
from stratad.tune.statistics import widening

MANY = Limits(seconds=1e9, blocks=12)


class SyntheticEngine:
    """Arms of known speeds on a machine that drifts and rustles; every start takes a minute of its own clock.

    `drift` is the relative change a start, the same for whoever runs; `noise` the standard deviation of a start.
    """

    def __init__(
        self, speeds: Mapping[str, float], *, drift: float = 0.0, noise: float = 0.0, seed: int = 1
    ) -> None:
        self._speeds, self._drift, self._noise = speeds, drift, noise
        self._random = random.Random(seed)
        self.starts: list[str] = []
        self.failing: Callable[[str, int], bool] = lambda arm, start: False

    @property
    def clock_seconds(self) -> float:
        return 60.0 * len(self.starts)

    def try_arm(self, arm: str) -> Trial:
        self.starts.append(arm)
        if self.failing(arm, self.starts.count(arm)):
            raise ArmFailed("it broke")
        machine = math.exp(self._drift * len(self.starts) + self._random.gauss(0, self._noise))
        return Trial(self._speeds[arm] * machine, 10 * self._speeds[arm] * machine, 1.0, "same")


def judged(
    engine: SyntheticEngine,
    limits: Limits = MANY,
    objective: Objective = Objective.DECODE,
    reference: str | None = None,
) -> Outcome:
    arms = list(engine._speeds)
    judge = Judge(arms, reference or arms[0], objective, limits)
    return judge.run(engine, lambda: engine.clock_seconds, lambda what, fraction: None)


def test_a_clear_winner_is_found_in_the_fewest_blocks() -> None:
    engine = SyntheticEngine({"one": 50.0, "two": 55.0}, noise=0.01)
    outcome = judged(engine)
    assert (outcome.decision, outcome.leader, outcome.second) == (Decision.WINNER, "two", "one")
    assert outcome.block_count == LEAST_BLOCKS
    assert outcome.stopped_because == "every difference is clear"
    interval = outcome.comparisons["one"]
    assert interval.low < 1.1 < interval.high
    assert interval.low > 1


def test_equal_arms_end_as_a_tie_and_not_as_a_winner() -> None:
    outcome = judged(SyntheticEngine({"one": 50.0, "two": 50.1}, noise=0.004))
    assert outcome.decision is Decision.TIE
    assert outcome.stopped_because == "every difference is clear"


def test_noise_that_hides_the_difference_stays_undecided() -> None:
    outcome = judged(SyntheticEngine({"one": 50.0, "two": 51.0}, noise=0.2), Limits(1e9, 5))
    assert outcome.decision is Decision.UNDECIDED
    assert outcome.stopped_because == "5 blocks were measured"


@pytest.mark.parametrize("drift", [0.02, -0.02, 0.1])
def test_a_machine_that_drifts_makes_no_winner_of_equals(drift: float) -> None:
    engine = SyntheticEngine({"one": 50.0, "two": 50.0}, drift=drift)
    outcome = judged(engine)
    assert outcome.decision is Decision.TIE
    assert outcome.comparisons.popitem()[1].ratio == pytest.approx(1.0)
    # The plain ranges would have shown one arm's starts far apart.
    rates = [trial.decode_tokens_per_second for trial in outcome.record("one").trials]
    assert max(rates) / min(rates) > 1.1


@pytest.mark.parametrize("drift", [-0.03, 0.03])
def test_drift_hides_no_winner(drift: float) -> None:
    """Between first and last start the machine changes by more than the arms differ."""
    outcome = judged(SyntheticEngine({"one": 50.0, "two": 54.0}, drift=drift))
    assert (outcome.decision, outcome.leader) == (Decision.WINNER, "two")
    assert outcome.comparisons["one"].ratio == pytest.approx(1.08)


def test_every_block_is_its_own_mirror_image_and_begins_with_another_arm() -> None:
    arms = ("a", "b", "c")
    orders = [block_order(arms, index) for index in range(6)]
    assert orders[0] == ("a", "b", "c", "c", "b", "a")
    for order in orders:
        assert order == order[::-1]
        assert sorted(order) == sorted(arms * 2)
    assert all(first[0] != second[0] for first, second in pairwise(orders))


def test_clearly_slower_arms_are_not_started_any_more() -> None:
    engine = SyntheticEngine({"best": 50.0, "close": 49.0, "bad": 20.0}, noise=0.05, seed=4)
    outcome = judged(engine, Limits(1e9, 8))
    assert len(outcome.record("bad").trials) == 2 * LEAST_BLOCKS
    assert len(outcome.record("close").trials) > 2 * LEAST_BLOCKS
    assert outcome.comparisons["bad"].is_faster


def test_the_leader_is_held_against_the_default_and_not_against_its_neighbour() -> None:
    """Two arms tie at the top, and both beat what would run by default."""
    engine = SyntheticEngine({"default": 40.0, "left": 50.0, "right": 50.0}, noise=0.002)
    outcome = judged(engine)
    assert outcome.decision is Decision.WINNER
    assert outcome.second == "default"
    assert outcome.leader in {"left", "right"}


def test_a_default_that_leads_is_held_against_the_next_best() -> None:
    outcome = judged(SyntheticEngine({"default": 50.0, "next": 45.0, "last": 30.0}, noise=0.002))
    assert (outcome.leader, outcome.second, outcome.decision) == ("default", "next", Decision.WINNER)


def test_an_arm_that_does_not_start_is_left_out_with_its_reason() -> None:
    engine = SyntheticEngine({"good": 50.0, "other": 45.0, "broken": 99.0}, noise=0.002)
    engine.failing = lambda arm, start: arm == "broken"
    outcome = judged(engine)
    assert outcome.record("broken").failure == "it broke"
    assert outcome.record("broken").trials == ()
    assert engine.starts.count("broken") == 1
    assert (outcome.leader, outcome.second) == ("good", "other")


def test_an_arm_that_breaks_midway_never_wins_and_keeps_its_whole_blocks() -> None:
    engine = SyntheticEngine({"good": 50.0, "fragile": 80.0, "other": 45.0}, noise=0.002)
    engine.failing = lambda arm, start: arm == "fragile" and start == 4
    outcome = judged(engine)
    record = outcome.record("fragile")
    assert record.failure == "it broke"
    assert len(record.trials) == 2
    assert outcome.leader == "good"
    assert "fragile" not in outcome.comparisons


def test_with_one_arm_left_nothing_was_compared() -> None:
    engine = SyntheticEngine({"good": 50.0, "broken": 99.0})
    engine.failing = lambda arm, start: arm == "broken"
    outcome = judged(engine)
    assert outcome.decision is Decision.NOTHING
    assert outcome.stopped_because == "fewer than two arms run"


def test_a_default_that_breaks_leaves_the_others_to_each_other() -> None:
    engine = SyntheticEngine({"default": 60.0, "one": 50.0, "two": 40.0}, noise=0.002)
    engine.failing = lambda arm, start: arm == "default" and start == 3
    outcome = judged(engine)
    assert (outcome.leader, outcome.second, outcome.decision) == ("one", "two", Decision.WINNER)


@pytest.mark.parametrize("starts", [5, 6, 7])
def test_no_arm_starts_after_the_time_is_up_and_half_a_block_is_dropped(starts: int) -> None:
    engine = SyntheticEngine({"one": 50.0, "two": 55.0}, noise=0.01)
    outcome = judged(engine, Limits(seconds=60 * starts, blocks=100))
    assert len(engine.starts) == starts
    assert outcome.block_count == 1
    assert len(outcome.record("one").trials) == len(outcome.record("two").trials) == 2
    assert outcome.decision is Decision.UNDECIDED
    # Two arms, twice in each of three blocks, a minute each.
    assert outcome.stopped_because == "the time is up; 3 blocks of 2 arms take about 12 minutes"


def test_the_objective_says_which_speed_counts() -> None:
    class Opposite(SyntheticEngine):
        def try_arm(self, arm: str) -> Trial:
            trial = super().try_arm(arm)
            return Trial(trial.decode_tokens_per_second, 1e4 / trial.decode_tokens_per_second)

    def leader(objective: Objective) -> str | None:
        return judged(Opposite({"one": 50.0, "two": 60.0}), objective=objective).leader

    assert leader(Objective.DECODE) == "two"
    assert leader(Objective.PROMPT) == "one"
    assert judged(Opposite({"one": 50.0, "two": 60.0}), objective=Objective.BALANCED).decision is Decision.TIE


def test_different_answers_are_noticed() -> None:
    class Different(SyntheticEngine):
        def try_arm(self, arm: str) -> Trial:
            trial = super().try_arm(arm)
            return Trial(trial.decode_tokens_per_second, 1.0, None, arm)

    assert not judged(Different({"one": 50.0, "two": 60.0})).answers_agree
    assert judged(SyntheticEngine({"one": 50.0, "two": 60.0})).answers_agree


def test_few_blocks_get_no_less_than_students_interval() -> None:
    """For three values Student's interval is 9.925 * s / sqrt(3) on either side; their bootstrap ends at 0.11."""
    interval = ratio_interval([0.09, 0.10, 0.11], seed=0)
    half = 9.925 * 0.01 / math.sqrt(3)
    assert math.log(interval.low) == pytest.approx(0.10 - half)
    assert math.log(interval.high) == pytest.approx(0.10 + half)


def test_many_blocks_get_the_bootstraps_interval() -> None:
    """Values with one long tail: Student's interval is symmetric, the bootstrap's reaches further up."""
    values = [0.0] * 24 + [0.5] * 2
    interval = ratio_interval(values, seed=0)
    centre = sum(values) / len(values)
    assert math.log(interval.high) - centre > 1.1 * (centre - math.log(interval.low))
    assert widening(3) == pytest.approx(4.72, abs=0.01)
    assert widening(200) == pytest.approx(1.07, abs=0.01)


def test_the_same_differences_and_seed_give_the_same_interval() -> None:
    generator = random.Random(2)
    values = [generator.expovariate(20) for _ in range(20)]
    assert ratio_interval(values, seed=3) == ratio_interval(values, seed=3)
    assert ratio_interval(values, seed=3) != ratio_interval(values, seed=4)


def test_one_block_says_nothing() -> None:
    interval = ratio_interval([0.5], seed=0)
    assert (interval.low, interval.high) == (0.0, math.inf)
    assert not interval.is_faster
    assert not interval.is_equal_within(10.0)
