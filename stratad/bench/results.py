"""What was measured, as values, and what may be concluded from it."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from planner.calibration import LayerCosts, TypeLimits
from stratad.bench.batch_cases import BatchCase, BatchForm, BatchPath
from stratad.bench.cases import LayerCase, ReadCase

# Above this, the rates say more about what else the machine did than about the machine.
RATE_VARIATION_LIMIT = 1.5
# Costs of a layer are microseconds: what varies by less than this is less than a tenth of any cost that decides.
COST_TOLERANCE_SECONDS = 2e-6


@dataclass(frozen=True, slots=True)
class Spread:
    """Median and range of samples of one kind."""

    median: float
    lowest: float
    highest: float

    @classmethod
    def of(cls, samples: Sequence[float]) -> Spread:
        """The spread of one sample or more."""
        return cls(statistics.median(samples), min(samples), max(samples))

    @property
    def variation(self) -> float:
        """The highest over the lowest."""
        return self.highest / self.lowest if self.lowest > 0 else float("inf")


@dataclass(frozen=True, slots=True)
class ReadResult:
    """Bytes a second of one case."""

    case: ReadCase
    rate: Spread

    @property
    def is_steady(self) -> bool:
        """Whether its samples agree well enough to conclude anything."""
        return self.rate.variation <= RATE_VARIATION_LIMIT


@dataclass(frozen=True, slots=True)
class LayerResult:
    """Seconds a layer beyond the work in it."""

    case: LayerCase
    cost: Spread

    @property
    def is_steady(self) -> bool:
        """Whether its samples agree well enough to conclude anything."""
        allowed = max(COST_TOLERANCE_SECONDS, (RATE_VARIATION_LIMIT - 1) * abs(self.cost.median))
        return self.cost.highest - self.cost.lowest <= allowed


@dataclass(frozen=True, slots=True)
class PlacedMemory:
    """A block of memory that was read: where it was to lie, its size, and the share that does lie there."""

    node_ids: tuple[int, ...]
    size_bytes: int
    local_ratio: float


@dataclass(frozen=True, slots=True)
class CopyResult:
    """Host-to-device bytes a second of one device from one node, alone and while the pool reads.

    `pool_rate` is what the pool reads meanwhile, in bytes a second.
    """

    device: str
    node_id: int
    alone: Spread
    together: Spread
    pool_rate: Spread


@dataclass(frozen=True, slots=True)
class BatchPoint:
    """Seconds of one pass by one path with so many tokens for each matrix, round by round."""

    tokens: int
    path: BatchPath
    seconds: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class BatchResult:
    """One case in one form, by every path there is for it. All points have as many rounds."""

    case: BatchCase
    form: BatchForm
    points: tuple[BatchPoint, ...]

    @property
    def paths(self) -> tuple[BatchPath, ...]:
        """The paths that were measured."""
        return tuple(dict.fromkeys(point.path for point in self.points))

    def seconds(self, tokens: int, path: BatchPath) -> tuple[float, ...]:
        """The rounds of one point, which must have been measured."""
        return next(point.seconds for point in self.points if (point.tokens, point.path) == (tokens, path))


@dataclass(frozen=True, slots=True)
class Measurements:
    """Everything one run measured."""

    memories: tuple[PlacedMemory, ...]
    reads: tuple[ReadResult, ...]
    layers: tuple[LayerResult, ...]
    copies: tuple[CopyResult, ...]
    round_count: int
    batches: tuple[BatchResult, ...] = ()


@dataclass(frozen=True, slots=True)
class Conclusions:
    """What the planner takes of it, and what to say to people.

    `is_trustworthy` is False when plain reads themselves varied: then nothing is concluded.
    """

    bandwidth: tuple[ReadResult, ...]
    sweep: tuple[ReadResult, ...]
    core_rate: float | None
    layer_costs: LayerCosts
    findings: tuple[str, ...]
    is_trustworthy: bool
    batch_limits: tuple[TypeLimits, ...] = ()
