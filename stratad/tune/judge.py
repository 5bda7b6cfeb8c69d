"""The judge: which arm starts when, when enough is known, and what follows. Pure but for the engine and the clock.

A block starts every arm twice, in an order and then in its mirror image (A B C C B A): whatever changes evenly
over the block (heat, other guests of the host, memory that fills up) changes both arms' means alike and cancels in
their ratio. A block is one value; what its two halves have in common is not counted twice.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from planner import Objective
from planner.calibration import LEAST_BLOCKS
from stratad.tune.statistics import RatioInterval, ratio_interval
from stratad.tune.trial import ArmFailed, Trial, TrialEngine

# Nearer than this, two arms are the same to whoever waits for the answer; start-to-start spread is of this size.
EQUAL_SHARE = 0.03

# Called before every start with what it is, and how much of the allowed time or rounds is used, 0 to 1.
Report = Callable[[str, float], None]


class Decision(StrEnum):
    """What a comparison came to."""

    WINNER = "winner"
    TIE = "tie"
    UNDECIDED = "undecided"
    NOTHING = "nothing"


@dataclass(frozen=True, slots=True)
class Limits:
    """When the judge gives up: after so many blocks, or seconds. It never starts an arm after that."""

    seconds: float
    blocks: int


@dataclass(slots=True)
class Record:
    """One arm's trials by block (two each), and why it left, if it did."""

    arm: str
    blocks: dict[int, tuple[Trial, ...]] = field(default_factory=dict)
    failure: str | None = None

    @property
    def trials(self) -> tuple[Trial, ...]:
        """All trials of whole blocks, in order."""
        return tuple(trial for index in sorted(self.blocks) for trial in self.blocks[index])


@dataclass(frozen=True, slots=True)
class Outcome:
    """All records, the fastest arm, and how much faster it is than each other one.

    `second` is what the leader was held against: the reference, or where that leads or failed the next best.
    """

    records: tuple[Record, ...]
    decision: Decision
    leader: str | None
    second: str | None
    comparisons: dict[str, RatioInterval]
    block_count: int
    stopped_because: str

    def record(self, arm: str) -> Record:
        """The record of an arm."""
        return next(record for record in self.records if record.arm == arm)

    @property
    def answers_agree(self) -> bool:
        """Whether every trial of every arm gave the same tokens."""
        return len({trial.answer_digest for record in self.records for trial in record.trials}) <= 1


class Judge:
    """Compares arms until one is clearly faster, or all are as good as equal.

    Args:
        arms: At least one; the reference is among them.
        reference: What would run if nobody measured: the leader must beat it to count as a winner.
        objective: Which speed counts.
        limits: When to give up.
        seed: Of the bootstrap.
    """

    def __init__(
        self, arms: Sequence[str], reference: str, objective: Objective, limits: Limits, seed: int = 0
    ) -> None:
        assert reference in arms, "the reference is one of the arms"
        self._records = {arm: Record(arm) for arm in arms}
        self._reference, self._objective = reference, objective
        self._limits, self._seed = limits, seed
        self._open = list(arms)
        self._block_count = 0
        self._start_count = 0
        self._elapsed_seconds = 0.0

    def run(self, engine: TrialEngine, clock: Callable[[], float], report: Report) -> Outcome:
        """Start arms, block after block; see `stop_reason` for the end."""
        start_seconds = clock()

        def is_late() -> bool:
            self._elapsed_seconds = clock() - start_seconds
            return self._elapsed_seconds >= self._limits.seconds

        because = self._stop_reason(is_late=is_late())
        while because is None:
            order = block_order(self._open, self._block_count)
            for place, arm in enumerate(order):
                if is_late():
                    # Half a block has no mirror image.
                    self._drop_block()
                    break
                report(
                    f"block {self._block_count + 1}, start {place + 1} of {len(order)}: {arm}",
                    self._elapsed_seconds / self._limits.seconds,
                )
                self._try(arm, engine)
            self._close_block()
            because = self._stop_reason(is_late=is_late())
        return self._outcome(because)

    def _drop_block(self) -> None:
        for record in self._records.values():
            record.blocks.pop(self._block_count, None)

    def _try(self, arm: str, engine: TrialEngine) -> None:
        record = self._records[arm]
        if record.failure is not None:
            return
        self._start_count += 1
        try:
            trial = engine.try_arm(arm)
        except ArmFailed as failure:
            record.failure = str(failure)
            return
        record.blocks[self._block_count] = (*record.blocks.get(self._block_count, ()), trial)

    def _close_block(self) -> None:
        """Counts the block, without arms that broke in the middle of it."""
        for record in self._records.values():
            if len(record.blocks.get(self._block_count, ())) < 2:
                record.blocks.pop(self._block_count, None)
        if any(self._block_count in record.blocks for record in self._records.values()):
            self._block_count += 1
        self._open = [arm for arm in self._open if self._records[arm].failure is None]

    def _stop_reason(self, *, is_late: bool) -> str | None:
        """Why there is nothing more to start; None to go on. Arms that are clearly slower are closed on the way."""
        running = [record for record in self._records.values() if record.failure is None]
        if len(running) < 2:
            return "fewer than two arms run"
        if self._block_count >= LEAST_BLOCKS:
            leader = self._leader()
            assert leader is not None
            intervals = {arm: self._interval(leader, arm) for arm in self._open if arm != leader}
            slower = {arm for arm, interval in intervals.items() if interval.is_faster}
            unsettled = [
                arm
                for arm, interval in intervals.items()
                if arm not in slower and not interval.is_equal_within(EQUAL_SHARE)
            ]
            if not unsettled:
                return "every difference is clear"
            self._open = [arm for arm in self._open if arm not in slower]
        if self._block_count >= self._limits.blocks:
            return f"{self._block_count} blocks were measured"
        return self._time_is_up() if is_late else None

    def _time_is_up(self) -> str:
        """Says so, and where that was too early to judge, how long the least number of blocks would take."""
        if self._block_count >= LEAST_BLOCKS or self._start_count == 0:
            return "the time is up"
        starts = 2 * len(self._open) * LEAST_BLOCKS
        minutes = math.ceil(self._elapsed_seconds / self._start_count * starts / 60)
        return f"the time is up; {LEAST_BLOCKS} blocks of {len(self._open)} arms take about {minutes} minutes"

    def _leader(self) -> str | None:
        """The arm with the best mean, over the blocks that all open arms have."""
        scores = {
            arm: statistics.mean(self._block_logs(arm).values())
            for arm in self._open
            if self._records[arm].failure is None and self._records[arm].blocks
        }
        return max(scores, key=lambda arm: (scores[arm], arm == self._reference), default=None)

    def _block_logs(self, arm: str) -> dict[int, float]:
        return {
            index: statistics.mean(math.log(trial.speed(self._objective)) for trial in trials)
            for index, trials in self._records[arm].blocks.items()
        }

    def _interval(self, first: str, second: str) -> RatioInterval:
        """How much faster the first is, over the blocks that both have."""
        ours, theirs = self._block_logs(first), self._block_logs(second)
        shared = sorted(ours.keys() & theirs.keys())
        return ratio_interval([ours[index] - theirs[index] for index in shared], self._seed)

    def _outcome(self, because: str) -> Outcome:
        leader = self._leader()
        others = [
            arm
            for arm, record in self._records.items()
            if arm != leader and record.blocks and record.failure is None
        ]
        comparisons = {} if leader is None else {arm: self._interval(leader, arm) for arm in others}
        second = self._reference if self._reference in comparisons else None
        if second is None:
            second = min(comparisons, key=lambda arm: (comparisons[arm].ratio, arm), default=None)
        return Outcome(
            records=tuple(self._records.values()),
            decision=Decision.NOTHING if second is None else _decision(comparisons[second]),
            leader=leader,
            second=second,
            comparisons=comparisons,
            block_count=self._block_count,
            stopped_because=because,
        )


def block_order(arms: Sequence[str], block_index: int) -> tuple[str, ...]:
    """Give a block's starts: every arm once and then mirrored; each block begins with another arm."""
    if not arms:
        return ()
    first = block_index % len(arms)
    turned = (*arms[first:], *arms[:first])
    return (*turned, *reversed(turned))


def _decision(interval: RatioInterval) -> Decision:
    if interval.block_count < LEAST_BLOCKS:
        return Decision.UNDECIDED
    if interval.is_faster:
        return Decision.WINNER
    return Decision.TIE if interval.is_equal_within(EQUAL_SHARE) else Decision.UNDECIDED
