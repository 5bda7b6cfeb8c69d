"""The limits of batches that a benchmark recorded: as text, as a Reason, and when they do not hold."""

from __future__ import annotations

from typing import TYPE_CHECKING

from planner.calibration import NO_TOKENS
from planner.reason import Effect, Evidence, Reason

if TYPE_CHECKING:
    from planner.calibration import BatchRecord, Benchmark, TypeLimits


def limits_text(limits: TypeLimits) -> str:
    """Give one type's limits for people."""
    return (
        f"{limits.weight_type}: panels {_from(limits.panel_tokens)}, tiles {_from(limits.tile_tokens)}; the pool takes "
        f"{_most(limits.expert_pool_tokens)} of an expert and {_most(limits.dense_pool_tokens)} of a dense weight"
    )


def recorded_limits(benchmark: Benchmark, record: BatchRecord) -> Reason:
    """Say which limits a benchmark of this machine recorded.

    The daemon takes them when it starts, under the conditions of `why_limits_differ`.
    """
    evidence: dict[str, Evidence] = {"kernels": record.kernels}
    if benchmark.measured_at is not None:
        evidence["measured_at"] = benchmark.measured_at
    return Reason(
        "batch-limits-recorded",
        Effect.INFORMS,
        "stratactl bench found here, for the daemon's next start: " + all_limits_text(record),
        evidence,
    )


def all_limits_text(record: BatchRecord) -> str:
    """Give the limits of all types for people."""
    return ". ".join(map(limits_text, record.limits))


def why_limits_differ(benchmark: Benchmark, kernels: str, stratad_version: str) -> str | None:
    """Give why recorded limits do not hold for these row kernels; None when they do.

    Another set of kernels has other borders, and another version's kernels may be faster or slower.
    """
    if benchmark.batches is None:
        return "it measured no batches"
    if benchmark.batches.kernels != kernels:
        return f"it measured the {benchmark.batches.kernels} row kernels, {kernels} are in use"
    if benchmark.stratad_version != stratad_version:
        return f"it measured version {benchmark.stratad_version}, this is {stratad_version}"
    return None


def _from(tokens: int) -> str:
    return "never" if tokens == NO_TOKENS else f"from {tokens} tokens"


def _most(tokens: int) -> str:
    return "any number" if tokens == NO_TOKENS else f"at most {tokens} tokens"
