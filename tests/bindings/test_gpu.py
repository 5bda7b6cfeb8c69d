"""The proxy device around a stand-in GPU: one split, the bits of plain CPU, cache, large batches and failures.

The stand-in computes with ggml's CPU kernels, so everything has the bits of the plain CPU backend, except a token
whose experts are partly hot and partly not: their sums are added in another order.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from stratad import _native as native
from stratad.config import GpuSection
from stratad.gpu.offload import open_memory
from tests.support import gguf_models, standin
from tests.support.native import all_logits, load_plain, make_pool

FAMILIES = (*gguf_models.ARCHITECTURES, "deepseek2-merged")
EXPERT_LAYERS = {"deepseek2": 1, "deepseek2-merged": 1}
PROMPT = tuple((17 * index + 5) % 320 for index in range(24))
DECODED = tuple((31 * index + 7) % 320 for index in range(16))
# Relative to the largest logit. Two orders of adding floats differ in the last bit, which the caches' F16 and
# quantised activations may round apart further: models of floats show the order alone.
ORDER_TOLERANCE = 1e-4
MIB = 1 << 20
# Of the F32 model: three matrices of 256 rows and columns.
EXPERT_BYTES = 3 * 256 * 256 * 4


@pytest.fixture(autouse=True)
def _defaults() -> Iterator[None]:
    yield
    native.set_device_options()
    for name, value in (
        ("fail_graph", 0),
        ("fail_how", 1),
        ("memory_bytes", 1 << 30),
        ("refuse_above", 0),
    ):
        standin.configure(name, value)


@pytest.fixture
def model_path(tmp_path: Path) -> Path:
    return gguf_models.write_model(tmp_path / "model.gguf", expert_type="F32", dense_type="F32")


def load_on_gpu(
    path: Path, *devices: str, layers: int = -1, slices: int = 2
) -> tuple[native.Model, native.GpuOffload]:
    gpu = standin.offload(*devices)
    return native.Model.load([str(path)], make_pool(2, slices), gpu=gpu, gpu_layer_count=layers), gpu


def counters(gpu: native.GpuOffload) -> native.GpuCounters:
    return gpu.counters()[0][1]


def open_cache(gpu: native.GpuOffload, cache_bytes: int | None, **options: object) -> native.GpuMemoryOutcome:
    return gpu.open_memory(reserve_bytes=0, cache_bytes=cache_bytes, **options)[0]


def assert_close(logits: np.ndarray, reference: np.ndarray) -> None:
    assert np.isfinite(logits).all()
    assert np.abs(logits - reference).max() <= ORDER_TOLERANCE * np.abs(reference).max()


@pytest.mark.parametrize("expert_type", gguf_models.EXPERT_TYPES)
@pytest.mark.parametrize("family", FAMILIES)
def test_every_path_has_the_bits_of_plain_cpu(family: str, expert_type: str, tmp_path: Path) -> None:
    path = gguf_models.write_model(tmp_path / "model.gguf", family, expert_type)
    reference = all_logits(load_plain(path), PROMPT, DECODED)
    model, gpu = load_on_gpu(path)
    layers = EXPERT_LAYERS.get(family, 2)
    assert np.array_equal(all_logits(model, PROMPT, DECODED), reference), "fused on the pool"
    assert counters(gpu).graphs == 1 + len(DECODED), "one split for each pass"
    assert counters(gpu).pool_chains == layers * (1 + len(DECODED))
    native.set_device_options(fuse_chains=False)
    assert np.array_equal(all_logits(model, PROMPT, DECODED), reference), "op by op on the pool"
    native.set_device_options()
    gpu.set_pool_tokens(len(PROMPT) - 1)
    open_cache(gpu, 0)
    assert np.array_equal(all_logits(model, PROMPT, DECODED), reference), "prompt on the device"
    products = 2 if family == "deepseek2-merged" else 3
    assert counters(gpu).staged_products == layers * products
    assert open_cache(gpu, None).cached_slots == 8 * layers
    before = counters(gpu)
    assert np.array_equal(all_logits(model, PROMPT, DECODED), reference), "all experts hot"
    assert counters(gpu).cache.hits == layers * 3 * len(DECODED)
    assert counters(gpu).pool_chains == before.pool_chains
    assert standin.told("bare_graphs") == 0
    assert gpu.failure is None


@pytest.mark.parametrize("family", FAMILIES)
def test_some_hot_experts_change_nothing_but_the_order_of_sums(family: str, tmp_path: Path) -> None:
    path = gguf_models.write_model(tmp_path / "model.gguf", family, "F32", dense_type="F32")
    reference = all_logits(load_plain(path), PROMPT, DECODED)
    model, gpu = load_on_gpu(path)
    gpu.set_pool_tokens(64)
    layers = EXPERT_LAYERS.get(family, 2)
    outcome = open_cache(gpu, layers * 3 * MIB)
    assert 0 < outcome.cached_slots < 8 * layers
    for _ in range(2):  # filled by use, then full
        assert_close(all_logits(model, PROMPT, DECODED), reference)
    cache = counters(gpu).cache
    uses = layers * 3 * (len(PROMPT) + len(DECODED))
    assert cache.hits + cache.misses == 2 * uses
    assert 0 < cache.hits < 2 * uses
    assert cache.resident == outcome.cached_slots
    assert cache.hit_bytes == cache.hits * cache.swap_bytes // cache.swaps


def test_swaps_follow_the_router_and_a_frozen_cache_does_not(model_path: Path) -> None:
    reference = all_logits(load_plain(model_path), PROMPT, DECODED)
    model, gpu = load_on_gpu(model_path)
    assert open_cache(gpu, 5 * EXPERT_BYTES, is_frozen=True).cached_slots == 5
    frozen = counters(gpu).cache
    assert frozen.resident == 5
    assert_close(all_logits(model, PROMPT, DECODED), reference)
    assert counters(gpu).cache.swaps == 0
    assert gpu.profile() != {}
    profile = {layer: [float(expert == 7) for expert in range(8)] for layer in (0, 1)}
    open_cache(gpu, 5 * EXPERT_BYTES, profile=profile)
    assert counters(gpu).cache.resident == 2, "what the profile names, and free slots for the rest"
    for _ in range(4):
        assert_close(all_logits(model, PROMPT, DECODED), reference)
    # Expert 7 may stay; every other resident one came by a swap.
    assert counters(gpu).cache.swaps >= 3


def test_a_profile_brings_back_what_was_hot(model_path: Path) -> None:
    model, gpu = load_on_gpu(model_path)
    open_cache(gpu, 5 * EXPERT_BYTES)
    gpu.set_pool_tokens(64)
    for _ in range(3):
        all_logits(model, PROMPT, DECODED)
    profile = gpu.profile()
    assert sorted(profile) == [0, 1]
    assert all(len(scores) == 8 and max(scores) > 1 for scores in profile.values())
    again, fresh = load_on_gpu(model_path)
    fresh.set_pool_tokens(64)
    open_cache(fresh, 5 * EXPERT_BYTES, profile=profile, is_frozen=True)
    all_logits(again, PROMPT, DECODED)
    hits = counters(fresh).cache.hits
    cold_model, cold = load_on_gpu(model_path)
    cold.set_pool_tokens(64)
    open_cache(
        cold,
        5 * EXPERT_BYTES,
        profile={layer: [-score for score in profile[layer]] for layer in profile},
        is_frozen=True,
    )
    all_logits(cold_model, PROMPT, DECODED)
    assert hits > counters(cold).cache.hits


def test_large_batches_copy_the_used_experts_only(model_path: Path) -> None:
    prompt = PROMPT[:2]
    model, gpu = load_on_gpu(model_path)
    gpu.set_pool_tokens(1)
    open_cache(gpu, 0)
    logits = all_logits(model, prompt, ())
    assert np.array_equal(logits, all_logits(load_plain(model_path), prompt, ()))
    per_product, rest = divmod(counters(gpu).staged_bytes, EXPERT_BYTES // 3)
    # Two tokens with three experts each: from three to six experts, three products, two layers.
    assert rest == 0
    assert 3 * 6 <= per_product <= 6 * 6
    assert counters(gpu).staged_products == 6


def test_several_sequences_in_a_batch_have_their_own_experts(model_path: Path) -> None:
    def answers(model: native.Model) -> np.ndarray:
        context = native.Context(model, context_tokens=256, batch_tokens=64, sequence_count=4)
        batch, rows = native.Batch(), []
        for step in range(6):
            batch.clear()
            for sequence in range(4):
                batch.add((97 * sequence + 13 * step) % 320, step, sequence, True)
            context.decode(batch)
            rows += [context.logits(index) for index in range(4)]
        return np.stack(rows)

    reference = answers(load_plain(model_path))
    model, gpu = load_on_gpu(model_path)
    assert np.array_equal(answers(model), reference)
    open_cache(gpu, 5 * EXPERT_BYTES)
    for _ in range(2):
        assert_close(answers(model), reference)
    assert counters(gpu).cache.hits > 0
    open_cache(gpu, None)
    assert np.array_equal(answers(model), reference)


def test_two_contexts_share_a_device_in_turns(model_path: Path) -> None:
    reference = all_logits(load_plain(model_path), PROMPT[:1], PROMPT[1:])
    model, gpu = load_on_gpu(model_path)
    open_cache(gpu, 5 * EXPERT_BYTES)
    contexts = [native.Context(model, context_tokens=256, batch_tokens=64) for _ in range(2)]
    batch = native.Batch()
    for position, token in enumerate(PROMPT):
        for context in contexts:
            batch.clear()
            batch.add(token, position, 0, True)
            context.decode(batch)
            assert_close(context.logits(-1), reference[position])


@pytest.mark.parametrize("layers", [0, 1, 2])
def test_layers_that_stay_on_the_cpu_are_computed_there(model_path: Path, layers: int) -> None:
    reference = all_logits(load_plain(model_path), PROMPT, DECODED)
    # llama.cpp counts the output as a layer of its own.
    model, gpu = load_on_gpu(model_path, layers=layers)
    before = native.device_counters().fused_chains
    assert np.array_equal(all_logits(model, PROMPT, DECODED), reference)
    on_gpu = max(0, layers - 1)
    assert counters(gpu).pool_chains == on_gpu * (1 + len(DECODED))
    # The prompt of layers on the CPU goes to ggml as a whole.
    assert native.device_counters().fused_chains - before >= 2 * len(DECODED)


def test_two_devices_have_their_own_layers(tmp_path: Path) -> None:
    shape = gguf_models.ModelShape(layer_count=4)
    path = gguf_models.write_model(tmp_path / "model.gguf", shape=shape)
    reference = all_logits(load_plain(path), PROMPT, DECODED)
    model, gpu = load_on_gpu(path, "STANDIN0", "STANDIN1")
    outcomes = gpu.open_memory(reserve_bytes=0)
    # llama.cpp counts the output as a fifth layer, and gives each device half of them.
    assert [outcome.expert_layers for outcome in outcomes] == [3, 1]
    assert np.array_equal(all_logits(model, PROMPT, DECODED), reference)
    hits = [one.cache.hits for _, one in gpu.counters()]
    assert hits == [layers * 3 * (len(PROMPT) + len(DECODED)) for layers in (3, 1)]


# --- Memory and failures -----------------------------------------------------------------------------


def test_an_unknown_device_is_refused_by_name() -> None:
    with pytest.raises(ValueError, match="there is no GPU CUDA7, only: STANDIN0, STANDIN1"):
        standin.offload("CUDA7")


def test_a_cache_that_does_not_fit_gets_smaller(model_path: Path) -> None:
    reference = all_logits(load_plain(model_path), PROMPT, DECODED)
    model, gpu = load_on_gpu(model_path)
    # The device says that it has room, and then refuses: others take memory as well.
    standin.configure("refuse_above", 4 * EXPERT_BYTES)
    outcome = open_cache(gpu, 16 * EXPERT_BYTES)
    assert 0 < outcome.cache_bytes < outcome.asked_bytes == 16 * EXPERT_BYTES
    assert outcome.was_refused
    assert_close(all_logits(model, PROMPT, DECODED), reference)


def test_only_a_refusal_is_told_as_one(model_path: Path) -> None:
    def told() -> list[str]:
        found = open_memory(gpu, GpuSection(vram_reserve_bytes=0), {}, lambda stage, done: True)
        return [reason.code for reason in found]

    _, gpu = load_on_gpu(model_path)
    assert gpu.inner_devices()[0].free_bytes > 4 * 16 * EXPERT_BYTES, "far more than all experts take"
    assert told() == ["gpu-cache"]
    standin.configure("refuse_above", 4 * EXPERT_BYTES)
    assert told() == ["gpu-cache-smaller"]


def test_without_room_for_an_expert_there_is_no_cache(model_path: Path) -> None:
    model, gpu = load_on_gpu(model_path)
    outcome = open_cache(gpu, 1000)
    assert (outcome.cached_slots, outcome.cache_bytes) == (0, 0)
    assert np.array_equal(
        all_logits(model, PROMPT, DECODED), all_logits(load_plain(model_path), PROMPT, DECODED)
    )


def test_the_reserve_is_left_free(model_path: Path) -> None:
    _, gpu = load_on_gpu(model_path)
    free_bytes = gpu.inner_devices()[0].free_bytes
    outcome = gpu.open_memory(reserve_bytes=free_bytes - 5 * MIB)[0]
    assert outcome.has_staging
    assert outcome.cache_bytes <= 5 * MIB
    assert gpu.inner_devices()[0].free_bytes >= free_bytes - 5 * MIB


def test_without_memory_for_large_batches_the_pool_computes_them(model_path: Path) -> None:
    model, gpu = load_on_gpu(model_path)
    context = native.Context(model, context_tokens=256, batch_tokens=64)
    standin.configure("memory_bytes", standin.told("allocated_bytes"))
    outcome = gpu.open_memory(reserve_bytes=0)[0]
    assert not outcome.has_staging
    assert outcome.cached_slots == 0
    gpu.set_pool_tokens(1)
    batch = native.Batch()
    for position, token in enumerate(PROMPT):
        batch.add(token, position, 0, True)
    context.decode(batch)
    reference = all_logits(load_plain(model_path), PROMPT, ())
    assert np.array_equal(context.logits(-1), reference[-1])


def test_memory_for_large_batches_is_opened_anew_where_there_is_room_once(model_path: Path) -> None:
    _, gpu = load_on_gpu(model_path)
    before_bytes = standin.told("allocated_bytes")
    assert gpu.open_memory(reserve_bytes=0, cache_bytes=0)[0].has_staging
    # As a start does that measures first: one that kept both for a moment would need twice as much.
    staging_bytes = standin.told("allocated_bytes") - before_bytes
    standin.configure("memory_bytes", before_bytes + staging_bytes)
    assert gpu.open_memory(reserve_bytes=0, cache_bytes=0)[0].has_staging


@pytest.mark.parametrize("graph", [1, 2, 3, 4, 5, 6, 7, 8])
@pytest.mark.parametrize(("how", "words"), [(1, "refused a computation"), (2, "device was lost")])
def test_a_failing_device_ends_the_call_with_its_words_and_every_later_one(
    model_path: Path, graph: int, how: int, words: str
) -> None:
    model, gpu = load_on_gpu(model_path)
    open_cache(gpu, 5 * EXPERT_BYTES)
    context = native.Context(model, context_tokens=256, batch_tokens=64)
    batch = native.Batch()
    batch.add(5, 0, 0, True)
    context.decode(batch)
    standin.configure("fail_how", how)
    standin.configure("fail_graph", graph)
    with pytest.raises(native.DecodeError, match=words) as caught:
        for position in range(1, 4):
            batch.clear()
            batch.add(5, position, 0, True)
            context.decode(batch)
    assert caught.value.status == native.DEVICE_FAILED
    assert words in str(gpu.failure)
    with pytest.raises(native.DecodeError, match=words):
        context.decode(batch)
    # The pool and other models are as sound as before.
    other, _ = load_on_gpu(model_path)
    assert np.array_equal(all_logits(other, PROMPT, ()), all_logits(load_plain(model_path), PROMPT, ()))


def test_a_device_out_of_memory_gives_up_its_cache_and_goes_on(model_path: Path) -> None:
    model, gpu = load_on_gpu(model_path)
    open_cache(gpu, None)
    standin.configure("fail_how", 3)
    standin.configure("fail_graph", 3)
    with pytest.raises(native.DecodeError):
        all_logits(model, PROMPT, DECODED)
    assert gpu.failure is None
    assert counters(gpu).cache.slots == 0
    assert np.array_equal(
        all_logits(model, PROMPT, DECODED), all_logits(load_plain(model_path), PROMPT, DECODED)
    )


def test_a_load_that_the_device_has_no_memory_for_says_so(model_path: Path) -> None:
    standin.configure("memory_bytes", 4096)
    with pytest.raises(native.ModelLoadError, match="allocate"):
        load_on_gpu(model_path)


def test_filling_the_cache_tells_how_far_it_is(model_path: Path) -> None:
    model, gpu = load_on_gpu(model_path)
    progress: list[float] = []
    gpu.open_memory(reserve_bytes=0, progress=lambda stage, done: progress.append(done) or True)
    assert progress == [0.5, 1.0]
    assert np.array_equal(all_logits(model, PROMPT, ()), all_logits(load_plain(model_path), PROMPT, ()))


def test_a_gpu_model_holds_experts_only_in_its_arena(model_path: Path) -> None:
    with pytest.raises(ValueError, match="experts only"):
        native.Model.load(
            [str(model_path)], make_pool(), gpu=standin.offload(), scope=native.ArenaScope.WEIGHTS
        )
