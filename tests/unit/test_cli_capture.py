"""`stratactl capture` and `--root ARCHIVE`: the same machine back, and nothing personal in between."""

from __future__ import annotations

import json
import tarfile
from pathlib import Path

import pytest

from planner import topology_to_dict
from planner.discover import topology_of
from planner.sysfs import Tree
from stratad.cli.main import run
from stratad.errors import StratadError
from stratad.machine.archive import (
    ArchivedMachine,
    Recording,
    archive_bytes,
    cleaned,
    read_archive,
)
from tests.support.archives import unpack
from tests.support.machines import (
    GpuShape,
    MachineShape,
    MemoryTree,
    even_nodes,
    machine_files,
    write_tree,
)

PRIVATE = {
    "/proc/mounts": "/dev/sda1 /home/alice ext4 rw 0 0\ncgroup2 /sys/fs/cgroup cgroup2 rw 0 0\n",
    "/proc/self/cgroup": "0::/user.slice/user-alice.slice/work\n",
    "/proc/self/status": "Name:\tsecret\nCpus_allowed_list:\t0-11\nMems_allowed_list:\t0-1\nUid:\t1000\n",
    "/proc/sys/kernel/osrelease": "6.1.0-alice-build\n",
    "/proc/cpuinfo": (
        "processor\t: 0\nvendor_id\t: GenuineIntel\ncpu family\t: 6\nmodel\t\t: 85\n"
        "model name\t: Intel(R) Xeon(R) Gold 6226 CPU\nflags\t\t: fpu hypervisor avx2\nSerial\t\t: 0000alice\n"
    ),
    "/sys/fs/cgroup/user.slice/user-alice.slice/work/cpuset.cpus.effective": "0-5\n",
    "/etc/hostname": "alice-workstation\n",
}


def machine(tmp_path: Path) -> Path:
    shape = MachineShape(even_nodes(2, 6), (GpuShape("0000:3b:00.0", 0),))
    return write_tree(tmp_path / "machine", machine_files(shape) | PRIVATE)


def captured(tmp_path: Path) -> Path:
    archive = tmp_path / "captured.tar.xz"
    assert run(["capture", str(archive), "--root", str(machine(tmp_path))]) == 0
    return archive


def document(root: Path, capsys: pytest.CaptureFixture[str]) -> dict[str, object]:
    capsys.readouterr()
    assert run(["topology", "--root", str(root), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert isinstance(found, dict)
    return found


def test_the_archive_gives_the_machine_back(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    archive = captured(tmp_path)
    assert "stratactl plan --root" in capsys.readouterr().out
    live, again = document(tmp_path / "machine", capsys), document(archive, capsys)
    assert again.pop("kernel_release") == "6.1.0"
    assert live.pop("kernel_release") == "6.1.0-alice-build"
    assert again == live
    assert (again["usable_cpus"], again["virtualization"]) == ("0-5", "vm")
    assert run(["plan", "--root", str(archive), "--arena-bytes", "4GiB"]) == 0


def test_an_unpacked_archive_is_a_root_too(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    archive = captured(tmp_path)
    with tarfile.open(archive) as opened:
        unpack(opened, tmp_path / "unpacked")
    assert document(tmp_path / "unpacked", capsys) == document(archive, capsys)


def test_nothing_personal_is_in_it(tmp_path: Path) -> None:
    archive = captured(tmp_path)
    with tarfile.open(archive) as opened:
        entries = opened.getmembers()
        contents = [opened.extractfile(entry) for entry in entries]
        text = "".join(entry.name for entry in entries)
        text += "".join(content.read().decode() for content in contents if content is not None)
    for word in ("alice", "secret", "1000", "/home", "avx2"):
        assert word not in text
    assert "etc/hostname" not in text
    assert {(entry.uid, entry.uname, entry.mtime) for entry in entries} == {(0, "", 0)}


def test_the_same_machine_gives_the_same_bytes(tmp_path: Path) -> None:
    def content() -> bytes:
        recording = Recording(Tree(tmp_path / "machine"))
        topology_of(recording)
        return archive_bytes(cleaned(recording))

    machine(tmp_path)
    assert content() == content()
    assert len(content()) < 4096


@pytest.mark.parametrize("mount", ["/sys/fs/cgroup", "/cgroup2", "/mnt/groups/unified"])
def test_groups_are_renamed_wherever_they_are_mounted(mount: str) -> None:
    files = machine_files(MachineShape(even_nodes(2, 4))) | {
        "/proc/mounts": f"cgroup2 {mount} cgroup2 rw 0 0\n",
        "/proc/self/cgroup": "0::/docker/0123abcd\n",
        f"{mount}/docker/0123abcd/cpuset.cpus.effective": "0-3\n",
        f"{mount}/docker/memory.max": "1073741824\n",
    }
    recording = Recording(MemoryTree(files))
    live = topology_of(recording)
    again = topology_of(cleaned(recording))
    assert topology_to_dict(again) == topology_to_dict(live)
    assert again.usable_cpu_ids == (0, 1, 2, 3)
    assert again.limits.memory_limit_bytes == 1 << 30
    assert b"0123abcd" not in archive_bytes(cleaned(recording))


def test_cpus_that_are_known_by_their_folders_alone_survive() -> None:
    """Old kernels have no cpu/online: which CPUs there are is what the directory lists."""
    files = machine_files(MachineShape(even_nodes(2, 4, threads_per_core=2)))
    del files["/sys/devices/system/cpu/online"]
    recording = Recording(MemoryTree(files))
    live = topology_of(recording)
    assert len(live.cpus) == 16
    assert topology_of(cleaned(recording)) == live


def test_links_and_empty_folders_survive(tmp_path: Path) -> None:
    made = ArchivedMachine({"/a/b": "1"}, {"/a/link": "amdgpu"}, frozenset({"/a/empty", "/a"}))
    path = tmp_path / "made.tar.xz"
    path.write_bytes(archive_bytes(made))
    again = read_archive(path)
    assert again.names("/a") == ("b", "empty", "link")
    assert again.names("/a/empty") == ()
    assert again.link_name("/a/link") == "amdgpu"
    assert again.text("/a/b") == "1"
    assert (again.has("/a/empty"), again.has("/a/other")) == (True, False)


@pytest.mark.parametrize("content", [b"", b"not an archive", b"\xfd7zXZ\x00broken"])
def test_what_is_no_archive_is_a_clear_error(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], content: bytes
) -> None:
    path = tmp_path / "broken.tar.xz"
    path.write_bytes(content)
    assert run(["topology", "--root", str(path)]) == 1
    error = capsys.readouterr().err
    assert "Traceback" not in error
    assert "machine cannot be read" in error
    with pytest.raises(StratadError):
        read_archive(path)


def test_a_capture_that_cannot_be_written_or_has_no_machine_says_so(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    root = machine(tmp_path)
    assert run(["capture", str(tmp_path / "none" / "x.tar.xz"), "--root", str(root)]) == 1
    assert "cannot be written" in capsys.readouterr().err
    (tmp_path / "empty").mkdir()
    assert run(["capture", str(tmp_path / "x.tar.xz"), "--root", str(tmp_path / "empty")]) == 1
    assert "no machine to capture" in capsys.readouterr().err
