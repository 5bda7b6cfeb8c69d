"""The unit files as systemd reads them, and `stratactl install-units`."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from planner.dropin import OWNER_LINE
from stratad.cli.install_units import DESTINATIONS, service_command, wanted_files
from stratad.errors import StratadError

UNITS = Path(__file__).parents[2] / "packaging" / "systemd"
SERVICE = UNITS / "stratad.service"

needs_systemd = pytest.mark.skipif(
    shutil.which("systemd-analyze") is None,
    reason="systemd-analyze is not installed: systemd's own check of the unit files is left out",
)


@pytest.fixture
def units(tmp_path: Path) -> Path:
    """The units with a command that exists on this machine."""
    for path in UNITS.iterdir():
        text = path.read_text().replace("/usr/bin/stratad", "/bin/true")
        (tmp_path / path.name).write_text(text)
    return tmp_path


@needs_systemd
@pytest.mark.parametrize("name", ["stratad.service", "stratad.slice"])
def test_systemd_reads_the_unit_without_a_word(name: str, units: Path) -> None:
    done = subprocess.run(
        ["systemd-analyze", "verify", str(units / name)], capture_output=True, text=True, check=True
    )
    assert done.stderr == ""


@needs_systemd
def test_the_service_is_exposed_no_more_than_we_say(units: Path) -> None:
    command = [
        "systemd-analyze",
        "security",
        "--offline=true",
        "--threshold=18",
        str(units / "stratad.service"),
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-300:]


@needs_systemd
def test_it_stays_so_when_the_service_is_opened_to_the_network(units: Path) -> None:
    text = SERVICE.read_text().replace("/usr/bin/stratad", "/bin/true")
    (units / "stratad.service").write_text(text.replace("IPAddressDeny=any\n", ""))
    command = [
        "systemd-analyze",
        "security",
        "--offline=true",
        "--threshold=18",
        str(units / "stratad.service"),
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-300:]


@pytest.mark.skipif(
    shutil.which("systemd-sysusers") is None,
    reason="systemd-sysusers is not installed: its own check of the user's file is left out",
)
def test_systemd_makes_the_user_without_a_word(tmp_path: Path) -> None:
    (tmp_path / "etc").mkdir()
    command = ["systemd-sysusers", f"--root={tmp_path}", "--dry-run", str(UNITS / "stratad.sysusers.conf")]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    lines = [line for line in done.stderr.splitlines() if not line.startswith(("Creating", "Would"))]
    assert lines == []


def settings() -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for line in SERVICE.read_text().splitlines():
        name, is_setting, value = line.partition("=")
        if is_setting and not line.startswith("#"):
            found.setdefault(name, []).append(value)
    return found


def test_the_hardening_leaves_what_placement_and_gpus_need() -> None:
    found = settings()
    # mbind, set_mempolicy, move_pages and sched_setaffinity are all in @resources.
    assert found["SystemCallFilter"] == ["@system-service"]
    assert "PrivateDevices" not in found
    assert "ProcSubset" not in found
    assert found["DevicePolicy"] == ["closed"]
    assert {value.split()[0] for value in found["DeviceAllow"]} == {"char-nvidia*", "char-kfd", "char-drm"}
    assert found["CapabilityBoundingSet"] == [""]
    assert found["MemoryDenyWriteExecute"] == ["no"]
    # A node that fills up must slow the service down, not kill it.
    assert "AllowedMemoryNodes" not in found


def test_the_service_lives_in_its_own_slice_and_is_the_last_to_die() -> None:
    found = settings()
    assert found["Type"] == ["notify"]
    assert found["Slice"] == ["stratad.slice"]
    assert found["LimitMEMLOCK"] == ["infinity"]
    assert found["MemorySwapMax"] == ["0"]
    assert found["ManagedOOMPreference"] == ["avoid"]
    assert int(found["OOMScoreAdjust"][0]) < 0
    assert found["Restart"] == ["on-failure"]
    # Status 2 is a wrong setting and 3 a plan that suits nobody (stratad/errors.py).
    assert found["RestartPreventExitStatus"] == ["2 3"]


def test_installed_units_start_the_stratad_of_this_installation(tmp_path: Path) -> None:
    files = wanted_files(tmp_path, Path("/opt/stratad/bin/stratad"))
    service = files[tmp_path / DESTINATIONS["stratad.service"]]
    assert service is not None
    assert "\nExecStart=/opt/stratad/bin/stratad --config /etc/stratad/stratad.toml\n" in service
    assert all(
        text is None or path.suffix == ".toml" or text.startswith(OWNER_LINE) for path, text in files.items()
    )


def test_an_operators_configuration_is_not_touched(tmp_path: Path) -> None:
    configuration = tmp_path / "etc/stratad/stratad.toml"
    assert configuration in wanted_files(tmp_path, Path("/opt/stratad/bin/stratad"))
    configuration.parent.mkdir(parents=True)
    configuration.write_text("mine")
    assert configuration not in wanted_files(tmp_path, Path("/opt/stratad/bin/stratad"))
    assert configuration not in wanted_files(tmp_path, None)


def installation(folder: Path) -> Path:
    folder.mkdir(parents=True)
    (folder / "stratad").write_text("")
    (folder / "python3").write_text("")
    return folder / "python3"


def test_the_daemon_beside_the_interpreter_is_the_one_to_start(tmp_path: Path) -> None:
    assert service_command(installation(tmp_path / "bin")) == tmp_path / "bin" / "stratad"


def test_an_installation_in_a_home_folder_is_refused_with_the_way_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(Path, "is_file", lambda path: True)
    with pytest.raises(StratadError) as refusal:
        service_command(Path("/run/user/1000/venv/bin/python3"))
    assert "home folder" in refusal.value.because
    assert "/opt/stratad" in refusal.value.remedy
