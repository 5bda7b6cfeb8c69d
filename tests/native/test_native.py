"""Builds the native tests under each sanitizer and runs them: no report, no leak, no wrong value."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.support import gguf_models, native_build

SANITIZERS = {
    "address": {"ASAN_OPTIONS": "detect_leaks=1", "UBSAN_OPTIONS": "halt_on_error=1:print_stacktrace=1"},
    # ggml's own threads synchronise in ways that the sanitizer cannot see in uninstrumented code.
    "thread": {"TSAN_OPTIONS": "ignore_noninstrumented_modules=1:halt_on_error=1"},
}


@pytest.fixture(scope="module", params=sorted(SANITIZERS))
def build(request: pytest.FixtureRequest) -> Path:
    """The build directory of one sanitizer, up to date."""
    return native_build.build(request.param)


def run(build: Path, *command: str) -> str:
    # Older sanitizer runtimes do not cope with the address layout of newer kernels.
    prefix = ["setarch", "-R"] if shutil.which("setarch") else []
    outcome = subprocess.run(
        [*prefix, str(build / "tests" / command[0]), *command[1:]],
        env={**os.environ, **SANITIZERS[build.name]},
        check=False,
        capture_output=True,
        text=True,
    )
    assert outcome.returncode == 0, outcome.stdout[-4000:] + outcome.stderr[-8000:]
    return outcome.stdout


def test_pool_phases_and_batches(build: Path) -> None:
    assert run(build, "pool_test") == "pool: 0 failures\n"


def test_arena_cuts_placing_and_filling(build: Path) -> None:
    assert run(build, "arena_test") == "arena: 0 failures\n"


def test_row_kernels_of_every_type_and_instruction_set(build: Path) -> None:
    assert run(build, "kernel_test") == "kernel: 0 failures\n"


def test_products_by_tiles_have_the_bits_of_panels(build: Path) -> None:
    said = run(build, "tile_test", "model")
    if "left out" in said:
        pytest.skip(said.strip())
    assert said == "tiles: 0 failures\n"


def test_products_by_tiles_of_this_cpu(build: Path) -> None:
    said = run(build, "tile_test", "cpu")
    if "left out" in said:
        pytest.skip(said.strip())
    assert said == "tiles: 0 failures\n"


def test_attention_of_several_tokens(build: Path) -> None:
    assert run(build, "attention_test") == "attention: 0 failures\n"


def test_a_graph_in_own_mode(build: Path) -> None:
    assert run(build, "own_graph_test") == "own graph: 0 failures\n"


@pytest.mark.parametrize(("family", "expert_type"), [("qwen3moe", "Q4_K"), ("gpt-oss", "MXFP4")])
def test_computing_on_a_gpu(build: Path, family: str, expert_type: str, tmp_path: Path) -> None:
    path = gguf_models.write_model(tmp_path / "model.gguf", family, expert_type)
    module = build / "tests" / "gpu" / "libstandin_gpu.so"
    assert run(build, "gpu_test", str(path), str(module)) == "gpu: 0 failures\n"


@pytest.mark.parametrize(("family", "expert_type"), [("qwen3moe", "Q4_K"), ("gpt-oss", "MXFP4")])
def test_loading_and_decoding(build: Path, family: str, expert_type: str, tmp_path: Path) -> None:
    path = gguf_models.write_model(tmp_path / "model.gguf", family, expert_type)
    assert run(build, "backend_test", str(path)) == "backend: 0 failures\n"
