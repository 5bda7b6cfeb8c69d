"""GPU modules, devices and pinned arenas as the daemon sees them, on the stand-in that counts."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from planner import Effect, GpuInUse, Topology
from stratad.config import GpuSection
from stratad.errors import ConfigurationError
from stratad.gpu.runtime import open_gpus, pin_arenas
from tests.gpu.fake_gpu import ROOT, FakeGpu, driverless_path, fake_gpu_path, run_alone
from tests.gpu.test_registration import placed_arena
from tests.support.machines import GpuShape, MachineShape, even_nodes, machine_topology


def two_nodes(*gpus: GpuShape) -> Topology:
    return machine_topology(MachineShape(even_nodes(2, 4), gpus))


def scene_located(folder: Path) -> None:
    topology = two_nodes(GpuShape("0000:41:00.0", 1), GpuShape("0000:c1:00.0", 0))
    found = open_gpus(GpuSection(backend_path=fake_gpu_path()), topology)
    # The stand-in's first device writes its address with a suffix, as CUDA does; its second does not know its own.
    assert [(gpu.name, gpu.pci_address, gpu.node_id) for gpu in found.gpus] == [
        ("Fake0", "0000:41:00.0", 1),
        ("Fake1", None, None),
    ]
    assert found.in_use == (GpuInUse("0000:41:00.0", 1 << 30), GpuInUse(None, 1 << 30))
    assert [reason.code for reason in found.reasons] == ["gpu-used", "gpu-used"]
    assert "node 1" in found.reasons[0].message
    assert "no PCI address, node unknown" in found.reasons[1].message


def test_devices_are_located_by_their_pci_address(tmp_path: Path) -> None:
    run_alone(scene_located, tmp_path)


def scene_unusable(folder: Path) -> None:
    found = open_gpus(GpuSection(backend_path=driverless_path()), two_nodes())
    assert found.gpus == ()
    (reason,) = found.reasons
    assert (reason.code, reason.effect) == ("gpu-module-unusable", Effect.WARNS)
    assert "libabsent-driver.so" in reason.message
    assert reason.remedy is not None and "driver" in reason.remedy
    with pytest.raises(ConfigurationError, match=r"libabsent-driver\.so"):
        open_gpus(GpuSection(mode="on", backend_path=driverless_path()), two_nodes())


def test_a_module_without_its_driver_is_a_reason(tmp_path: Path) -> None:
    run_alone(scene_unusable, tmp_path)


def test_the_check_of_a_real_gpu_says_what_is_missing(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "tests.gpu.check", "--module", str(driverless_path())]
    outcome = subprocess.run(command, cwd=ROOT, check=False, capture_output=True, text=True)
    assert outcome.returncode == 1
    assert "because: libdriverless-gpu.so cannot be loaded: libabsent-driver.so" in outcome.stderr
    assert "remedy:" in outcome.stderr
    assert "Traceback" not in outcome.stderr


def scene_off(folder: Path) -> None:
    found = open_gpus(
        GpuSection(mode="off", backend_path=fake_gpu_path()), two_nodes(GpuShape("0000:41:00.0", 1))
    )
    assert found.gpus == found.reasons == ()


def test_nothing_is_loaded_when_the_gpu_is_off(tmp_path: Path) -> None:
    run_alone(scene_off, tmp_path)


def scene_missing(folder: Path) -> None:
    settings = GpuSection(backend_path=folder)
    (reason,) = open_gpus(settings, two_nodes(GpuShape("0000:41:00.0", 1))).reasons
    assert (reason.code, reason.effect) == ("gpu-module-missing", Effect.INFORMS)
    assert "make setup GPU=" in (reason.remedy or "")
    assert open_gpus(settings, two_nodes()).reasons == ()
    with pytest.raises(ConfigurationError, match=r"gpu\.mode"):
        open_gpus(GpuSection(mode="on", backend_path=folder), two_nodes())


def test_a_gpu_without_a_module_is_told_and_a_machine_without_either_is_not(tmp_path: Path) -> None:
    run_alone(scene_missing, tmp_path)


def scene_pinned(folder: Path) -> None:
    open_gpus(GpuSection(backend_path=fake_gpu_path()), two_nodes())
    fake = FakeGpu(fake_gpu_path())
    arena, _model = placed_arena(folder)
    # Two devices of one backend: it has the pages registered once.
    pinned = pin_arenas([arena], ["FakeGPU", "FakeGPU"])
    assert pinned.pinned_bytes == arena.size_bytes == fake.count("registered_bytes")
    assert [(reason.code, reason.effect) for reason in pinned.reasons] == [("arena-pinned", Effect.INFORMS)]
    del pinned
    assert fake.count("registered_bytes") == fake.count("mistakes") == 0


def test_an_arena_is_pinned_once_for_each_backend(tmp_path: Path) -> None:
    run_alone(scene_pinned, tmp_path)


def scene_refused(folder: Path) -> None:
    open_gpus(GpuSection(backend_path=fake_gpu_path()), two_nodes())
    fake = FakeGpu(fake_gpu_path())
    arena, _model = placed_arena(folder)
    fake.refuse_beyond(arena.size_bytes - 1)
    refused = pin_arenas([arena], ["FakeGPU"])
    (reason,) = refused.reasons
    assert (refused.pinned_bytes, reason.code, reason.effect) == (0, "arena-not-pinned", Effect.WARNS)
    assert reason.evidence["refused_chunk_bytes"] == arena.size_bytes
    assert "LimitMEMLOCK" in (reason.remedy or "")
    assert not arena.are_pages_held
    fake.know_registration(False)
    (reason,) = pin_arenas([arena], ["FakeGPU"]).reasons
    assert (reason.code, reason.effect) == ("arena-pinning-unsupported", Effect.INFORMS)


def test_a_refusal_is_told_with_its_remedy_and_leaves_nothing(tmp_path: Path) -> None:
    run_alone(scene_refused, tmp_path)
