"""Our own row kernels in whole models: the same bits for every layout, and ggml's logits but for rounding."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from stratad import _native as native
from stratad.errors import ConfigurationError
from stratad.native.apply import chosen_kernels
from tests.support import gguf_models
from tests.support.native import all_logits, load_owned, load_placed, load_plain, make_pool

PROMPT = tuple((17 * index + 5) % 320 for index in range(24))
DECODED = (11, 300, 42)
ANY_BATCH = 1 << 20
OWN_KERNELS = [name for name in native.supported_kernels() if name != "ggml"]
# Every other type is computed by ggml's dot products, whatever kernels are chosen.
OWN_TYPES = {"Q4_K", "Q6_K", "Q8_0", "Q5_K", "IQ4_XS", "Q4_0", "MXFP4", "BF16", "F16"}
LIMIT = 1e-6
# A sum that differs in its last bit can round an activation of the next layer to the neighbouring int8 value.
ROUNDED_OTHERWISE_LIMIT = 1e-3


@pytest.fixture(autouse=True)
def _default_device_options() -> Iterator[None]:
    yield
    native.set_device_options()


def normalised_errors(logits: np.ndarray, reference: np.ndarray) -> np.ndarray:
    """Squared error of each position over the reference's power there."""
    logits, reference = logits.astype(np.float64), reference.astype(np.float64)
    return np.square(logits - reference).sum(axis=1) / np.square(reference).sum(axis=1)


def logits_of_single_tokens(model: native.Model) -> np.ndarray:
    """Every token of the prompt in a context of its own, so that no position sees another's rounding."""
    return np.concatenate([all_logits(model, (token,), ()) for token in PROMPT])


@pytest.mark.parametrize("expert_type", gguf_models.EXPERT_TYPES)
@pytest.mark.parametrize("kernels", OWN_KERNELS)
def test_any_layout_gives_the_same_bits(kernels: str, expert_type: str, tmp_path: Path) -> None:
    for family in ("qwen3moe", "gpt-oss", "deepseek2-merged"):
        path = gguf_models.write_model(tmp_path / f"{family}.gguf", family, expert_type)
        plain = all_logits(load_plain(path), PROMPT, DECODED)
        native.set_device_options(max_pool_tokens=ANY_BATCH, kernels=kernels)
        first = all_logits(load_placed(path, make_pool(1, 1)), PROMPT, DECODED)
        assert np.array_equal(first, plain) == (expert_type not in OWN_TYPES)
        for slice_count, worker_count in ((1, 2), (2, 4), (3, 3)):
            model = load_placed(path, make_pool(worker_count, slice_count))
            for fuse_chains in (True, False):
                native.set_device_options(ANY_BATCH, fuse_chains, kernels)
                logits = all_logits(model, PROMPT, DECODED)
                assert np.array_equal(logits, first), f"{family}, {slice_count} slices, fused {fuse_chains}"


@pytest.mark.parametrize("weight_type", gguf_models.EXPERT_TYPES)
@pytest.mark.parametrize("kernels", OWN_KERNELS)
def test_any_layout_gives_the_same_bits_in_own_mode(kernels: str, weight_type: str, tmp_path: Path) -> None:
    for family in ("qwen3moe", "gpt-oss", "deepseek2-merged", "dense"):
        path = gguf_models.write_model(
            tmp_path / f"{family}.gguf", family, weight_type, dense_type=weight_type
        )
        plain = all_logits(load_plain(path), PROMPT, DECODED)
        native.set_device_options(max_pool_tokens=ANY_BATCH, kernels=kernels)
        first = all_logits(load_owned(path, make_pool(1, 1)), PROMPT, DECODED)
        assert np.array_equal(first, plain) == (weight_type not in OWN_TYPES)
        for slice_count, worker_count in ((1, 2), (2, 4), (3, 3), (3, 1)):
            logits = all_logits(load_owned(path, make_pool(worker_count, slice_count)), PROMPT, DECODED)
            assert np.array_equal(logits, first), f"{family}, {slice_count} slices, {worker_count} workers"


@pytest.mark.parametrize("expert_type", sorted(OWN_TYPES))
@pytest.mark.parametrize("kernels", OWN_KERNELS)
def test_logits_are_ggmls_but_for_rounding(kernels: str, expert_type: str, tmp_path: Path) -> None:
    errors = []
    for family in ("qwen3moe", "gpt-oss", "deepseek2-merged"):
        path = gguf_models.write_model(tmp_path / f"{family}.gguf", family, expert_type)
        plain = logits_of_single_tokens(load_plain(path))
        native.set_device_options(max_pool_tokens=ANY_BATCH, kernels=kernels)
        errors.append(normalised_errors(logits_of_single_tokens(load_placed(path, make_pool(2, 2))), plain))
    assert np.quantile(np.concatenate(errors), 0.9) <= LIMIT
    assert np.max(errors) <= ROUNDED_OTHERWISE_LIMIT


def test_kernels_that_this_cpu_lacks_are_refused_by_name() -> None:
    with pytest.raises(ValueError, match="'sse9'"):
        native.set_device_options(kernels="sse9")
    assert native.supported_kernels()[-1] == "ggml"


def test_a_cap_that_this_cpu_cannot_keep_is_a_configuration_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(native, "supported_kernels", lambda: ["avx2", "ggml"])
    assert chosen_kernels("auto") == "avx2"
    assert chosen_kernels("ggml") == "ggml"
    with pytest.raises(ConfigurationError, match="avx512") as refused:
        chosen_kernels("avx512")
    assert refused.value.values == {"supported": ["avx2", "ggml"]}
    assert 'placement.kernels = "auto"' in refused.value.remedy
