"""From how many tokens on the pool multiplies in which way: what `stratactl bench` recorded, and what is configured.

The limits are fixed for a daemon's life and decide an answer's last bits (docs/adr/0050-measured-batch-limits.md).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from planner import Effect, Reason, Topology
from planner.batch_limits import limits_text, why_limits_differ
from planner.calibration import NO_TOKENS, Benchmark, TypeLimits
from planner.tuned import bench_ignored
from stratad.config import PlacementSection
from stratad.errors import StratadError
from stratad.facts import BENCH_FILE_NAME, machine_calibration
from stratad.model import ModelFacts
from stratad.version import stratad_version

_REMEDY = "run `sudo stratactl bench` again; until then the built-in limits hold"


@dataclass(frozen=True, slots=True)
class PoolLimits:
    """What a daemon runs with: limits by weight type as measured, and what the configuration puts in their place.

    Without either, what is built in holds (native/backend/batch_limits.hpp).
    """

    measured: tuple[TypeLimits, ...] = ()
    panel_tokens: int | None = None
    tile_tokens: int | None = None
    max_pool_tokens: int | None = None

    @classmethod
    def of(cls, placement: PlacementSection, measured: Sequence[TypeLimits] = ()) -> PoolLimits:
        """The limits of a configuration, over measured ones."""
        tiles = NO_TOKENS if placement.tile_tokens == 0 else placement.tile_tokens
        in_use = (_configured(limits, placement.panel_tokens, tiles) for limits in measured)
        return cls(tuple(in_use), placement.panel_tokens, tiles, placement.max_pool_tokens)

    def identity(self) -> dict[str, object]:
        """Give what of them decides bits, as JSON values. Tiles have those of panels, so their limit is left out."""
        values = asdict(self)
        del values["tile_tokens"]
        for limits in values["measured"]:
            del limits["tile_tokens"]
        return values

    def pool_tokens(self, model: ModelFacts, built_in: int | None) -> int | None:
        """Give the largest batch that the pool takes of this model; None for any.

        Where there are experts they decide: the rest is cut by rows in any case.

        Args:
            model: Its weight types, and how many of its experts a token uses.
            built_in: What holds for types that were not measured.
        """
        if self.max_pool_tokens is not None:
            return self.max_pool_tokens
        by_type = {limits.weight_type: limits for limits in self.measured}
        types = {tensor.type_name for tensor in model.expert_tensors or model.dense_tensors}
        share = (model.expert_count or 1) / (model.experts_used or 1) if model.expert_tensors else 1.0
        counts = [
            _most(by_type[name], is_expert=bool(model.expert_tensors), share=share)
            if name in by_type
            else built_in
            for name in types
        ]
        return min((count for count in counts if count is not None), default=None)


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


def _configured(limits: TypeLimits, panel_tokens: int | None, tile_tokens: int | None) -> TypeLimits:
    panels = limits.panel_tokens if panel_tokens is None else panel_tokens
    tiles = limits.tile_tokens if tile_tokens is None else tile_tokens
    return replace(limits, panel_tokens=panels, tile_tokens=max(panels, tiles))


def _most(limits: TypeLimits, *, is_expert: bool, share: float) -> int | None:
    tokens = limits.expert_pool_tokens if is_expert else limits.dense_pool_tokens
    return None if tokens == NO_TOKENS else int(tokens * share)


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
