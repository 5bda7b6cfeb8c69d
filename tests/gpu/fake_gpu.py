"""The tests' GPU modules from Python, and processes of their own for what loads them: a module never unloads."""

from __future__ import annotations

import ctypes
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from tests.support import native_build

ROOT = Path(__file__).resolve().parents[2]
SHOWN_TAIL = 6000


def fake_gpu_path() -> Path:
    """The module that counts and refuses, up to date."""
    return native_build.build("standin") / "gpu" / "libfake-gpu.so"


def driverless_path() -> Path:
    """A module whose driver's library is not there."""
    return native_build.build("standin") / "gpu" / "libdriverless-gpu.so"


class FakeGpu:
    """What the loaded stand-in has counted, and what it is told."""

    def __init__(self, path: Path) -> None:
        self._library = ctypes.CDLL(str(path))
        for name in (
            "registered_bytes",
            "registered_chunks",
            "register_calls",
            "largest_chunk_bytes",
            "mistakes",
        ):
            getattr(self._library, f"fake_gpu_{name}").restype = ctypes.c_size_t
        self._library.fake_gpu_copied_bytes.restype = ctypes.c_size_t

    def count(self, name: str) -> int:
        """One of its counters."""
        return int(getattr(self._library, f"fake_gpu_{name}")())

    def refuse_beyond(self, size_bytes: int) -> None:
        """It registers no more than this in all."""
        self._library.fake_gpu_refuse_beyond(ctypes.c_size_t(size_bytes))

    def know_registration(self, is_known: bool) -> None:
        """Whether it has functions to register memory at all; Vulkan's backend has none."""
        self._library.fake_gpu_know_registration(ctypes.c_bool(is_known))


def run_alone(scene: Callable[[Path], None], folder: Path) -> None:
    """Runs a function of a test module in a process of its own; its assertions are the test's."""
    script = (
        f"import pathlib, sys; from {scene.__module__} import {scene.__name__} as scene; "
        "scene(pathlib.Path(sys.argv[1]))"
    )
    outcome = subprocess.run(
        [sys.executable, "-c", script, str(folder)], cwd=ROOT, check=False, capture_output=True, text=True
    )
    assert outcome.returncode == 0, outcome.stdout[-SHOWN_TAIL:] + outcome.stderr[-SHOWN_TAIL:]
