"""`stratactl doctor` as a user runs it: text, JSON, exit status, and on every captured machine."""

from __future__ import annotations

import json
import os
import tarfile
from dataclasses import replace
from pathlib import Path

import pytest

from stratad.cli.main import run
from stratad.cli.output import terminal_report
from stratad.doctor import CHECKS, PlacementVerdict, Severity, examine, report_text
from stratad.doctor.error_log import link_records
from stratad.doctor.firmware import memory_modules
from stratad.doctor.units import size_setting, unit_settings
from tests.support.archives import unpack
from tests.support.doctor_machine import GROUP, Case, changed, healthy, module
from tests.support.gguf_bytes import moe_file
from tests.support.machines import GIB, MemoryTree, write_tree

REPOSITORY = Path(__file__).resolve().parents[2]
SHARED = Path(os.environ.get("STRATAD_SHARED", REPOSITORY.parent / "shared")) / "topologies"
MACHINES = sorted(path.name.removesuffix(".tar.xz") for path in SHARED.glob("*.tar.xz"))


@pytest.fixture(scope="module")
def machine(tmp_path_factory: pytest.TempPathFactory) -> Case:
    return healthy(tmp_path_factory.mktemp("planned"))


def outcome(capsys: pytest.CaptureFixture[str], *arguments: object) -> tuple[int, str]:
    status = run(["doctor", *map(str, arguments)])
    captured = capsys.readouterr()
    assert "Traceback" not in captured.out + captured.err
    return status, captured.out + captured.err


def document(
    capsys: pytest.CaptureFixture[str], *arguments: object
) -> tuple[int, dict[str, dict[str, object]]]:
    status, out = outcome(capsys, *arguments, "--json")
    report = json.loads(out)
    assert report["exit_status"] == status
    assert sum(report["counts"].values()) == len(report["findings"]) == len(CHECKS)
    return status, {finding["code"]: finding for finding in report["findings"]}


def test_a_sound_machine_gets_one_line_and_status_0(
    capsys: pytest.CaptureFixture[str], machine: Case, tmp_path: Path
) -> None:
    root = write_tree(tmp_path / "root", machine.files)
    status, out = outcome(capsys, "--root", root, "--arena-bytes", "80GiB")
    assert status == 0
    assert "found     nothing to mend; " in out
    assert "warning" not in out


def test_findings_are_grouped_with_why_remedy_and_a_place_to_read_on(
    capsys: pytest.CaptureFixture[str], machine: Case, tmp_path: Path
) -> None:
    files = changed(machine.files, {"/sys/kernel/iommu_groups/0/type": "DMA"})
    status, out = outcome(capsys, "--root", write_tree(tmp_path / "root", files))
    assert status == 0
    section = out.split("\nGPU\n")[1]
    assert "warning   the IOMMU translates the GPU's DMA" in section
    assert "  why     Translation costs the pinned copies" in section
    assert "  do      add iommu=pt" in section
    assert "  more    docs/DOCTOR.md#iommu-translated" in section
    assert "1 warning" in out
    assert "fine      " not in out
    assert "fine      " in outcome(capsys, "--root", tmp_path / "root", "--all")[1]


def test_the_exit_status_says_how_bad_it_is(
    capsys: pytest.CaptureFixture[str], machine: Case, tmp_path: Path
) -> None:
    warned = write_tree(
        tmp_path / "warned", changed(machine.files, {"/sys/kernel/iommu_groups/0/type": "DMA"})
    )
    assert outcome(capsys, "--root", warned)[0] == 0
    assert outcome(capsys, "--root", warned, "--strict")[0] == 1
    killed = write_tree(tmp_path / "killed", changed(machine.files, {f"{GROUP}/memory.events": "oom_kill 3"}))
    assert outcome(capsys, "--root", killed)[0] == 1
    assert outcome(capsys, "--root", killed, "--arena-bytes", "900GiB")[0] == 3
    assert outcome(capsys, "--root", tmp_path / "absent")[0] == 2
    below = replace(machine, live=replace(machine.live, placement=PlacementVerdict("below-limit", 0.4, 0.95)))
    report = examine(below.facts(tmp_path / "below"))
    assert report.exit_status() == 4
    assert report.count_of(Severity.ERROR) == 1


def test_json_carries_the_numbers_and_the_commands(
    capsys: pytest.CaptureFixture[str], machine: Case, tmp_path: Path
) -> None:
    pool = "/sys/devices/system/node/node0/hugepages/hugepages-2048kB"
    files = changed(machine.files, {f"{pool}/nr_hugepages": "24000", f"{pool}/free_hugepages": "24000"})
    _, findings = document(capsys, "--root", write_tree(tmp_path / "root", files))
    found = findings["huge-pages-idle"]
    assert found["severity"] == "warning"
    assert found["evidence"] == {"nodes": [0], "idle_bytes": 24_000 * 2 * 1024**2}
    assert found["remedy"][0] == f"echo 0 | sudo tee {pool}/nr_hugepages"  # type: ignore[index]
    assert found["documentation"] == "docs/DOCTOR.md#huge-pages-idle"
    assert "seed 2684" in str(found["source"])


def test_the_arena_comes_from_the_configuration(
    capsys: pytest.CaptureFixture[str], machine: Case, tmp_path: Path
) -> None:
    root = write_tree(tmp_path / "root", machine.files)
    (tmp_path / "model.gguf").write_bytes(moe_file())
    (tmp_path / "stratad.toml").write_text("[model]\npath = 'model.gguf'\n")
    _, findings = document(capsys, "--root", root, "--config", tmp_path / "stratad.toml")
    assert findings["configuration-unusable"]["severity"] == "fine"
    assert findings["plan-outdated"]["severity"] == "error"
    assert "another model" not in str(findings["plan-outdated"]["message"])
    assert "80.0 GiB" in str(findings["plan-outdated"]["message"])


def test_a_terminal_wraps_sentences_and_keeps_commands_whole(machine: Case, tmp_path: Path) -> None:
    files = changed(
        machine.files, {"/sys/kernel/iommu_groups/0/type": "DMA", "/proc/sys/vm/zone_reclaim_mode": "1"}
    )
    facts = replace(machine, files=files, live=replace(machine.live, error_log=None)).facts(tmp_path)
    text = report_text(examine(facts), facts.topology, has_everything=True)
    lines = terminal_report(text, 70, has_colour=False).splitlines()
    assert "processors and links" in lines
    commands = [line for line in text.splitlines() if line.startswith("  do ")]
    assert commands and all(command in lines for command in commands)
    assert all(len(line) <= 70 for line in lines if line not in commands and " " in line.strip())
    assert "\x1b[33mwarning" in terminal_report(text, 70, has_colour=True)


def test_a_name_from_outside_cannot_draw_on_the_terminal(
    capsys: pytest.CaptureFixture[str], machine: Case, tmp_path: Path
) -> None:
    status = "Threads:\t4\nVmRSS:\t41943040 kB"
    tasks = {f"/proc/900/task/{900 + cpu}/status": f"Cpus_allowed_list:\t{cpu}" for cpu in range(4)}
    files = changed(
        machine.files,
        {"/proc/900/comm": "evil\x1b[2J\nfine      all is well", "/proc/900/status": status, **tasks},
    )
    _, out = outcome(capsys, "--root", write_tree(tmp_path / "root", files))
    assert "evil" in out
    assert "\nfine " not in out
    assert "\x1b" not in out


def test_this_very_machine_has_an_answer(capsys: pytest.CaptureFixture[str]) -> None:
    status, findings = document(capsys)
    assert status in (0, 1, 3, 4)
    assert findings["kernel-too-old"]["severity"] == "fine"
    # Live, the kernel is asked: the tests place memory themselves.
    assert findings["placement-not-possible"]["severity"] != "unknown"


def test_a_damaged_archive_is_an_error_in_words(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    (tmp_path / "machine.tar.xz").write_bytes(b"no archive")
    status, out = outcome(capsys, "--root", tmp_path / "machine.tar.xz")
    assert status == 1
    assert "remedy:" in out


@pytest.mark.skipif(not MACHINES, reason=f"no captured machines under {SHARED} (set STRATAD_SHARED)")
@pytest.mark.parametrize("name", MACHINES)
def test_every_captured_machine_has_an_answer(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with tarfile.open(SHARED / f"{name}.tar.xz") as archive:
        unpack(archive, tmp_path)
    for arena in ((), ("--arena-bytes", "44GiB")):
        status, findings = document(capsys, "--root", tmp_path, *arena)
        assert status in (0, 1, 3)
        assert all(finding["message"] for finding in findings.values())
        outcome(capsys, "--root", tmp_path, "--all", *arena)


def test_a_capture_can_be_looked_at(
    capsys: pytest.CaptureFixture[str], machine: Case, tmp_path: Path
) -> None:
    """What `stratactl capture` keeps is enough for the checks of the machine itself."""
    files = changed(machine.files, {"/proc/sys/vm/zone_reclaim_mode": "1"})
    root, archive = write_tree(tmp_path / "root", files), tmp_path / "machine.tar.xz"
    assert run(["capture", str(archive), "--root", str(root)]) == 0
    capsys.readouterr()
    _, findings = document(capsys, "--root", archive)
    assert findings["zone-reclaim-on"]["severity"] == "warning"
    assert findings["mappings-few"]["severity"] == "fine"


def test_memory_modules_are_read_from_the_firmwares_table() -> None:
    table = module("A1", 16, 3200, 2933) + module("A2", 0) + b"\x7f\x04\xff\xff\x00\x00" + module("late", 8)
    found = memory_modules(table)
    assert [(part.locator, part.size_bytes) for part in found] == [("A1", 16 * GIB), ("A2", 0)]
    assert (found[0].rated_speed, found[0].configured_speed) == (3200, 2933)


@pytest.mark.parametrize("length", range(0, 90, 7))
def test_a_damaged_firmware_table_gives_what_is_whole(length: int) -> None:
    assert memory_modules(module("A1", 16)[:length]) == ()
    assert memory_modules(b"\x11\x00" * 40) == ()


def test_persistent_memory_is_no_module() -> None:
    table = bytearray(module("A1", 128))
    table[0x28] = 7
    assert memory_modules(bytes(table)) == ()


def test_link_records_tell_failed_lanes_from_other_errors() -> None:
    log = "usb error\nEDAC: UPI link 1 CRC error\nmce: UPI: COR Phy Lane Failure, recovery in x8 width\n"
    found = link_records(log)
    assert (found.record_count, found.lane_failure_count) == (2, 1)
    assert found.last_line == "mce: UPI: COR Phy Lane Failure, recovery in x8 width"
    assert link_records("Machine Check: 0 Bank 5: c80000c000300e0f").lane_failure_count == 0
    assert link_records("amdgpu 0000:03:00.0: XGMI: link failure").record_count == 0
    assert link_records("mlx5_core: PCS error").record_count == 0


def test_unit_settings_follow_systemds_order() -> None:
    files = MemoryTree(
        {
            "/usr/lib/systemd/system/a.service": "[Service]\nNice=1\nCPUQuota=50%\nExecStart=/bin/a \\\n  --b=c\n",
            "/usr/lib/systemd/system/a.service.d/20-b.conf": "[Service]\nNice=2\n",
            "/etc/systemd/system/a.service.d/10-a.conf": "[Service]\nNice=3\n# Nice=9\nCPUQuota=\n",
            "/run/systemd/system/a.service.d/20-b.conf": "[Service]\nNice=4\n",
            "/etc/systemd/system/a.service.d/30-c.conf.bak": "[Service]\nNice=7\n",
        }
    )
    settings = unit_settings(files, "a.service")
    assert settings is not None
    assert settings["Nice"] == "4"
    assert "CPUQuota" not in settings
    assert "--b" not in settings
    assert unit_settings(files, "b.service") is None


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("75G", 75 * GIB),
        ("1024", 1024),
        ("50%", 4 * GIB),
        ("infinity", None),
        ("8M:16M", 8 << 20),
        (None, None),
        ("x", None),
    ],
)
def test_sizes_are_read_as_systemd_writes_them(text: str | None, expected: int | None) -> None:
    assert size_setting(text, 8 * GIB) == expected
