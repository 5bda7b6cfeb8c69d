"""The measurements for people: labelled lines, a matrix where there are several nodes."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence

from planner.batch_limits import limits_text
from planner.calibration import LayerCosts
from planner.quantity import format_bytes
from stratad.bench.cases import Purpose, ReadCase
from stratad.bench.results import BatchResult, Conclusions, LayerResult, Measurements, ReadResult, Spread

_COST_NAMES = {
    "base_seconds": "a layer of one worker's handing out and joining",
    "local_seconds": "each worker of a slice and phase adds",
    "cross_seconds": "working across two packages adds",
    "wake_seconds": "sleeping workers across packages add, beyond those inside",
    "claim_seconds": "each claim by unsliced workers across packages adds",
}


def report_lines(measured: Measurements, conclusions: Conclusions) -> list[str]:
    """Give the report, without where it was written."""
    sizes = sorted({memory.size_bytes for memory in measured.memories})
    lines = [
        f"measured  {measured.round_count} rounds, {', '.join(map(format_bytes, sizes))} a block; "
        "median and range of all rounds"
    ]
    lines += _matrix_lines([result for result in measured.reads if result.case.purpose is Purpose.CELL])
    for result in measured.reads:
        if result.case.purpose is not Purpose.CELL:
            lines.append(f"{_label(result.case)}{result.case.name}: {_rate(result.rate)}")
    lines += [f"layers    {result.case.name}: {_cost(result)}" for result in measured.layers]
    for batches in measured.batches:
        lines += _batch_lines(batches)
    lines += _copy_lines(measured)
    lines += _constant_lines(conclusions)
    lines += [f"limits    {text}" for text in map(limits_text, conclusions.batch_limits)]
    return lines + [f"note      {finding}" for finding in conclusions.findings]


def _label(case: ReadCase) -> str:
    return "sweep     " if case.purpose is Purpose.SWEEP else "reads     "


def _matrix_lines(results: Sequence[ReadResult]) -> list[str]:
    """One line for each reading node: what one worker and all of them read of every node's memory."""
    lines: dict[tuple[int | None, int], list[str]] = {}
    for result in results:
        reader = result.case.readers[0]
        key = (reader.node_id, len(reader.cpu_ids))
        lines.setdefault(key, []).append(f"node {reader.memory_node_ids[0]} {_rate(result.rate)}")
    return [
        f"matrix    node {node_id}, {count} worker{'' if count == 1 else 's'} from " + ", ".join(cells)
        for (node_id, count), cells in lines.items()
    ]


def _batch_lines(result: BatchResult) -> list[str]:
    """One line for each path: what it reaches with 1, 2, ... tokens of one matrix."""
    counts = result.form.token_counts
    shape = result.case.shape
    lines = [
        f"batches   {shape.weight_type} {result.form}, {shape.rows} x {shape.columns}, GFLOPS with "
        f"{', '.join(map(str, counts))} tokens of one matrix:"
    ]
    for path in result.paths:
        rates = [
            result.case.operations(tokens) / statistics.median(result.seconds(tokens, path)) / 1e9
            for tokens in counts
        ]
        lines.append(
            f"batches   {shape.weight_type} {result.form}, {path}: "
            + " ".join(f"{rate:.0f}" for rate in rates)
        )
    return lines


def _copy_lines(measured: Measurements) -> list[str]:
    if not measured.copies:
        return ["copies    no GPU in use: nothing was copied to a device"]
    return [
        f"copies    to {copy.device} from node {copy.node_id}: {_rate(copy.alone)}; while the pool reads "
        f"{copy.pool_rate.median / 1e9:.1f} GB/s: {_rate(copy.together)}"
        for copy in measured.copies
    ]


def _constant_lines(conclusions: Conclusions) -> Iterable[str]:
    if not conclusions.is_trustworthy:
        return ["planner   nothing: plain reads varied too much to conclude anything"]
    lines = []
    if conclusions.core_rate is not None:
        lines.append(f"planner   one core multiplies {conclusions.core_rate / 1e9:.1f} GB/s of 4-bit experts")
    for name in LayerCosts.__dataclass_fields__:
        seconds = getattr(conclusions.layer_costs, name)
        shown = "not measured here" if seconds is None else f"{seconds * 1e6:.2f} us"
        lines.append(f"planner   {_COST_NAMES[name]}: {shown}")
    return lines


def _rate(rate: Spread) -> str:
    return f"{rate.median / 1e9:.1f} GB/s ({rate.lowest / 1e9:.1f} to {rate.highest / 1e9:.1f})"


def _cost(result: LayerResult) -> str:
    cost = result.cost
    return f"{cost.median * 1e6:.2f} us ({cost.lowest * 1e6:.2f} to {cost.highest * 1e6:.2f})"
