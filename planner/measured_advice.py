"""Soft rules that compare a chosen plan with what a benchmark measured here. Each gives a Reason or None."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from planner.candidates import Draft
from planner.facts import Facts
from planner.hardware import GENERATION_ROWS, generation_of
from planner.quantity import count_of
from planner.rates import MachineRates
from planner.reason import Effect, Reason

if TYPE_CHECKING:
    from planner.calibration import Benchmark

# Half width is half; one sample may be off by a tenth.
DEGRADED_LINK_SHARE = 0.6
KNEE_SHARE = 0.98


@dataclass(frozen=True, slots=True)
class Decided:
    """The chosen draft, with the rates and the benchmark it was weighed by."""

    draft: Draft
    rates: MachineRates
    benchmark: Benchmark | None


def link_degraded(facts: Facts, decided: Decided) -> Reason | None:
    """Warn that the measured link is far below its generation's.

    Source: seed 3413 (a link at half width cost one socket 17 to 28 % and the split nothing),
    pub-ik-201-snoop (one snoop mode cost 2.8 times on E5 v3/v4).
    """
    generation = generation_of(facts.topology.cpu_model)
    usual = GENERATION_ROWS[generation].link_bandwidth
    measured = decided.rates.link_bandwidth
    has_link = decided.benchmark is not None and any(
        cell.reader_node != cell.memory_node for cell in decided.benchmark.bandwidth
    )
    if not has_link or len(facts.groups) < 2 or measured >= DEGRADED_LINK_SHARE * usual:
        return None
    return Reason(
        code="link-degraded",
        effect=Effect.WARNS,
        message=f"the link between packages was measured at {measured / 1e9:.1f} GB/s, "
        f"{generation} usually has {usual / 1e9:.0f}",
        evidence={"link_bytes_per_second": measured, "usual_bytes_per_second": usual},
        remedy="look for machine-check records of the link, and at the snoop mode in the firmware",
    )


def workers_beyond_knee(facts: Facts, decided: Decided) -> Reason | None:
    """Note that the sweep saw no more speed with the last workers of a node.

    Source: pub-colibri-234 (96 of 128 workers were best). A sweep explains and does not decide (D10).
    """
    layout, sweep = decided.draft.layout, decided.rates.sweep
    if layout is None or not sweep:
        return None
    best = max(point.bytes_per_second for point in sweep)
    knee = min(point.worker_count for point in sweep if point.bytes_per_second >= KNEE_SHARE * best)
    most = max(layout.worker_count_of(index) for index in range(len(layout.slices)))
    if most <= knee:
        return None
    return Reason(
        code="workers-beyond-knee",
        effect=Effect.INFORMS,
        message=f"a slice has {count_of(most, 'worker')}; the sweep reached its best with {knee}",
        evidence={"workers": most, "knee": knee},
        remedy=f"try {knee} workers a slice with `stratactl tune`",
    )


MEASURED_RULES: tuple[Callable[[Facts, Decided], Reason | None], ...] = (link_degraded, workers_beyond_knee)
