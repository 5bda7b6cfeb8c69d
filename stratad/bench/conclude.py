"""From samples to the planner's numbers. Pure; docs/BENCH.md says what each number can and cannot know."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping, Sequence

from planner import CostConstants
from planner.calibration import LEAST_LOCAL_RATIO, LayerCosts
from stratad.bench.batch_limits import form_pairs, limits_of
from stratad.bench.cases import Pattern, Purpose, ReadCase, Team
from stratad.bench.results import (
    RATE_VARIATION_LIMIT,
    Conclusions,
    LayerResult,
    Measurements,
    PlacedMemory,
    ReadResult,
)

# Below four times the last cache, part of what is read again comes from it.
_LEAST_CACHE_MULTIPLE = 4


def conclude(measured: Measurements, cache_bytes: int | None) -> Conclusions:
    """Give what the measurements say.

    Args:
        measured: The samples.
        cache_bytes: Last-level cache that one node's cores share; None when unknown.
    """
    findings = [*_placement_findings(measured.memories), *_cache_findings(measured.memories, cache_bytes)]
    misplaced = {memory.node_ids for memory in measured.memories if memory.local_ratio < LEAST_LOCAL_RATIO}
    reads = [result for result in measured.reads if not _reads_from(result.case, misplaced)]
    unsteady = [result for result in reads if not result.is_steady]
    findings += [_varied(result) for result in unsteady]
    findings += [_varied_cost(result) for result in measured.layers if not result.is_steady]
    steady = [result for result in reads if result.is_steady]
    sweep = tuple(result for result in steady if result.case.purpose is Purpose.SWEEP)
    single = next((result for result in sweep if result.case.worker_count == 1), None)
    return Conclusions(
        bandwidth=tuple(_full_cells(steady)),
        sweep=sweep,
        core_rate=None if single is None else single.rate.median,
        layer_costs=layer_costs([result for result in measured.layers if result.is_steady]),
        findings=tuple(findings),
        is_trustworthy=not any(result.case.pattern is Pattern.STREAM for result in unsteady),
        batch_limits=tuple(limits_of(*pair) for pair in form_pairs(measured.batches)),
    )


def layer_costs(results: Sequence[LayerResult]) -> LayerCosts:
    """Solve the cost model's formula (docs/PLANNER.md) for its constants, one after the other.

    A layer's cost is base + phases * local * workers of a slice; two packages add cross; workers that are not
    sliced add phases * tasks * workers * claim; sleeping workers of two packages add wake. None where the
    machine has no case for it.
    """
    constants = CostConstants()
    node, sliced, unsliced = (_by_workers(results, team) for team in (Team.NODE, Team.SLICED, Team.UNSLICED))
    base, local = _line(node, constants.phase_count)
    if base is None:
        return LayerCosts()
    worker_share = constants.phase_count * (local or 0.0)
    crossings = [sliced[count] - node[count // 2] for count in sorted(sliced) if count // 2 in node]
    cross = max(0.0, statistics.median(crossings)) if crossings else None
    tasks = constants.phase_count * constants.tasks_per_worker
    claims = [
        (seconds - base - worker_share * count - (cross or 0.0)) / (tasks * count)
        for count, seconds in sorted(unsliced.items())
    ]
    within, across = (_wake_seconds(results, team) for team in (Team.NODE, Team.SLICED))
    return LayerCosts(
        base_seconds=base,
        local_seconds=local,
        cross_seconds=cross,
        # The model adds a wake-up to candidates across packages only, so it gets what is more there than inside.
        wake_seconds=None if within is None or across is None else max(0.0, across - within),
        claim_seconds=None if cross is None or not claims else max(0.0, statistics.median(claims)),
    )


def _by_workers(results: Iterable[LayerResult], team: Team) -> dict[int, float]:
    """Cost by worker count of a team at work without gaps."""
    return {
        result.case.worker_count: result.cost.median
        for result in results
        if result.case.team is team and result.case.gap_seconds == 0 and not result.case.meets
    }


def _line(costs: Mapping[int, float], phase_count: int) -> tuple[float | None, float | None]:
    """Base and cost per worker and phase: the least-squares line through the costs; neither is below zero."""
    if not costs:
        return None, None
    if len(costs) == 1:
        return max(0.0, *costs.values()), None
    slope, intercept = statistics.linear_regression(list(costs), list(costs.values()))
    if slope < 0:
        return max(0.0, statistics.median(costs.values())), 0.0
    return max(0.0, intercept), slope / phase_count


def _wake_seconds(results: Iterable[LayerResult], team: Team) -> float | None:
    """What a team's layer takes longer when its workers slept through the gap before it."""
    resting = [result for result in results if result.case.team is team and result.case.gap_seconds > 0]
    asleep = next((result for result in resting if result.case.must_wake), None)
    awake = next((result for result in resting if not result.case.must_wake), None)
    if asleep is None or awake is None:
        return None
    return max(0.0, asleep.cost.median - awake.cost.median)


def _full_cells(results: Iterable[ReadResult]) -> Iterable[ReadResult]:
    """Of each cell of the matrix the case with all workers of the node."""
    cells: dict[tuple[int | None, tuple[int, ...]], ReadResult] = {}
    for result in results:
        if result.case.purpose is Purpose.CELL:
            reader = result.case.readers[0]
            key = (reader.node_id, reader.memory_node_ids)
            if key not in cells or result.case.worker_count > cells[key].case.worker_count:
                cells[key] = result
    return cells.values()


def _reads_from(case: ReadCase, misplaced: set[tuple[int, ...]]) -> bool:
    return any(reader.memory_node_ids in misplaced for reader in case.readers)


def _placement_findings(memories: Iterable[PlacedMemory]) -> list[str]:
    return [
        f"of the memory for node {', '.join(map(str, memory.node_ids))} only {memory.local_ratio:.0%} lies there: "
        "what was read from it is left out"
        for memory in memories
        if memory.local_ratio < LEAST_LOCAL_RATIO
    ]


def _cache_findings(memories: Iterable[PlacedMemory], cache_bytes: int | None) -> list[str]:
    smallest = min((memory.size_bytes for memory in memories), default=0)
    if cache_bytes is None or smallest >= _LEAST_CACHE_MULTIPLE * cache_bytes:
        return []
    return [
        f"the memory read, {smallest / 2**20:.0f} MiB, is less than {_LEAST_CACHE_MULTIPLE} times the last cache "
        f"({cache_bytes / 2**20:.0f} MiB): rates are partly the cache's; give more with --bytes"
    ]


def _varied(result: ReadResult) -> str:
    rate = result.rate
    return (
        f"{result.case.name}: {rate.lowest / 1e9:.1f} to {rate.highest / 1e9:.1f} GB/s, a factor of "
        f"{rate.variation:.1f} (limit {RATE_VARIATION_LIMIT:g}): not judged"
    )


def _varied_cost(result: LayerResult) -> str:
    cost = result.cost
    return f"{result.case.name}: {cost.lowest * 1e6:.1f} to {cost.highest * 1e6:.1f} us: not judged"
