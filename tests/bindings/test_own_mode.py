"""Own mode: all large weights in the arena, the whole graph ours, and the bits of llama.cpp's plain CPU backend."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import pytest

from stratad import _native as native
from stratad.gguf.model import read_model_facts
from tests.support import gguf_models
from tests.support.native import all_logits, load_owned, load_placed, load_plain, make_pool

FAMILIES = (*gguf_models.ARCHITECTURES, "deepseek2-merged")
PROMPT = tuple((17 * index + 5) % 320 for index in range(5))
LONG_PROMPT = tuple((17 * index + 5) % 320 for index in range(24))
DECODED = (11, 300, 42)
ANY_BATCH = 1 << 20
LAYOUTS = ((1, 1), (1, 2), (2, 2), (3, 4), (3, 1))  # slices, workers


@pytest.fixture(autouse=True)
def _default_device_options() -> Iterator[None]:
    native.set_device_options()
    yield
    native.set_device_options()


def counted(
    model: native.Model, prompt: Sequence[int], decoded: Sequence[int]
) -> tuple[np.ndarray, dict[str, int]]:
    """Logits, and how much each of the device's counters went up while they were computed."""
    names = (
        "graphs",
        "whole_graphs",
        "fused_chains",
        "fallback_operations",
        "dense_jobs",
        "lane_products",
        "attentions",
    )
    before = native.device_counters()
    logits = all_logits(model, prompt, decoded)
    after = native.device_counters()
    return logits, {name: getattr(after, name) - getattr(before, name) for name in names}


@pytest.mark.parametrize("weight_type", gguf_models.EXPERT_TYPES)
@pytest.mark.parametrize("family", FAMILIES)
def test_logits_equal_plain_cpu_bit_by_bit(family: str, weight_type: str, tmp_path: Path) -> None:
    path = gguf_models.write_model(tmp_path / "model.gguf", family, weight_type, dense_type=weight_type)
    reference = all_logits(load_plain(path), PROMPT, DECODED)
    assert np.isfinite(reference).all()
    for slice_count, worker_count in LAYOUTS:
        logits, counts = counted(load_owned(path, make_pool(worker_count, slice_count)), PROMPT, DECODED)
        where = f"{slice_count} slices, {worker_count} workers"
        assert np.array_equal(logits, reference), where
        # One split: the scheduler hands over each graph once.
        assert counts["graphs"] == 1 + len(DECODED), where
        assert counts["whole_graphs"] == counts["fallback_operations"] == 0, where
        assert counts["attentions"] == 2 * (1 + len(DECODED)), where
        assert counts["dense_jobs"] >= 5 * len(DECODED), where
        assert counts["lane_products"] > 0, where


@pytest.mark.parametrize("family", ["qwen3moe", "gpt-oss", "deepseek2", "dense"])
def test_batches_above_the_limit_go_to_ggml_as_a_whole(family: str, tmp_path: Path) -> None:
    path = gguf_models.write_model(tmp_path / "model.gguf", family, "Q4_K", dense_type="Q4_K")
    logits, counts = counted(load_owned(path, make_pool(2, 2)), LONG_PROMPT, DECODED)
    assert np.array_equal(logits, all_logits(load_plain(path), LONG_PROMPT, DECODED))
    assert counts["whole_graphs"] == 1
    assert counts["graphs"] == 1 + len(DECODED)
    assert counts["attentions"] == 2 * len(DECODED)


@pytest.mark.parametrize("weight_type", ["F32", "BF16", "Q8_0", "Q4_K"])
def test_long_batches_in_row_slices_have_the_same_bits(weight_type: str, tmp_path: Path) -> None:
    path = gguf_models.write_model(tmp_path / "model.gguf", "deepseek2", weight_type, dense_type=weight_type)
    reference = all_logits(load_plain(path), LONG_PROMPT, DECODED)
    native.set_device_options(max_pool_tokens=ANY_BATCH)
    for slice_count, worker_count in LAYOUTS:
        logits, counts = counted(load_owned(path, make_pool(worker_count, slice_count)), LONG_PROMPT, DECODED)
        assert np.array_equal(logits, reference), f"{slice_count} slices, {worker_count} workers"
        assert counts["whole_graphs"] == 0


@pytest.mark.parametrize("family", ["qwen3moe", "gpt-oss"])
def test_operations_of_a_chain_by_themselves_have_the_same_bits(family: str, tmp_path: Path) -> None:
    path = gguf_models.write_model(tmp_path / "model.gguf", family, "Q4_K")
    reference = all_logits(load_plain(path), PROMPT, DECODED)
    native.set_device_options(fuse_chains=False)
    logits, counts = counted(load_owned(path, make_pool(2, 2)), PROMPT, DECODED)
    assert np.array_equal(logits, reference)
    assert counts["fused_chains"] == 0
    assert counts["fallback_operations"] > 0


@pytest.mark.parametrize("family", ["qwen3moe", "gpt-oss", "deepseek2"])
def test_long_contexts_have_the_bits_of_one_thread_whatever_the_pool(family: str, tmp_path: Path) -> None:
    """From 512 cached tokens on ggml cuts attention by thread, and its own result depends on their number."""
    path = gguf_models.write_model(tmp_path / "model.gguf", family, "Q8_0")
    prompt = [(13 * index + 7) % 320 for index in range(600)]

    def decoded_logits(model: native.Model) -> np.ndarray:
        context = native.Context(model, context_tokens=1024, batch_tokens=600, thread_count=1)
        batch = native.Batch()
        for position, token in enumerate(prompt):
            batch.add(token, position, 0, position + 1 == len(prompt))
        context.decode(batch)
        rows = []
        for offset, token in enumerate(DECODED):
            batch.clear()
            batch.add(token, len(prompt) + offset, 0, True)
            context.decode(batch)
            rows.append(context.logits(-1))
        return np.stack(rows)

    reference = decoded_logits(load_plain(path))
    for slice_count, worker_count in LAYOUTS:
        logits = decoded_logits(load_owned(path, make_pool(worker_count, slice_count)))
        assert np.array_equal(logits, reference), f"{slice_count} slices, {worker_count} workers"


@pytest.mark.parametrize("family", ["qwen3moe", "gpt-oss", "deepseek2"])
def test_several_sequences_in_one_batch_have_the_same_bits(family: str, tmp_path: Path) -> None:
    path = gguf_models.write_model(tmp_path / "model.gguf", family, "Q8_0")

    def stream_logits(model: native.Model) -> np.ndarray:
        context = native.Context(model, context_tokens=256, batch_tokens=64, sequence_count=3)
        batch, rows = native.Batch(), []
        for position in range(4):
            batch.clear()
            for sequence in range(3):
                batch.add((31 * position + 7 * sequence) % 320, position, sequence, True)
            context.decode(batch)
            rows.extend(context.logits(index) for index in range(3))
        return np.stack(rows)

    reference = stream_logits(load_plain(path))
    for slice_count, worker_count in LAYOUTS:
        before = native.device_counters()
        logits = stream_logits(load_owned(path, make_pool(worker_count, slice_count)))
        assert np.array_equal(logits, reference), f"{slice_count} slices, {worker_count} workers"
        assert native.device_counters().attentions - before.attentions == 2 * 4


@pytest.mark.parametrize(("head_count", "kv_head_count"), [(4, 4), (6, 2), (8, 1), (3, 3)])
def test_heads_need_not_divide_among_workers(head_count: int, kv_head_count: int, tmp_path: Path) -> None:
    shape = gguf_models.ModelShape(head_count=head_count, kv_head_count=kv_head_count)
    path = gguf_models.write_model(tmp_path / "model.gguf", shape=shape)
    reference = all_logits(load_plain(path), PROMPT, DECODED)
    for slice_count, worker_count in ((1, 5), (2, 7), (4, 4), (5, 2)):
        logits, counts = counted(load_owned(path, make_pool(worker_count, slice_count)), PROMPT, DECODED)
        assert np.array_equal(logits, reference), f"{slice_count} slices, {worker_count} workers"
        assert counts["attentions"] == 2 * (1 + len(DECODED))


def test_an_output_tied_to_the_embeddings_is_computed_by_the_pool(tmp_path: Path) -> None:
    shape = gguf_models.ModelShape(has_tied_output=True)
    path = gguf_models.write_model(tmp_path / "model.gguf", shape=shape)
    reference = all_logits(load_plain(path), PROMPT[:1], DECODED)
    logits, counts = counted(load_owned(path, make_pool(2, 2)), PROMPT[:1], DECODED)
    assert np.array_equal(logits, reference)
    assert counts["dense_jobs"] == 5 * (
        1 + len(DECODED)
    )  # Q, K, V and attention output of two layers; the head


@pytest.mark.parametrize("family", [*FAMILIES, "dense"])
def test_the_arena_holds_what_the_planner_counts(family: str, tmp_path: Path) -> None:
    path = gguf_models.write_model(tmp_path / "model.gguf", family)
    facts = read_model_facts(path)
    (arena,) = load_owned(path, make_pool(2, 2)).arenas
    tensors = (*facts.expert_tensors, *facts.dense_tensors)
    assert arena.size_bytes == sum(-(-tensor.size_bytes // 4096) * 4096 for tensor in tensors)


def test_the_modes_of_two_contexts_do_not_mix(tmp_path: Path) -> None:
    path = gguf_models.write_model(tmp_path / "model.gguf")
    plain, placed, owned = (
        load_plain(path),
        load_placed(path, make_pool(2, 2)),
        load_owned(path, make_pool(3, 1)),
    )
    reference = all_logits(plain, PROMPT, DECODED)
    for model, graphs in ((placed, 0), (owned, 1 + len(DECODED)), (plain, 0), (owned, 1 + len(DECODED))):
        logits, counts = counted(model, PROMPT, DECODED)
        assert np.array_equal(logits, reference)
        assert counts["graphs"] == graphs


def test_a_token_reads_of_each_slice_what_the_arena_placed_there(tmp_path: Path) -> None:
    """Row cuts of kernels and arena agree: with every expert used, a token reads the whole arena, slice by slice."""
    shape = gguf_models.ModelShape(
        experts_used=8, embedding=512, expert_hidden=512, dense_hidden=1024, vocabulary=1000
    )
    path = gguf_models.write_model(
        tmp_path / "model.gguf", "deepseek2", "Q4_K", dense_type="Q6_K", shape=shape
    )
    slices = [native.SliceSeat(weight=weight) for weight in (1, 3, 2)]
    workers = [native.WorkerSeat(None, index) for index in range(3)]
    model = load_owned(path, native.Pool(slices, workers, 20e-6))
    (arena,) = model.arenas
    all_logits(model, PROMPT[:1], ())  # from here on every counter has three slices
    before = native.device_counters()
    all_logits(model, PROMPT[:1], ())
    after = native.device_counters()
    for index in range(3):
        read = sum(
            getattr(after, name)[index] - getattr(before, name)[index]
            for name in ("expert_bytes", "dense_bytes")
        )
        # Pages at borders count for one slice and are read by both.
        assert read == pytest.approx(arena.slice_bytes(index), abs=100_000)


@pytest.mark.parametrize("kernels", native.supported_kernels())
def test_a_batch_that_asks_for_no_logits_leaves_the_last_layer_out(kernels: str, tmp_path: Path) -> None:
    """The products behind the last layer then have no rows at all."""
    # Its shared experts are dense products behind the point where rows are left out.
    path = gguf_models.write_model(tmp_path / "model.gguf", "deepseek2", "Q4_K")
    native.set_device_options(max_pool_tokens=ANY_BATCH, kernels=kernels)
    model = load_owned(path, make_pool(2, 2))
    context = native.Context(model, context_tokens=64, batch_tokens=16)
    batch = native.Batch()
    for position in range(4):
        batch.add(position + 1, position, 0, False)
    context.decode(batch)
    batch.clear()
    batch.add(7, 4, 0, True)
    context.decode(batch)
    expected = all_logits(model, (1, 2, 3, 4), (7,))[-1]
    assert np.allclose(context.logits(-1), expected, rtol=1e-3, atol=1e-3)
