"""From how many tokens on the pool multiplies in which way: what was measured, and what is configured.

The limits are fixed for a daemon's life and decide an answer's last bits (docs/adr/0050-measured-batch-limits.md).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace

from planner.calibration import NO_TOKENS, TypeLimits
from stratad.config import PlacementSection
from stratad.gguf.model import ModelFacts


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


def _configured(limits: TypeLimits, panel_tokens: int | None, tile_tokens: int | None) -> TypeLimits:
    panels = limits.panel_tokens if panel_tokens is None else panel_tokens
    tiles = limits.tile_tokens if tile_tokens is None else tile_tokens
    return replace(limits, panel_tokens=panels, tile_tokens=max(panels, tiles))


def _most(limits: TypeLimits, *, is_expert: bool, share: float) -> int | None:
    tokens = limits.expert_pool_tokens if is_expert else limits.dense_pool_tokens
    return None if tokens == NO_TOKENS else int(tokens * share)
