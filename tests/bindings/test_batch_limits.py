"""The limits of batches: from which number of tokens on which way is taken, seen in bits and counters."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from stratad import _native as native
from tests.support import gguf_models
from tests.support.native import all_logits, load_owned, load_placed, make_pool

NEVER = native.NO_TOKENS
BEST = native.supported_kernels()[0]
needs_panels = pytest.mark.skipif(not native.has_panels(BEST), reason="this CPU's kernels have no panels")


@pytest.fixture(autouse=True)
def _default_device_options() -> Iterator[None]:
    yield
    native.set_device_options()


def prompt_of(tokens: int) -> tuple[int, ...]:
    return tuple((17 * index + 5) % 320 for index in range(tokens))


@pytest.fixture
def dense_model(tmp_path: Path) -> native.Model:
    """Every product of it is multiplied with as many tokens as the batch has."""
    path = gguf_models.write_model(tmp_path / "dense.gguf", "dense", "Q4_K", dense_type="Q4_K")
    return load_owned(path, make_pool(2, 2))


def logits(model: native.Model, tokens: int, **limits: int) -> np.ndarray:
    by_type = {"Q4_K": native.BatchLimits(**limits)} if limits else {}
    native.set_device_options(kernels=BEST, limits=by_type)
    return all_logits(model, prompt_of(tokens), ())


@needs_panels
@pytest.mark.parametrize("tokens", [3, 8, 13])
def test_panels_are_used_from_their_limit_on(dense_model: native.Model, tokens: int) -> None:
    rows = logits(dense_model, tokens, panel_tokens=NEVER)
    panels = logits(dense_model, tokens, panel_tokens=2)
    assert not np.array_equal(rows, panels)
    assert np.array_equal(logits(dense_model, tokens, panel_tokens=tokens), panels)
    assert np.array_equal(logits(dense_model, tokens, panel_tokens=tokens + 1), rows)


@needs_panels
def test_the_built_in_limit_is_eight(dense_model: native.Model) -> None:
    assert native.PANEL_TOKENS == 8
    for tokens in (7, 8):
        built_in = logits(dense_model, tokens)
        assert np.array_equal(built_in, logits(dense_model, tokens, panel_tokens=8))
    assert np.array_equal(logits(dense_model, 7), logits(dense_model, 7, panel_tokens=NEVER))
    assert np.array_equal(logits(dense_model, 8), logits(dense_model, 8, panel_tokens=2))


@needs_panels
def test_a_limit_counts_for_its_own_type_only(dense_model: native.Model) -> None:
    rows = logits(dense_model, 4)
    native.set_device_options(kernels=BEST, limits={"Q8_0": native.BatchLimits(panel_tokens=2)})
    assert np.array_equal(all_logits(dense_model, prompt_of(4), ()), rows)
    # Written as ggml spells it.
    native.set_device_options(kernels=BEST, limits={"q4_K": native.BatchLimits(panel_tokens=2)})
    assert not np.array_equal(all_logits(dense_model, prompt_of(4), ()), rows)


@pytest.mark.parametrize("limit", [5, 12])
def test_more_tokens_of_a_dense_weight_than_the_pool_takes_go_to_ggml(
    dense_model: native.Model, limit: int
) -> None:
    for tokens, is_declined in ((limit, False), (limit + 1, True)):
        before = native.device_counters()
        logits(dense_model, tokens, dense_pool_tokens=limit)
        after = native.device_counters()
        # Declined products are cut into row slices of ggml's kernel, or go to it with the whole graph.
        dense_jobs = after.dense_jobs - before.dense_jobs
        assert (dense_jobs == 0) == is_declined, tokens


def test_experts_are_declined_by_the_tokens_that_each_gets_on_average(tmp_path: Path) -> None:
    path = gguf_models.write_model(tmp_path / "model.gguf", "qwen3moe", "Q4_K")
    model = load_placed(path, make_pool(2, 1))
    # 3 of 8 experts for a token: 10 tokens give each expert 3.75, 11 give it 4.125.
    for tokens, is_declined in ((10, False), (11, True)):
        before = native.device_counters()
        logits(model, tokens, expert_pool_tokens=4)
        after = native.device_counters()
        chains = after.fused_chains - before.fused_chains
        assert (chains == 0) == is_declined, tokens


def test_a_configured_batch_counts_more_than_measured_limits(dense_model: native.Model) -> None:
    limits = {"Q4_K": native.BatchLimits(dense_pool_tokens=2)}
    native.set_device_options(max_pool_tokens=64, kernels=BEST, limits=limits)
    before = native.device_counters()
    all_logits(dense_model, prompt_of(16), ())
    assert native.device_counters().dense_jobs > before.dense_jobs


@pytest.mark.parametrize(
    ("name", "limits", "words"),
    [
        ("Q4_K", {"panel_tokens": 0}, "below one token"),
        ("Q4_K", {"tile_tokens": 0}, "below one token"),
        ("Q4_K", {"expert_pool_tokens": 0}, "below one token"),
        ("Q4_K", {"dense_pool_tokens": -1}, "below one token"),
        ("Q5_Z", {}, "'Q5_Z'"),
    ],
)
def test_limits_that_cannot_be_are_refused(name: str, limits: dict[str, int], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        native.set_device_options(limits={name: native.BatchLimits(**limits)})


def test_tiles_that_this_cpu_refuses_are_an_error_and_never_used() -> None:
    if native.prepare_tiles(make_pool(1, 1)) is None:
        native.set_device_options(kernels=BEST, limits={"Q4_K": native.BatchLimits(tile_tokens=16)})
        return
    with pytest.raises(ValueError, match="tiles cannot be used"):
        native.set_device_options(kernels=BEST, limits={"Q4_K": native.BatchLimits(tile_tokens=16)})


def test_the_probe_multiplies_by_every_path_it_offers() -> None:
    probe = native.BatchProbe(make_pool(2, 1), weight_type="Q4_K", kernels=BEST, matrix_count=8, rows=64)
    assert probe.offers(native.BatchPath.ROWS)
    assert probe.offers(native.BatchPath.GGML)
    assert probe.offers(native.BatchPath.PANELS) == native.has_panels(BEST)
    for form in (native.BatchForm.EXPERTS, native.BatchForm.DENSE):
        for path in (native.BatchPath.ROWS, native.BatchPath.PANELS, native.BatchPath.GGML):
            if probe.offers(path):
                assert probe.sample(path, form, 3) > 0


@pytest.mark.parametrize(
    ("shape", "words"),
    [
        ({"matrix_count": 12}, "multiple"),
        ({"rows": 10}, "multiples of 16"),
        ({"columns": 100}, "cannot be made"),
        ({"weight_type": "IQ2_XXS"}, "cannot be made"),
        ({"weight_type": "Q9"}, "'Q9'"),
    ],
)
def test_weights_that_cannot_be_are_refused(shape: dict[str, object], words: str) -> None:
    arguments: dict[str, object] = {"weight_type": "Q4_K", "kernels": "ggml", "matrix_count": 8}
    with pytest.raises(ValueError, match=words):
        native.BatchProbe(make_pool(1, 1), **(arguments | shape))


def test_a_path_that_is_not_offered_is_refused() -> None:
    probe = native.BatchProbe(make_pool(1, 1), weight_type="Q4_K", kernels="ggml", matrix_count=8, rows=64)
    assert not probe.offers(native.BatchPath.PANELS)
    with pytest.raises(ValueError, match="not multiplied that way"):
        probe.sample(native.BatchPath.PANELS, native.BatchForm.EXPERTS, 4)
    with pytest.raises(ValueError, match="at least one token"):
        probe.sample(native.BatchPath.ROWS, native.BatchForm.DENSE, 0)
