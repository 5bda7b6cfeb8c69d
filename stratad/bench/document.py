"""bench.json: the planner's facts first, then everything they rest on."""

from __future__ import annotations

from dataclasses import asdict

from planner.calibration import SCHEMA_VERSION
from stratad.bench.results import Conclusions, Measurements, Spread
from stratad.state.recorded import Circumstances


def bench_document(
    circumstances: Circumstances, measured: Measurements, conclusions: Conclusions
) -> dict[str, object]:
    """Give the document as JSON values. Without trust in the reads it holds no fact for the planner."""
    facts = _facts(conclusions) if conclusions.is_trustworthy else {}
    return {
        "schema_version": SCHEMA_VERSION,
        **asdict(circumstances),
        **facts,
        "findings": list(conclusions.findings),
        "details": {
            "rounds": measured.round_count,
            "memory": [asdict(memory) for memory in measured.memories],
            "reads": [
                {
                    "name": result.case.name,
                    "pattern": result.case.pattern.value,
                    "workers": result.case.worker_count,
                    "is_steady": result.is_steady,
                    **_spread("bytes_per_second", result.rate),
                }
                for result in measured.reads
            ],
            "layers": [
                {
                    "name": result.case.name,
                    "team": result.case.team.value,
                    "workers": result.case.worker_count,
                    "gap_seconds": result.case.gap_seconds,
                    "spin_seconds": result.case.spin_seconds,
                    "is_steady": result.is_steady,
                    **_spread("seconds", result.cost),
                }
                for result in measured.layers
            ],
            "host_to_device": [
                {
                    "device": result.device,
                    "node": result.node_id,
                    **_spread("alone_bytes_per_second", result.alone),
                    **_spread("together_bytes_per_second", result.together),
                    **_spread("pool_bytes_per_second", result.pool_rate),
                }
                for result in measured.copies
            ],
        },
    }


def _facts(conclusions: Conclusions) -> dict[str, object]:
    cells = [(result.case.readers[0], result.rate.median) for result in conclusions.bandwidth]
    return {
        "bandwidth": [
            {
                "reader_node": reader.node_id,
                "memory_node": reader.memory_node_ids[0],
                "bytes_per_second": rate,
            }
            for reader, rate in cells
        ],
        "core_bytes_per_second": conclusions.core_rate,
        "layer_costs": asdict(conclusions.layer_costs),
        "worker_sweep": [
            {"worker_count": result.case.worker_count, "bytes_per_second": result.rate.median}
            for result in conclusions.sweep
        ],
    }


def _spread(name: str, spread: Spread) -> dict[str, float]:
    return {name: spread.median, f"lowest_{name}": spread.lowest, f"highest_{name}": spread.highest}
