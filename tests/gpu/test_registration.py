"""Arenas registered with a GPU's runtime: whole or not at all, in bounded chunks, and held still meanwhile."""

from __future__ import annotations

from pathlib import Path

import pytest

from stratad import _native as native
from tests.gpu.fake_gpu import FakeGpu, driverless_path, fake_gpu_path, run_alone
from tests.support import gguf_models
from tests.support.native import load_placed, make_pool

CHUNK_BYTES = 64 * 1024


def placed_arena(folder: Path) -> tuple[native.Arena, native.Model]:
    model = load_placed(gguf_models.write_model(folder / "model.gguf", "qwen3moe", "Q4_K"), make_pool(2, 2))
    return model.arenas[0], model


def loaded_fake() -> FakeGpu:
    module = native.load_gpu_module(str(fake_gpu_path()))
    assert (module.backend, module.error, module.device_count) == ("FakeGPU", "", 2)
    return FakeGpu(fake_gpu_path())


def scene_whole(folder: Path) -> None:
    fake = loaded_fake()
    arena, _model = placed_arena(folder)
    registration = native.HostRegistration(arena, "FakeGPU", CHUNK_BYTES)
    assert registration.state == native.RegistrationState.PINNED
    assert registration.pinned_bytes == fake.count("registered_bytes") == arena.size_bytes
    assert registration.chunk_count == fake.count("registered_chunks") > 1
    assert fake.count("largest_chunk_bytes") <= CHUNK_BYTES
    registration.release()
    assert registration.pinned_bytes == fake.count("registered_bytes") == fake.count("mistakes") == 0


def test_an_arena_is_registered_in_bounded_chunks_and_released(tmp_path: Path) -> None:
    run_alone(scene_whole, tmp_path)


def scene_few_chunks(folder: Path) -> None:
    fake = loaded_fake()
    arena, _model = placed_arena(folder)
    # Room for two tensors of this model and a bit: a chunk ends with a tensor, so that no copy spans two chunks.
    registration = native.HostRegistration(arena, "FakeGPU", 2 * 294912 + 4096)
    assert registration.chunk_count == 3
    assert fake.count("largest_chunk_bytes") == 2 * 294912
    registration.release()
    whole = native.HostRegistration(arena, "FakeGPU")
    assert whole.chunk_count == 1


def test_chunks_end_where_tensors_do(tmp_path: Path) -> None:
    run_alone(scene_few_chunks, tmp_path)


def scene_refused(folder: Path) -> None:
    fake = loaded_fake()
    arena, _model = placed_arena(folder)
    fake.refuse_beyond(arena.size_bytes // 2)
    registration = native.HostRegistration(arena, "FakeGPU", CHUNK_BYTES)
    assert registration.state == native.RegistrationState.REFUSED
    assert 0 < registration.bytes_before_refusal <= arena.size_bytes // 2
    assert registration.refused_chunk_bytes == CHUNK_BYTES
    assert registration.pinned_bytes == fake.count("registered_bytes") == fake.count("mistakes") == 0
    assert not arena.are_pages_held


def test_a_refusal_half_way_leaves_nothing_registered(tmp_path: Path) -> None:
    run_alone(scene_refused, tmp_path)


def scene_unsupported(folder: Path) -> None:
    fake = loaded_fake()
    arena, _model = placed_arena(folder)
    fake.know_registration(False)
    assert not native.can_register_host("FakeGPU")
    registration = native.HostRegistration(arena, "FakeGPU", CHUNK_BYTES)
    assert registration.state == native.RegistrationState.UNSUPPORTED
    assert registration.pinned_bytes == fake.count("register_calls") == 0
    assert not arena.are_pages_held


def test_a_backend_without_registration_is_no_failure(tmp_path: Path) -> None:
    run_alone(scene_unsupported, tmp_path)


def scene_held(folder: Path) -> None:
    loaded_fake()
    arena, _model = placed_arena(folder)
    first = native.HostRegistration(arena, "FakeGPU", CHUNK_BYTES)
    assert arena.are_pages_held
    assert arena.repair() == 0
    first.release()
    assert not arena.are_pages_held
    first.release()
    assert not arena.are_pages_held


def test_pages_are_held_while_registered(tmp_path: Path) -> None:
    run_alone(scene_held, tmp_path)


def scene_dropped_last(folder: Path) -> None:
    fake = loaded_fake()
    arena, model = placed_arena(folder)
    registration = native.HostRegistration(arena, "FakeGPU", CHUNK_BYTES)
    # The wrong order: the stand-in reads a page of each chunk when it is unregistered.
    del model, arena
    assert fake.count("registered_bytes") > 0
    del registration
    assert fake.count("registered_bytes") == fake.count("mistakes") == 0


def test_pages_are_unregistered_before_they_are_unmapped_whatever_goes_first(tmp_path: Path) -> None:
    run_alone(scene_dropped_last, tmp_path)


def scene_copies(folder: Path) -> None:
    fake = loaded_fake()
    arena, _model = placed_arena(folder)
    for index in (0, 1):
        before = fake.count("copied_bytes")
        assert native.measure_copy_rate(arena, index, "Fake0", 1 << 30) > 0
        # Once to warm up and once timed: the slice's own bytes and no others.
        assert fake.count("copied_bytes") - before == 2 * arena.slice_bytes(index)
    before = fake.count("copied_bytes")
    native.measure_copy_rate(arena, 0, "Fake1", 8192)
    assert fake.count("copied_bytes") - before == 2 * 8192
    for arguments, message in (((arena, 2, "Fake0"), "no slice 2"), ((arena, 0, "CUDA7"), "CUDA7")):
        with pytest.raises(ValueError, match=message):
            native.measure_copy_rate(*arguments)


def test_a_copy_rate_reads_the_slices_own_pages(tmp_path: Path) -> None:
    run_alone(scene_copies, tmp_path)


def scene_modules(folder: Path) -> None:
    text = folder / "libggml-cuda.so"
    text.write_text("no library")
    for path, words in (
        (driverless_path(), "libabsent-driver.so"),
        (folder / "missing.so", "cannot open"),
        (text, "file too short|invalid ELF header"),
        (native_build_library(), "ggml_backend_init"),
    ):
        module = native.load_gpu_module(str(path))
        assert (module.backend, module.device_count) == ("", 0)
        assert any(word in module.error for word in words.split("|")), module.error


def native_build_library() -> Path:
    return Path(native.__file__).parent / "lib" / "libggml-base.so"


def test_a_module_that_cannot_be_used_says_why_and_does_no_harm(tmp_path: Path) -> None:
    run_alone(scene_modules, tmp_path)
