"""Which GPU modules are here, and whether a GPU will take part."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from planner import Topology
from stratad.gpu import modules as gpu_modules
from stratad.gpu.modules import find_modules, is_gpu_expected
from tests.support.machines import GpuShape, MachineShape, even_nodes, machine_topology

NVIDIA = GpuShape("0000:21:00.0", 0)
AMD = GpuShape("0000:c3:00.0", 1, "0x030000", "0x1002", "0x744c")
INTEL = GpuShape("0000:29:00.0", 0, "0x038000", "0x8086", "0x56c0")


def machine(*gpus: GpuShape) -> Topology:
    return machine_topology(MachineShape(even_nodes(2, 4), gpus))


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An installed package without modules."""
    monkeypatch.setattr(gpu_modules, "modules_folder", lambda: tmp_path)
    return tmp_path


def install(folder: Path, *names: str) -> None:
    for name in names:
        (folder / f"libggml-{name}.so").write_bytes(b"")


def test_installed_modules_are_given_makers_first(folder: Path) -> None:
    assert find_modules(None) == ()
    install(folder, "vulkan", "cuda")
    (folder / "libsomething.so").write_bytes(b"")
    assert [path.name for path in find_modules(None)] == ["libggml-cuda.so", "libggml-vulkan.so"]


def test_a_named_module_or_folder_replaces_them(folder: Path, tmp_path: Path) -> None:
    install(folder, "cuda")
    mine = tmp_path / "mine"
    mine.mkdir()
    install(mine, "hip")
    assert find_modules(mine) == (mine / "libggml-hip.so",)
    assert find_modules(mine / "missing.so") == (mine / "missing.so",)


@pytest.mark.parametrize(
    ("modules", "gpus", "expected"),
    [
        ((), (NVIDIA,), False),
        (("cuda",), (), False),
        (("cuda",), (NVIDIA,), True),
        (("cuda",), (AMD, INTEL), False),
        (("hip",), (AMD,), True),
        (("hip",), (NVIDIA,), False),
        (("vulkan",), (INTEL,), True),
        (("vulkan",), (NVIDIA,), True),
        (("cuda", "hip"), (AMD,), True),
    ],
)
def test_a_gpu_takes_part_where_a_module_fits_it(
    folder: Path, modules: tuple[str, ...], gpus: tuple[GpuShape, ...], expected: bool
) -> None:
    install(folder, *modules)
    assert is_gpu_expected("auto", None, machine(*gpus)) is expected
    assert is_gpu_expected("off", None, machine(*gpus)) is False


def test_a_module_fits_a_card_whose_maker_is_not_told(folder: Path) -> None:
    install(folder, "cuda")
    topology = machine(NVIDIA)
    nameless = replace(
        topology, accelerators=tuple(replace(gpu, vendor_id=None) for gpu in topology.accelerators)
    )
    assert is_gpu_expected("auto", None, nameless)


def test_what_was_asked_for_needs_no_card_on_the_bus(folder: Path) -> None:
    assert not is_gpu_expected("on", None, machine())
    install(folder, "vulkan")
    assert is_gpu_expected("on", None, machine())
    assert is_gpu_expected("auto", folder / "libggml-vulkan.so", machine())


def test_the_installed_package_has_a_place_for_modules() -> None:
    place = gpu_modules.modules_folder()
    assert place is not None and place.parts[-2:] == ("lib", "backends")
