"""What the native core has to reach, as ratios, and the table that says whether it did."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

from stratad.machine.load import BUSY_SHARE_LIMIT


class Verdict(Enum):
    """How a measure stands against its bar."""

    GOAL = "goal"
    MUST = "must"
    BELOW = "BELOW"
    # What we are held against varied too much during the run: the machine was busy with something else.
    NOT_JUDGED = "not judged"


@dataclass(frozen=True, slots=True)
class Bar:
    """One measure: `must` holds or the run fails, `goal` is what we want. `is_cost`: smaller is better."""

    key: str
    measure: str
    must: float
    goal: float
    in_ci: bool
    is_cost: bool = False

    def judge(self, value: float) -> Verdict:
        """Where a median stands."""
        reached = [value <= limit if self.is_cost else value >= limit for limit in (self.goal, self.must)]
        return Verdict.GOAL if reached[0] else Verdict.MUST if reached[1] else Verdict.BELOW

    def is_better(self, one: float, other: float) -> bool:
        """Whether the first of two medians is the better one."""
        return one < other if self.is_cost else one > other


BARS = (
    Bar("1", "row kernels over a plain read, AVX-512, 1 worker", 0.90, 0.97, True),
    Bar("2", "the same, further 4- and 5-bit types", 0.80, 0.92, True),
    Bar("3", "row kernels over a plain read, AVX2, 1 worker", 0.75, 0.90, True),
    Bar("batch", "row kernels over a plain read, AVX-512, 4 tokens", 0.60, 0.80, False),
    Bar("4", "row kernels 1 -> 2 workers, over the plain read's own", 0.85, 0.95, True),
    Bar("5", "decode over plain llama.cpp", 1.6, 2.2, False),
    Bar("6", "prefill of 512 tokens over plain llama.cpp", 1.5, 2.5, False),
    Bar("7", "a layer's experts over 512 tokens, GFLOPS over kt-kernel", 0.7, 1.0, False),
    Bar("8", "pool dispatch and join over OpenMP fork and join", 0.5, 0.35, True, is_cost=True),
    Bar("9", "pool barrier over OpenMP barrier", 0.8, 0.6, True, is_cost=True),
    Bar("10", "arena placed, filled and locked over reading into fresh memory", 0.8, 0.95, True),
    Bar("11", "load over llama.cpp's load", 2.0, 3.0, False),
    Bar("streams", "several streams through the engine over a loop of llama.cpp's own", 1.2, 1.6, False),
    Bar("http", "what HTTP adds to a step of these streams, by the clock", 0.05, 0.02, False, is_cost=True),
    Bar("http-cpu", "CPU time of the server's thread over the step", 0.05, 0.02, False, is_cost=True),
    Bar("12", "share of a decode step that is not reading weights", 0.20, 0.10, False, is_cost=True),
)
BAR_OF = {bar.key: bar for bar in BARS}

# Above this, what we are held against says more about the machine's other guests than about us.
REFERENCE_VARIATION_LIMIT = 1.5


@dataclass(frozen=True, slots=True)
class Measured:
    """A bar's samples in one setting: the median of per-round ratios counts.

    `reference_variation` is the largest over the smallest of what they were held against (mostly a plain read),
    `others_share` the part of all CPUs' time, 0 to 1, that went to somebody else.
    """

    bar: Bar
    setting: str
    median: float
    lowest: float
    highest: float
    reference_variation: float = 1.0
    others_share: float = 0.0

    @property
    def is_judged(self) -> bool:
        """Whether the machine was quiet enough."""
        return self.verdict is not Verdict.NOT_JUDGED

    @property
    def is_reached(self) -> bool:
        """Whether the bar was seen to hold."""
        return self.verdict in (Verdict.GOAL, Verdict.MUST)

    @property
    def verdict(self) -> Verdict:
        """Where it stands; on a busy machine neither a missed nor a reached bar proves anything."""
        is_busy = self.others_share > BUSY_SHARE_LIMIT
        if is_busy or self.reference_variation > REFERENCE_VARIATION_LIMIT:
            return Verdict.NOT_JUDGED
        return self.bar.judge(self.median)


def measured(
    key: str, setting: str, ratios: Sequence[float], references: Sequence[float] = (1.0,)
) -> Measured:
    """Median and range of per-round ratios; `references` are the same rounds' values they are held against."""
    return Measured(
        BAR_OF[key],
        setting,
        statistics.median(ratios),
        min(ratios),
        max(ratios),
        max(references) / min(references),
    )


def table(results: Sequence[Measured]) -> str:
    """All results in one Markdown table."""
    lines = [
        "| # | measure | setting | must | goal | median | range | verdict |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for result in results:
        bar, sign = result.bar, "<= " if result.bar.is_cost else ""
        lines.append(
            f"| {bar.key} | {bar.measure} | {result.setting} | {sign}{bar.must:g} | {sign}{bar.goal:g} | "
            f"{result.median:.2f} | {result.lowest:.2f}-{result.highest:.2f} | {result.verdict.value} |"
        )
    return "\n".join(lines)
