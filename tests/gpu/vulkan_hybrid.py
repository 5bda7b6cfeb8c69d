"""`make test-vulkan`: a toy model runs hybrid on a software Vulkan device and says what the CPUs alone say.

One process computes everything: the software driver compiles each shader at its first use, for a minute or two.
"""

from __future__ import annotations

import json
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from tests.gpu.hybrid_report import EXPERT_TYPES, MOST_BEYOND, TOLERANCE
from tests.gpu.software_vulkan import MODULE, ROOT, software_environment

SECONDS = 1500


@cache
def report() -> dict[str, Any]:
    """What tests/gpu/hybrid_report.py found on the software device."""
    assert MODULE.exists(), "build it first: make test-vulkan"
    command = [sys.executable, "-m", "tests.gpu.hybrid_report", "--module", str(MODULE)]
    outcome = subprocess.run(
        command,
        cwd=ROOT,
        env=software_environment(),
        timeout=SECONDS,
        check=False,
        capture_output=True,
        text=True,
    )
    assert outcome.returncode == 0, outcome.stdout[-4000:] + outcome.stderr[-4000:]
    return dict(json.loads(outcome.stdout.splitlines()[-1]))


def test_the_module_finds_the_software_device() -> None:
    found = report()
    assert (found["backend"], found["device"]) == ("Vulkan", "Vulkan0")
    assert "llvmpipe" in found["description"]


def test_the_device_has_no_pci_address_and_the_daemon_says_so() -> None:
    assert report()["pci_address"] is None
    assert "node unknown" in report()["location"]


@pytest.mark.parametrize("path", ["pool", "cache", "staged"])
@pytest.mark.parametrize("expert_type", EXPERT_TYPES)
def test_hybrid_logits_are_those_of_the_cpus_within_tolerance(expert_type: str, path: str) -> None:
    found = report()["paths"][expert_type][path]
    assert found["median_difference"] <= TOLERANCE / 2
    beyond = [difference for difference in found["differences"] if difference > TOLERANCE]
    assert len(beyond) <= MOST_BEYOND * len(found["differences"])
    # The largest of 320 logits, where it leads by more than the tolerance.
    assert found["clear_choices_that_differ"] == 0
    assert found["clear_choices"] > 0


@pytest.mark.parametrize("expert_type", EXPERT_TYPES)
def test_the_pool_the_cache_and_the_device_did_compute(expert_type: str) -> None:
    paths = report()["paths"][expert_type]
    assert paths["pool"]["pool_chains"] > 0
    assert paths["cache"]["hits"] > 0
    assert paths["staged"]["staged_products"] > 0


def test_a_backend_that_cannot_register_memory_is_told_and_nothing_is_pinned() -> None:
    assert report()["pinning"] == ["arena-pinning-unsupported"]


def test_the_rate_from_each_slice_to_the_device_is_measured() -> None:
    assert len(report()["copy_rates"]) == 2
    assert min(report()["copy_rates"]) > 0


def test_without_a_driver_the_module_is_a_reason_and_no_crash(tmp_path: Path) -> None:
    script = (
        "import sys; from pathlib import Path; from stratad.config import GpuSection; "
        "from stratad.plan.facts import machine_facts; from stratad.gpu.runtime import open_gpus; "
        "found = open_gpus(GpuSection(backend_path=Path(sys.argv[1])), machine_facts()); "
        "print(len(found.gpus), *(reason.code for reason in found.reasons))"
    )
    nothing = {
        "VK_ICD_FILENAMES": str(tmp_path / "none.json"),
        "VK_DRIVER_FILES": str(tmp_path / "none.json"),
    }
    outcome = subprocess.run(
        [sys.executable, "-c", script, str(MODULE)],
        cwd=ROOT,
        env={**software_environment(), **nothing},
        check=False,
        capture_output=True,
        text=True,
    )
    assert outcome.returncode == 0, outcome.stderr
    assert outcome.stdout.split() in (["0", "gpu-module-unusable"], ["0", "gpu-without-device"])
