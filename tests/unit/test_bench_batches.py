"""From made-up times of batches to limits, and their way through bench.json: clear, none, noisy, broken and missing."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Mapping

import pytest

from planner import CalibrationError, benchmark_from_json
from planner.calibration import NO_TOKENS, TypeLimits
from stratad.bench.batch_cases import BatchCase, BatchForm, BatchPath, WeightShape, batch_cases
from stratad.bench.batch_limits import border, limits_of
from stratad.bench.conclude import conclude
from stratad.bench.document import bench_document
from stratad.bench.measure import LEAST_ROUNDS, MOST_ROUNDS
from stratad.bench.measure_batches import measure_batches
from stratad.bench.report import report_lines
from stratad.bench.results import BatchPoint, BatchResult, Measurements
from stratad.state.recorded import Circumstances

ROUNDS = 5
CASE = BatchCase(WeightShape("Q4_K"), 64)
MOMENT = Circumstances("0123456789ab", "6.1.0", False, "2026-01-02T03:04:05+00:00", "1.2.3")
# Seconds by tokens of one matrix.
Cost = Callable[[int], float]


def rows(tokens: int) -> float:
    """Four tokens at a time, each group at the cost of one read."""
    return 1.0 * -(-tokens // 4) + 0.2 * tokens


def panels(tokens: int) -> float:
    return 3.0 + 0.1 * tokens


def tiles(tokens: int) -> float:
    return 4.0 + 0.04 * tokens


def slow_ggml(tokens: int) -> float:
    return 2.0 * tokens


def tiled_ggml(tokens: int) -> float:
    return 2.5 + tokens * 0.3


def result(
    costs: Mapping[BatchPath, Cost], form: BatchForm = BatchForm.EXPERTS, noise: float = 0.0
) -> BatchResult:
    chance = random.Random(3)
    return BatchResult(
        CASE,
        form,
        tuple(
            BatchPoint(
                tokens,
                path,
                tuple(cost(tokens) * (1 + chance.uniform(-noise, noise)) for _ in range(ROUNDS)),
            )
            for tokens in form.token_counts
            for path, cost in costs.items()
        ),
    )


def limits(costs: Mapping[BatchPath, Cost], noise: float = 0.0) -> TypeLimits:
    return limits_of(result(costs, noise=noise), result(costs, BatchForm.DENSE, noise=noise))


def gains(values: Mapping[int, float]) -> dict[int, list[float]]:
    return {count: [value] * ROUNDS for count, value in values.items()}


@pytest.mark.parametrize(
    ("values", "built_in", "expected"),
    [
        pytest.param({4: 0.6, 6: 1.2, 8: 1.5, 16: 2.0}, 8, 6, id="clear, earlier than built in"),
        pytest.param({4: 0.4, 8: 0.7, 16: 1.3, 32: 1.6}, 8, 16, id="clear, later than built in"),
        pytest.param({4: 0.6, 6: 1.03, 8: 1.2, 16: 1.4}, 8, 8, id="equal before: what is built in stays"),
        pytest.param({4: 0.6, 8: 1.0, 12: 1.2}, 8, 8, id="equal at the built-in border, and faster after"),
        pytest.param({4: 1.0, 8: 1.01, 16: 0.99}, 8, 8, id="equal everywhere"),
        pytest.param({4: 0.5, 8: 0.6, 16: 0.7}, 8, NO_TOKENS, id="never"),
        pytest.param({4: 1.2, 6: 0.8, 8: 1.2, 16: 1.4}, 8, 8, id="faster, slower, faster: from the last on"),
        pytest.param({4: 1.2, 8: 1.3, 16: 0.9}, 8, NO_TOKENS, id="slower at the end"),
        pytest.param({4: 1.0, 16: 1.02}, NO_TOKENS, NO_TOKENS, id="built in never, and nothing gained"),
        pytest.param({4: 0.9, 16: 1.3, 32: 1.5}, NO_TOKENS, 16, id="built in never, and clearly gained"),
        pytest.param({}, NO_TOKENS, NO_TOKENS, id="no such path"),
    ],
)
def test_a_border_is_where_the_challenger_is_clearly_faster_and_stays_so(
    values: dict[int, float], built_in: int, expected: int
) -> None:
    assert border(gains(values), built_in) == expected


def test_a_median_whose_rounds_disagree_moves_nothing() -> None:
    noisy = {4: [0.6] * 5, 6: [1.4, 0.7, 1.3, 0.8, 1.2], 8: [1.3] * 5}
    assert border(noisy, 8) == 8
    agreeing = noisy | {6: [1.4, 1.1, 1.3, 0.95, 1.2]}
    assert border(agreeing, 8) == 6


def test_the_limits_of_a_type_follow_its_times() -> None:
    found = limits(
        {BatchPath.ROWS: rows, BatchPath.PANELS: panels, BatchPath.TILES: tiles, BatchPath.GGML: slow_ggml}
    )
    # With 8 tokens rows take 3.6 and panels 3.8, with 12 5.4 and 4.2. With 24 panels take 5.4 and tiles 4.96.
    assert found == TypeLimits("Q4_K", 12, 24, NO_TOKENS, NO_TOKENS)


def test_without_panels_the_pool_declines_where_ggml_is_faster() -> None:
    # For 12, 16, 24 and 32 tokens rows take 5.4, 7.2, 10.8 and 14.4, ggml 6.1, 7.3, 9.7 and 12.1.
    found = limits({BatchPath.ROWS: rows, BatchPath.GGML: tiled_ggml})
    assert found == TypeLimits("Q4_K", NO_TOKENS, NO_TOKENS, 16, 16)
    # Half a second earlier the two are equal at 12, where the built-in limit of 8 stays.
    earlier = limits({BatchPath.ROWS: rows, BatchPath.GGML: lambda tokens: tiled_ggml(tokens) - 0.5})
    assert earlier == TypeLimits("Q4_K", NO_TOKENS, NO_TOKENS, 8, 8)


def test_tiles_that_never_win_are_never_used_and_never_come_before_panels() -> None:
    def late_tiles(tokens: int) -> float:
        return panels(tokens) * 1.02

    def early_tiles(tokens: int) -> float:
        return 0.1 * tokens

    paths = {BatchPath.ROWS: rows, BatchPath.PANELS: panels, BatchPath.GGML: slow_ggml}
    assert limits(paths | {BatchPath.TILES: late_tiles}).tile_tokens == NO_TOKENS
    assert limits(paths | {BatchPath.TILES: early_tiles}).tile_tokens == limits(paths).panel_tokens
    assert limits(paths).tile_tokens == NO_TOKENS


def test_a_token_alone_is_never_declined() -> None:
    assert limits({BatchPath.ROWS: rows, BatchPath.GGML: lambda tokens: 0.1 * tokens}).dense_pool_tokens == 1


def test_noise_of_a_few_percent_finds_the_same_limits() -> None:
    paths = {BatchPath.ROWS: rows, BatchPath.PANELS: panels, BatchPath.GGML: slow_ggml}
    assert limits(paths, noise=0.03) == limits(paths)


class SyntheticBatches:
    """Weights of known times, and a clock that every pass moves on."""

    paths = (BatchPath.ROWS, BatchPath.PANELS, BatchPath.GGML)

    def __init__(self) -> None:
        self.now_seconds = 0.0
        self.asked: list[tuple[BatchPath, BatchForm, int]] = []

    def clock(self) -> float:
        return self.now_seconds

    def multiply(self, path: BatchPath, form: BatchForm, tokens: int) -> float:
        costs = {BatchPath.ROWS: rows, BatchPath.PANELS: panels, BatchPath.GGML: slow_ggml}
        self.asked.append((path, form, tokens))
        self.now_seconds += costs[path](tokens) * 1e-3
        return costs[path](tokens) * 1e-3


@pytest.mark.parametrize(("seconds", "rounds"), [(0.0, LEAST_ROUNDS), (1e6, MOST_ROUNDS)])
def test_rounds_are_taken_while_there_is_time(seconds: float, rounds: int) -> None:
    machine, told = SyntheticBatches(), []
    results = measure_batches(
        [CASE], lambda case: machine, machine.clock, seconds, lambda name, share: told.append(name)
    )
    assert {len(point.seconds) for found in results for point in found.points} == {rounds}
    assert any("Q4_K" in name for name in told)
    # Paths are beside each other, and each begins a round in turn.
    assert {path for path, _, _ in machine.asked[:3]} == set(machine.paths)
    passes = len(machine.asked) // (rounds + 1)
    assert len({machine.asked[index * passes][0] for index in range(3)}) == 3


def measured() -> Measurements:
    machine = SyntheticBatches()
    batches = measure_batches([CASE], lambda case: machine, machine.clock, 0.0, lambda name, share: None)
    return Measurements((), (), (), (), 3, batches)


def test_limits_go_into_the_document_and_come_back() -> None:
    found = measured()
    document = bench_document(MOMENT, found, conclude(found, None), "avx512")
    assert document["schema_version"] == 1
    benchmark = benchmark_from_json(json.dumps(document))
    assert benchmark.batches is not None
    assert benchmark.batches.kernels == "avx512"
    assert benchmark.batches.limits == conclude(found, None).batch_limits
    assert benchmark.stratad_version == "1.2.3"
    details = document["details"]
    assert isinstance(details, dict)
    assert {point["path"] for point in details["batches"]} == {"rows", "panels", "ggml"}


def test_the_report_has_every_path_and_the_limits() -> None:
    found = measured()
    lines = report_lines(found, conclude(found, None))
    assert any(line.startswith("batches") and "experts, panels:" in line for line in lines)
    assert [line for line in lines if line.startswith("limits")] == [
        "limits    Q4_K: panels from 12 tokens, tiles never; the pool takes any number of an expert and any number of "
        "a dense weight"
    ]


def test_a_benchmark_from_before_batches_has_none() -> None:
    assert benchmark_from_json('{"schema_version": 1, "machine_fingerprint": "x"}').batches is None


@pytest.mark.parametrize(
    ("batches", "words"),
    [
        ({"limits": []}, "batches.kernels is not a text"),
        ({"kernels": "avx2", "limits": [{"panel_tokens": 4}]}, "limits[0].weight_type"),
        (
            {"kernels": "avx2", "limits": [{"weight_type": "Q4_K", "panel_tokens": 0}]},
            "limits[0].panel_tokens",
        ),
        (
            {"kernels": "avx2", "limits": [{"weight_type": "Q4_K", "tile_tokens": "many"}]},
            "limits[0].tile_tokens",
        ),
        ([], "batches is not an object"),
    ],
)
def test_damaged_limits_name_the_field(batches: object, words: str) -> None:
    text = json.dumps({"schema_version": 1, "machine_fingerprint": "x", "batches": batches})
    with pytest.raises(CalibrationError, match=words.replace("[", r"\[").replace("]", r"\]")):
        benchmark_from_json(text)


def test_cases_are_past_the_cache_and_within_what_may_be_taken() -> None:
    (case,) = batch_cases([WeightShape("Q4_K")], 64 << 20, 1 << 30)
    assert 100 << 20 < case.matrix_count * case.shape.matrix_bytes <= 128 << 20
    (small,) = batch_cases([WeightShape("Q4_K")], 64 << 20, 16 << 20)
    assert small.matrix_count * small.shape.matrix_bytes <= 16 << 20
    assert small.matrix_count % 8 == 0
