"""How sure a ratio of two speeds is: a bootstrap over mirrored blocks, widened for their small number."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

# The judge looks after every block, and each look is a chance to be wrong: at 95 per cent, 31 of 200 pairs of equal
# arms with 3 % noise ended with a winner; at 99 per cent, two (tests/property/test_tune_judge.py).
CONFIDENCE = 0.99
_RESAMPLES = 4000
# Student's t at 99.5 per cent for 1, 2, ... degrees of freedom; any table of it.
_STUDENT = (
    63.657, 9.925, 5.841, 4.604, 4.032, 3.707, 3.499, 3.355, 3.250, 3.169,
    3.106, 3.055, 3.012, 2.977, 2.947, 2.921, 2.898, 2.878, 2.861, 2.845,
    2.831, 2.819, 2.807, 2.797, 2.787, 2.779, 2.771, 2.763, 2.756, 2.750,
)  # fmt: skip
_NORMAL = 2.576


@dataclass(frozen=True, slots=True)
class RatioInterval:
    """A ratio of two speeds, and where it lies with 99 per cent confidence. One block says nothing: 0 to infinity."""

    ratio: float
    low: float
    high: float
    block_count: int

    @property
    def is_faster(self) -> bool:
        """Whether the first is faster beyond doubt."""
        return self.low > 1

    def is_equal_within(self, share: float) -> bool:
        """Whether both differ by no more than this share beyond doubt."""
        return self.low > 1 / (1 + share) and self.high < 1 + share


def ratio_interval(differences: Sequence[float], seed: int) -> RatioInterval:
    """Give the interval for a ratio from the differences of logarithms, one for each block.

    A percentile bootstrap of few values is too narrow: it divides by n where n - 1 is right, takes the normal
    distribution's tails for Student's, and never leaves the range of the values. So it is widened about its centre by
    the first two, and is never narrower than Student's interval.

    Args:
        differences: log(speed of the first) - log(speed of the second), block by block; at least one.
        seed: Of the resampling; the same differences and seed give the same interval.
    """
    values = np.asarray(differences, dtype=np.float64)
    count, centre = len(values), float(values.mean())
    if count < 2:
        return RatioInterval(math.exp(centre), 0.0, math.inf, count)
    generator = np.random.default_rng(seed)
    means = values[generator.integers(0, count, (_RESAMPLES, count))].mean(axis=1)
    tail = (1 - CONFIDENCE) / 2
    low, high = np.quantile(means, (tail, 1 - tail))
    factor = widening(count)
    student = _student(count) * float(values.std(ddof=1)) / math.sqrt(count)
    return RatioInterval(
        math.exp(centre),
        math.exp(min(centre + factor * (float(low) - centre), centre - student)),
        math.exp(max(centre + factor * (float(high) - centre), centre + student)),
        count,
    )


def widening(count: int) -> float:
    """Give the factor by which a percentile bootstrap of so many values (at least 2) is too narrow."""
    return _student(count) / _NORMAL * math.sqrt(count / (count - 1))


def _student(count: int) -> float:
    return _STUDENT[min(count - 1, len(_STUDENT)) - 1]
