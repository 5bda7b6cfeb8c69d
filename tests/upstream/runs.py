"""Upstream's unmodified test-backend-ops against our device: which cases, and what came of them."""

from __future__ import annotations

import os
import re
import subprocess
from dataclasses import dataclass
from pathlib import Path

from tests.support.native_build import build

DEVICE = "STRATAD"
_FIVE_TYPES = "type_a=(f16|q8_0|q4_0|q4_K|q6_K),type_b=f32,"


@dataclass(frozen=True, slots=True)
class Run:
    """One call of the test program: an operation, a pattern over its cases' parameters, and our pool's shape.

    `counter` is what the pool must have counted, so that a pass is not ggml's own.
    """

    name: str
    operation: str
    pattern: str | None
    slice_count: int
    counter: str
    worker_count: int = 2
    kernels: str = "ggml"


# One to two minutes together: most of a case's time is upstream quantising its random weights.
BOUNDED = (
    Run("products whole", "MUL_MAT", rf"{_FIVE_TYPES}m=16,n=(1|2|4|9|16),k=256,bs=\[[13],", 1, "dense"),
    Run("products sliced", "MUL_MAT", r"m=(1023|4096),n=[1-4],k=(1024|4096)", 2, "lanes"),
    Run(
        "products sliced, our kernels",
        "MUL_MAT",
        r"m=(1023|4096),n=[1-8],k=(1024|4096)",
        2,
        "dense",
        kernels="avx2",
    ),
    Run("experts whole", "MUL_MAT_ID", rf"{_FIVE_TYPES}n_mats=4,.*k=256", 1, "experts"),
    Run("experts sliced", "MUL_MAT_ID", rf"{_FIVE_TYPES}n_mats=8,.*k=256", 2, "experts"),
    Run(
        "attention whole",
        "FLASH_ATTN_EXT",
        r"hsk=64,hsv=64,.*kv=(512|1024),nb=1,.*type_K=f16",
        1,
        "attentions",
    ),
    Run("attention sliced", "FLASH_ATTN_EXT", r"hsk=128,hsv=128,.*nb=1,.*type_K=(f16|q8_0)", 2, "attentions"),
    Run(
        "attention of many tokens, our kernels",
        "FLASH_ATTN_EXT",
        r"hsk=(64|192|576),.*kv=(113|512|1024),nb=75,.*type_K=f16",
        2,
        "attentions",
        kernels="avx2",
    ),
)

# Everything that the program has of these operations; some hours.
FULL = tuple(
    Run(f"{operation} {slices} slices", operation, None, slices, counter)
    for operation, counter in (
        ("MUL_MAT", "dense"),
        ("MUL_MAT_ID", "experts"),
        ("FLASH_ATTN_EXT", "attentions"),
    )
    for slices in (1, 2)
)


@dataclass(frozen=True, slots=True)
class Outcome:
    """What the program said: cases that passed of those that ran, those our device refuses, and its failures."""

    passed: int
    total: int
    refused: tuple[str, ...]
    failed: tuple[str, ...]
    computed_by_pool: int
    exit_status: int
    tail: str


def execute(run: Run, timeout_seconds: float | None = None) -> Outcome:
    """Builds what is missing and runs the cases."""
    folder = build("upstream") / "upstream"
    command = [str(folder / "test-backend-ops"), "test", "-b", DEVICE, "-o", run.operation, "-j", "2"]
    finished = subprocess.run(
        command if run.pattern is None else [*command, "-p", run.pattern],
        env={**os.environ, **_environment(run, folder)},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
        timeout=timeout_seconds,
    )
    return _outcome(run, re.sub(r"\x1b\[[0-9;]*m", "", finished.stdout), finished.returncode)


def _environment(run: Run, folder: Path) -> dict[str, str]:
    return {
        "GGML_BACKEND_PATH": str(folder / "libarena_device.so"),
        "STRATAD_TEST_WORKERS": str(run.worker_count),
        "STRATAD_TEST_SLICES": str(run.slice_count),
        "STRATAD_TEST_KERNELS": run.kernels,
    }


def _outcome(run: Run, text: str, exit_status: int) -> Outcome:
    passed = re.search(r"(\d+)/(\d+) tests passed", text)
    counted = re.search(rf"^pool: .*\b{run.counter}=(\d+)", text, re.MULTILINE)
    lines = text.splitlines()
    return Outcome(
        passed=int(passed[1]) if passed else 0,
        total=int(passed[2]) if passed else 0,
        refused=tuple(line.strip() for line in lines if "not supported" in line),
        failed=tuple(line.strip() for line in lines if re.search(r"\bFAIL\b", line)),
        computed_by_pool=int(counted[1]) if counted else 0,
        exit_status=exit_status,
        tail="\n".join(lines[-20:]),
    )
