"""From the times of batches to limits: from how many tokens on which way is taken. Pure.

A limit decides bits (docs/adr/0007-row-kernels.md), so a built-in one is replaced only by what is clearly faster,
and two runs on one machine should find the same.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence

from planner.calibration import NO_TOKENS, TypeLimits
from stratad.bench.batch_cases import BatchForm, BatchPath
from stratad.bench.results import BatchResult

# A gain below this is within what two runs of one program differ by.
LEAST_GAIN = 1.05
# Of the rounds, so many have to agree on who is faster.
AGREEING_SHARE = 0.75
# Built in, and kept unless something else is clearly faster (native/backend/batch_limits.hpp, device.hpp).
BUILT_IN_PANEL_TOKENS = 8
BUILT_IN_DECLINED_TOKENS = 9
# Decoding one answer is the pool's in any case: it reads where pages lie.
LEAST_POOL_TOKENS = 1


# By tokens of one matrix: how many times as long as the challenger the champion took, round by round.
Gains = Mapping[int, Sequence[float]]


def border(gains: Gains, built_in: int) -> int:
    """Give the number of tokens from which on a challenger replaces the champion; NO_TOKENS for never.

    It is the first count at which the challenger is clearly faster and beyond which it is nowhere clearly slower.
    Where the two are about equal from the built-in border up to there, the built-in one stays.

    Args:
        gains: The measured counts; may be empty, where one of the two does not exist.
        built_in: The border that holds without a measurement; NO_TOKENS for never.
    """
    counts = sorted(gains)
    last_loss = max((count for count in counts if _is_clear(gains[count], faster=False)), default=0)
    wins = [count for count in counts if count > last_loss and _is_clear(gains[count], faster=True)]
    if last_loss < built_in and not any(count < built_in for count in wins):
        return built_in
    return min(wins, default=NO_TOKENS)


def limits_of(experts: BatchResult, dense: BatchResult) -> TypeLimits:
    """Give the limits of the weight type that both results are of."""
    panels = border(
        _gains_over_pool(experts, BatchPath.PANELS, NO_TOKENS, NO_TOKENS), _built_in_panels(experts)
    )
    # Tiles have the bits of panels and come after them; what they are held against is what they replace.
    tiles = max(panels, border(_gains_over_pool(experts, BatchPath.TILES, panels, NO_TOKENS), NO_TOKENS))
    return TypeLimits(
        weight_type=experts.case.shape.weight_type,
        panel_tokens=panels,
        tile_tokens=tiles,
        expert_pool_tokens=_most_on_pool(experts, panels, tiles),
        dense_pool_tokens=_most_on_pool(dense, panels, tiles),
    )


def _is_clear(gains: Sequence[float], *, faster: bool) -> bool:
    """Whether median and most rounds say so."""
    values = [gain if faster else 1 / gain for gain in gains]
    agreeing = sum(value > 1 for value in values)
    return statistics.median(values) >= LEAST_GAIN and agreeing >= AGREEING_SHARE * len(values)


def _built_in_panels(result: BatchResult) -> int:
    return BUILT_IN_PANEL_TOKENS if BatchPath.PANELS in result.paths else NO_TOKENS


def _gains_over_pool(result: BatchResult, challenger: BatchPath, panels: int, tiles: int) -> Gains:
    """By count what the challenger gains over whatever the pool does with so many tokens, round by round."""
    if challenger not in result.paths:
        return {}
    return {
        tokens: _ratios(result, tokens, _path_on_pool(result, tokens, panels, tiles), challenger)
        for tokens in result.form.token_counts
    }


def _ratios(result: BatchResult, tokens: int, champion: BatchPath, challenger: BatchPath) -> list[float]:
    pairs = zip(result.seconds(tokens, champion), result.seconds(tokens, challenger), strict=True)
    return [slow / fast for slow, fast in pairs]


def _path_on_pool(result: BatchResult, tokens: int, panels: int, tiles: int) -> BatchPath:
    if tokens >= tiles and BatchPath.TILES in result.paths:
        return BatchPath.TILES
    return BatchPath.PANELS if tokens >= panels and BatchPath.PANELS in result.paths else BatchPath.ROWS


def _most_on_pool(result: BatchResult, panels: int, tiles: int) -> int:
    """The most tokens of one matrix that the pool takes: the last count before ggml's; NO_TOKENS for any number.

    Real experts get more and fewer tokens than the mean, and the busy ones decide: end to end the pool lost sooner
    than here (docs/BENCHMARKS.md, "Batches"), so nothing is taken between two counts.
    """
    built_in = NO_TOKENS if BatchPath.PANELS in result.paths else BUILT_IN_DECLINED_TOKENS
    declined = border(_gains_over_pool(result, BatchPath.GGML, panels, tiles), built_in)
    if declined == NO_TOKENS:
        return NO_TOKENS
    return max((count for count in result.form.token_counts if count < declined), default=LEAST_POOL_TOKENS)


def form_pairs(results: Sequence[BatchResult]) -> list[tuple[BatchResult, BatchResult]]:
    """Give experts and dense results of each case together."""
    dense = {result.case: result for result in results if result.form is BatchForm.DENSE}
    return [
        (result, dense[result.case])
        for result in results
        if result.form is BatchForm.EXPERTS and result.case in dense
    ]
