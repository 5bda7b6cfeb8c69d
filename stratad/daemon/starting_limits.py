"""Which limits of batches the daemon starts with: those that `stratactl bench` recorded, where they hold here."""

from __future__ import annotations

from pathlib import Path

from planner import Effect, Reason, Topology
from planner.batch_limits import limits_text, why_limits_differ
from planner.calibration import Benchmark
from planner.tuned import bench_ignored
from stratad.config import PlacementSection
from stratad.errors import StratadError
from stratad.native.batch_limits import PoolLimits
from stratad.plan.facts import machine_calibration
from stratad.state.recorded import BENCH_FILE_NAME
from stratad.version import stratad_version

_REMEDY = "run `sudo stratactl bench` again; until then the built-in limits hold"


def starting_limits(
    placement: PlacementSection, kernels: str, topology: Topology, state_directory: Path
) -> tuple[PoolLimits, Reason | None]:
    """Give the limits to start with, and the Reason where a measurement is used or ignored.

    Args:
        placement: What is configured counts more than what was measured.
        kernels: The row kernels in use.
        topology: This machine.
        state_directory: Where `stratactl bench` leaves its results.
    """
    try:
        calibration = machine_calibration(state_directory, tuning=None)
    except StratadError as error:
        return PoolLimits.of(placement), _ignored(error.because, state_directory, Effect.WARNS)
    benchmark = None if calibration is None else calibration.benchmark
    if benchmark is None or benchmark.batches is None:
        return PoolLimits.of(placement), None
    why = _why_ignored(benchmark, kernels, topology)
    if why is not None:
        return PoolLimits.of(placement), _ignored(why, state_directory, Effect.INFORMS)
    limits = PoolLimits.of(placement, benchmark.batches.limits)
    return limits, _measured(limits, benchmark)


def _why_ignored(benchmark: Benchmark, kernels: str, topology: Topology) -> str | None:
    other = bench_ignored(benchmark, topology)
    return why_limits_differ(benchmark, kernels, stratad_version()) if other is None else other.message


def _measured(limits: PoolLimits, benchmark: Benchmark) -> Reason:
    configured = [
        f"placement.{name} = {value}"
        for name in ("panel_tokens", "tile_tokens", "max_pool_tokens")
        if (value := getattr(limits, name)) is not None
    ]
    shown = ". ".join(map(limits_text, limits.measured))
    counts = f"; {', '.join(configured)} is set and counts" if configured else ""
    return Reason(
        code="batch-limits-measured",
        effect=Effect.INFORMS,
        message=f"as stratactl bench measured: {shown}{counts}",
        evidence={"measured_at": benchmark.measured_at, "weight_types": len(limits.measured)},
    )


def _ignored(why: str, state_directory: Path, effect: Effect) -> Reason:
    path = str(state_directory / BENCH_FILE_NAME)
    return Reason(
        code="batch-limits-ignored",
        effect=effect,
        message=f"the limits of batches in {path} are not used: {why}",
        evidence={"path": path},
        remedy=_REMEDY,
    )
