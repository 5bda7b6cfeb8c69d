"""Logits of the pool are bitwise those of llama.cpp's plain CPU backend, for every architecture, type and layout."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from stratad import _native as native
from tests.support import gguf_models
from tests.support.native import all_logits, load_placed, load_plain, make_pool

FAMILIES = (*gguf_models.ARCHITECTURES, "deepseek2-merged")
EXPERT_LAYERS = {"deepseek2": 1, "deepseek2-merged": 1}
PROMPT = tuple((17 * index + 5) % 320 for index in range(24))
DECODED = (11, 300, 42)
ANY_BATCH = 1 << 20


@pytest.fixture(autouse=True)
def _default_device_options() -> Iterator[None]:
    yield
    native.set_device_options()


def logits_and_counts(
    model: native.Model, *, thread_count: int = 1
) -> tuple[np.ndarray, native.DeviceCounters, int, int]:
    before = native.device_counters()
    logits = all_logits(model, PROMPT, DECODED, thread_count=thread_count)
    after = native.device_counters()
    return (
        logits,
        after,
        after.fused_chains - before.fused_chains,
        after.fallback_operations - before.fallback_operations,
    )


@pytest.mark.parametrize("expert_type", gguf_models.EXPERT_TYPES)
@pytest.mark.parametrize("family", FAMILIES)
def test_prefill_and_decode_equal_plain_cpu_bit_by_bit(family: str, expert_type: str, tmp_path: Path) -> None:
    path = gguf_models.write_model(tmp_path / "model.gguf", family, expert_type)
    reference = all_logits(load_plain(path), PROMPT, DECODED)
    assert np.isfinite(reference).all()
    chains = EXPERT_LAYERS.get(family, 2) * (1 + len(DECODED))
    for slice_count in (1, 2, 3):
        for worker_count in (1, 2, 4):
            model = load_placed(path, make_pool(worker_count, slice_count))
            for fuse_chains in (True, False):
                native.set_device_options(max_pool_tokens=ANY_BATCH, fuse_chains=fuse_chains)
                logits, _, fused, fallbacks = logits_and_counts(model)
                where = f"{slice_count} slices, {worker_count} workers, fused {fuse_chains}"
                assert np.array_equal(logits, reference), where
                assert fused == (chains if fuse_chains else 0), where
                assert (fallbacks == 0) == fuse_chains, where


@pytest.mark.parametrize("family", FAMILIES)
def test_batches_above_the_threshold_are_computed_by_ggml_on_the_arena(family: str, tmp_path: Path) -> None:
    path = gguf_models.write_model(tmp_path / "model.gguf", family, "Q4_K")
    model = load_placed(path, make_pool(2, 2))
    native.set_device_options(max_pool_tokens=len(PROMPT) - 1)
    logits, _, fused, fallbacks = logits_and_counts(model, thread_count=2)
    assert np.array_equal(logits, all_logits(load_plain(path), PROMPT, DECODED))
    assert fused == EXPERT_LAYERS.get(family, 2) * len(DECODED)
    assert fallbacks == 0


def test_a_batch_exactly_at_the_threshold_is_computed_by_the_pool(tmp_path: Path) -> None:
    path = gguf_models.write_model(tmp_path / "model.gguf")
    model = load_placed(path, make_pool(2, 1))
    native.set_device_options(max_pool_tokens=len(PROMPT))
    _, _, fused, _ = logits_and_counts(model)
    assert fused == 2 * (1 + len(DECODED))


def test_expert_bytes_count_what_the_router_chose(tmp_path: Path) -> None:
    shape = gguf_models.ModelShape()
    path = gguf_models.write_model(tmp_path / "model.gguf", shape=shape)
    model = load_placed(path, make_pool(2, 2))
    all_logits(model, PROMPT[:1], ())
    before = sum(native.device_counters().expert_bytes)
    all_logits(model, PROMPT[:1], ())
    row_bytes = shape.embedding // 32 * 34
    one_expert = 3 * shape.expert_hidden * row_bytes
    expected = shape.layer_count * shape.experts_used * one_expert
    assert sum(native.device_counters().expert_bytes) - before == expected


TILED_CHECK = """
import sys
import numpy as np
from pathlib import Path
from tests.support.native import all_logits, load_placed, load_plain, make_pool
path, prompt = Path(sys.argv[1]), [(7 * index + 3) % 320 for index in range(48)]
pool = make_pool(2, 2)
same = np.array_equal(all_logits(load_placed(path, pool), prompt, [1, 2]), all_logits(load_plain(path), prompt, [1, 2]))
sys.exit(0 if same else 9)
"""


def test_prompts_are_bitwise_equal_with_ggmls_tiled_kernel_on(tmp_path: Path) -> None:
    """The default settings: long prompts go to ggml's tiled kernel, which computes on our arena."""
    path = gguf_models.write_model(tmp_path / "model.gguf", "qwen3moe", "Q4_K")
    outcome = subprocess.run(
        [sys.executable, "-c", TILED_CHECK, str(path)], env={"GGML_CPU_TILED_MM": "1"}, check=False
    )
    assert outcome.returncode == 0
