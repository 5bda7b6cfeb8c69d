"""The stand-in GPU (tests/gpu/standin_gpu.cpp): built when needed, loaded as the backend module it is."""

from __future__ import annotations

import ctypes
from functools import cache
from pathlib import Path

from stratad import _native as native
from tests.support import native_build


@cache
def module_path() -> Path:
    """The module, up to date."""
    return native_build.build("standin") / "gpu" / "libstandin_gpu.so"


@cache
def _library() -> ctypes.CDLL:
    module = native.load_gpu_module(str(module_path()))
    assert module.device_count > 0, module.error
    library = ctypes.CDLL(str(module_path()))
    library.standin_set.argtypes = [ctypes.c_char_p, ctypes.c_long]
    library.standin_get.argtypes = [ctypes.c_char_p]
    library.standin_get.restype = ctypes.c_long
    return library


def offload(*devices: str) -> native.GpuOffload:
    """The stand-in's devices of these names, or its first."""
    _library()
    return native.GpuOffload(list(devices) or ["STANDIN0"])


def configure(name: str, value: int) -> None:
    """Sets what the head of standin_gpu.cpp describes."""
    _library().standin_set(name.encode(), value)


def told(name: str) -> int:
    """A count of the stand-in."""
    return int(_library().standin_get(name.encode()))
