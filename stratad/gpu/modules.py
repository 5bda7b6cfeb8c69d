"""Which of ggml's GPU modules are here, and whether a GPU will take part: by files and the PCI bus, loading nothing."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Literal

from planner import Accelerator, Topology

# Whose cards each module drives; () stands for every maker's. In the order in which they are preferred.
MODULE_VENDORS: dict[str, tuple[str, ...]] = {
    "libggml-cuda.so": ("0x10de",),
    "libggml-hip.so": ("0x1002",),
    "libggml-vulkan.so": (),
}


def modules_folder() -> Path | None:
    """Where `make setup GPU=...` puts modules: beside the native module's libraries; None without it."""
    found = importlib.util.find_spec("stratad._native")
    return None if found is None or found.origin is None else Path(found.origin).parent / "lib" / "backends"


def find_modules(backend_path: Path | None) -> tuple[Path, ...]:
    """Give the modules to load: a named file, those of a named folder, or those built with the package.

    A named file is given whether it exists or not, so that loading it says what is wrong.
    """
    folder = backend_path or modules_folder()
    if folder is None:
        return ()
    if backend_path is not None and not backend_path.is_dir():
        return (backend_path,)
    return tuple(folder / name for name in MODULE_VENDORS if (folder / name).exists())


def fits(module: Path, accelerator: Accelerator) -> bool:
    """Whether a module drives this card; one of a name we do not know may drive any."""
    vendors = MODULE_VENDORS.get(module.name, ())
    return not vendors or accelerator.vendor_id is None or accelerator.vendor_id in vendors


def is_gpu_expected(
    mode: Literal["auto", "off", "on"], backend_path: Path | None, topology: Topology
) -> bool:
    """Whether the daemon will find a GPU to use here, as far as files tell; drivers are not asked.

    A module that the operator named counts for itself: its device may be none of the PCI bus.
    """
    modules = find_modules(backend_path)
    if mode == "off" or not modules:
        return False
    if mode == "on" or backend_path is not None:
        return True
    return any(fits(module, gpu) for module in modules for gpu in topology.accelerators)
