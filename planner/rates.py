"""How fast this machine reads and how long its cores take to work together: measured, stated, or assumed."""

from __future__ import annotations

import bisect
import itertools
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING

from planner.cost import CostConstants
from planner.facts import Facts
from planner.hardware import CHANNEL_BYTES, GENERATION_ROWS, generation_of
from planner.quantity import median

if TYPE_CHECKING:
    from planner.calibration import Benchmark, SweepPoint

# What remains uncertain when streaming and working together were both measured on the box itself.
MEASURED_UNCERTAINTY = 0.10


@dataclass(frozen=True, slots=True)
class MachineRates:
    """Bytes a second. `node_bandwidth` is by memory node; `sweep` is what workers of one node reach locally.

    `uncertainty` is the relative error to expect of a rate, `basis` says in words what the rates rest on.
    """

    node_bandwidth: Mapping[int, float]
    link_bandwidth: float
    core_rate: float
    uncertainty: float
    basis: str
    is_measured: bool = False
    sweep: tuple[SweepPoint, ...] = ()

    def swept_rate(self, worker_count: int) -> float | None:
        """Give the measured rate of so many workers of a node, between points in proportion; None without a
        sweep.

        Above the last point it stays level: more workers than measured are not known to add anything.
        """
        if not self.sweep:
            return None
        counts = [point.worker_count for point in self.sweep]
        index = bisect.bisect_left(counts, worker_count)
        if index == len(counts):
            return self.sweep[-1].bytes_per_second
        upper = self.sweep[index]
        lower_count = counts[index - 1] if index else 0
        lower_rate = self.sweep[index - 1].bytes_per_second if index else 0.0
        part = (worker_count - lower_count) / (upper.worker_count - lower_count)
        return lower_rate + part * (upper.bytes_per_second - lower_rate)


def machine_rates(facts: Facts, benchmark: Benchmark | None) -> MachineRates:
    """Give the machine's rates: measured where the benchmark has them, else the CPU generation's defaults."""
    generation = generation_of(facts.topology.cpu_model)
    row = GENERATION_ROWS[generation]
    memory = facts.request.memory
    channels = memory.channels_per_package or row.channels_per_package
    megatransfers = memory.megatransfers or row.megatransfers
    package = channels * megatransfers * 1e6 * CHANNEL_BYTES * row.channel_share
    stated = memory.node_bandwidth
    nodes = {
        budget.node_id: stated or package / len(facts.groups[budget.group_index]) for budget in facts.budgets
    }
    known = "stated node bandwidth, " if stated else ""
    rates = MachineRates(
        node_bandwidth=nodes,
        link_bandwidth=row.link_bandwidth,
        core_rate=row.core_rate,
        uncertainty=row.uncertainty,
        basis=f"{known}defaults of {generation.value}",
    )
    return rates if benchmark is None else _measured(rates, facts, benchmark)


def _measured(rates: MachineRates, facts: Facts, benchmark: Benchmark) -> MachineRates:
    group_of = {budget.node_id: budget.group_index for budget in facts.budgets}
    cells = {(cell.reader_node, cell.memory_node): cell.bytes_per_second for cell in benchmark.bandwidth}
    local = {node: cells.get((node, node), rate) for node, rate in rates.node_bandwidth.items()}
    crossing = [
        rate
        for (reader, memory), rate in cells.items()
        if reader in group_of and memory in group_of and group_of[reader] != group_of[memory]
    ]
    nodes_of_package = max(map(len, facts.groups), default=1)
    # The median, so that one odd cell (27.9 among 94 GB/s, pub-ik-201-mlc) decides nothing.
    link = median(crossing) * nodes_of_package if crossing else rates.link_bandwidth
    sweep = _rising(benchmark.worker_sweep)
    # A sweep measures local reads only. Remote ones must profit from the same cores, or a benchmark of one
    # socket would speak for one socket (FreeToken #18: +30 % in isolation, -28 % when serving).
    per_worker = max((point.bytes_per_second / point.worker_count for point in sweep), default=None)
    core_rate = benchmark.core_rate or per_worker or rates.core_rate
    return replace(
        rates,
        node_bandwidth=local,
        link_bandwidth=link,
        core_rate=core_rate,
        uncertainty=MEASURED_UNCERTAINTY if benchmark.is_complete else rates.uncertainty,
        basis=_measured_basis(benchmark) if benchmark.is_complete else f"partly measured, {rates.basis}",
        is_measured=benchmark.is_complete,
        sweep=sweep,
    )


def _measured_basis(benchmark: Benchmark) -> str:
    when = f" ({benchmark.measured_at})" if benchmark.measured_at else ""
    return f"measured by stratactl bench{when}"


def _rising(sweep: tuple[SweepPoint, ...]) -> tuple[SweepPoint, ...]:
    """Give the points with the best rate of each worker count, one for each count."""
    ordered = sorted(sweep, key=lambda point: (point.worker_count, point.bytes_per_second))
    by_count = itertools.groupby(ordered, key=lambda point: point.worker_count)
    return tuple(tuple(points)[-1] for count, points in by_count if count > 0)


def measured_constants(constants: CostConstants, benchmark: Benchmark | None) -> CostConstants:
    """Give the constants with every layer cost replaced that was measured."""
    if benchmark is None:
        return constants
    costs = {
        field.name: getattr(benchmark.layer_costs, field.name) for field in fields(benchmark.layer_costs)
    }
    return replace(constants, **{name: value for name, value in costs.items() if value is not None})
