"""bench.json: the planner's facts first, then everything they rest on."""

from __future__ import annotations

from dataclasses import asdict

from planner.calibration import NO_TOKENS, SCHEMA_VERSION
from stratad.bench.results import Conclusions, Measurements, Spread
from stratad.state.recorded import Circumstances


def bench_document(
    circumstances: Circumstances, measured: Measurements, conclusions: Conclusions, kernels: str
) -> dict[str, object]:
    """Give the document as JSON values. Without trust in the reads it holds no fact for planner or daemon.

    Args:
        circumstances: Of this machine, now.
        measured: Every sample.
        conclusions: What they say.
        kernels: The row kernels that multiplied batches.
    """
    facts = _facts(conclusions) | _batch_facts(conclusions, kernels) if conclusions.is_trustworthy else {}
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
            "batches": [
                {
                    "weight_type": result.case.shape.weight_type,
                    "form": result.form.value,
                    "rows": result.case.shape.rows,
                    "columns": result.case.shape.columns,
                    "matrices": result.case.matrix_count,
                    "tokens": point.tokens,
                    "path": point.path.value,
                    **_spread("seconds", Spread.of(point.seconds)),
                }
                for result in measured.batches
                for point in result.points
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


def _batch_facts(conclusions: Conclusions, kernels: str) -> dict[str, object]:
    """The limits of batches; null where there is none: never by panels or tiles, any number on the pool."""
    if not conclusions.batch_limits:
        return {}
    limits = [
        {name: None if value == NO_TOKENS else value for name, value in asdict(of_type).items()}
        for of_type in conclusions.batch_limits
    ]
    return {"batches": {"kernels": kernels, "limits": limits}}


def _spread(name: str, spread: Spread) -> dict[str, float]:
    return {name: spread.median, f"lowest_{name}": spread.lowest, f"highest_{name}": spread.highest}
