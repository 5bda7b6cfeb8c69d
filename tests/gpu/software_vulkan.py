"""Mesa's software Vulkan device in place of a GPU: how the loader and ggml are told to take it."""

from __future__ import annotations

import os
from pathlib import Path

from tests.support import native_build

ROOT = Path(__file__).resolve().parents[2]
MODULE = ROOT / "build" / "gpu" / "vulkan" / "module" / "libggml-vulkan.so"
DRIVERS = Path("/usr/share/vulkan/icd.d")


def driver() -> Path | None:
    """The description of the software driver; None when mesa-vulkan-drivers is not installed."""
    return next(iter(sorted(DRIVERS.glob("lvp_icd*.json"))), None)


def software_environment() -> dict[str, str]:
    """This process's environment with the software device as the only one.

    ggml passes over devices of type CPU unless it is told their numbers. Fusing operations depends on where
    buffers lie and moves last bits; it is off so that only the path under test differs. kept_buffers.cpp says what
    Mesa's driver cannot do.
    """
    found = driver()
    assert found is not None, "no software Vulkan driver: apt-get install mesa-vulkan-drivers"
    kept_buffers = native_build.build("standin") / "gpu" / "libkept-buffers.so"
    preloaded = os.environ.get("LD_PRELOAD")
    return {
        **os.environ,
        "LD_PRELOAD": f"{kept_buffers}:{preloaded}" if preloaded else str(kept_buffers),
        "VK_ICD_FILENAMES": str(found),
        "VK_DRIVER_FILES": str(found),
        "GGML_VK_VISIBLE_DEVICES": "0",
        "GGML_VK_DISABLE_FUSION": "1",
    }
