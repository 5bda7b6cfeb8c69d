"""Builds native test and benchmark programs beside the ordinary build, whose llama.cpp libraries they use."""

from __future__ import annotations

import fcntl
import os
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
CACHE = ROOT / "build" / "native" / "CMakeCache.txt"
SHOWN_TAIL = 4000


def llama_source() -> str:
    """The unpacked llama.cpp source that `make setup` built."""
    found = re.search(r"^STRATAD_LLAMA_SOURCE:PATH=(.+)$", CACHE.read_text(), re.MULTILINE)
    assert found, f"{CACHE} names no llama.cpp source"
    return found[1]


def build(preset: str) -> Path:
    """The build directory of a preset of native/CMakePresets.json, up to date; quick when nothing has changed."""
    folder = ROOT / "build" / preset
    # Processes that share the checkout take turns: two cmakes in one folder break each other.
    with (ROOT / "build" / f"{preset}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        _run(
            "cmake",
            "-S",
            str(ROOT / "native"),
            "--preset",
            preset,
            f"-DSTRATAD_LLAMA_SOURCE={llama_source()}",
        )
        _run("cmake", "--build", str(folder))
    return folder


def _run(*command: str) -> None:
    environment = {**os.environ, "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"}
    outcome = subprocess.run(
        command, cwd=ROOT / "native", env=environment, check=False, capture_output=True, text=True
    )
    assert outcome.returncode == 0, outcome.stdout[-SHOWN_TAIL:] + outcome.stderr[-SHOWN_TAIL:]
