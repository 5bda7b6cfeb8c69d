"""How sure a ratio of two speeds is: a bootstrap over mirrored blocks, widened for their small number."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

CONFIDENCE = 0.95
_RESAMPLES = 4000
# Student's t at 97.5 per cent for 1, 2, ... degrees of freedom; any table of it.
_STUDENT = (
    12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228,
    2.201, 2.179, 2.160, 2.145, 2.131, 2.120, 2.110, 2.101, 2.093, 2.086,
    2.080, 2.074, 2.069, 2.064, 2.060, 2.056, 2.052, 2.048, 2.045, 2.042,
)  # fmt: skip
_NORMAL = 1.960


@dataclass(frozen=True, slots=True)
class RatioInterval:
    """A ratio of two speeds, and where it lies with 95 per cent confidence. One block says nothing: 0 to infinity."""

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

    A percentile bootstrap of few values is too narrow: it divides by n where n - 1 is right, and takes the normal
    distribution's tails for Student's. It is widened about its centre by both, which for normal values makes it
    Student's interval.

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
    return RatioInterval(
        math.exp(centre),
        math.exp(centre + factor * (float(low) - centre)),
        math.exp(centre + factor * (float(high) - centre)),
        count,
    )


def widening(count: int) -> float:
    """Give the factor by which a percentile bootstrap of so many values (at least 2) is too narrow."""
    student = _STUDENT[min(count - 1, len(_STUDENT)) - 1]
    return student / _NORMAL * math.sqrt(count / (count - 1))
