"""The machine as the service will see it: neither our own cpuset nor its own running memory count."""

from __future__ import annotations

from pathlib import Path

from planner import read_topology
from stratad.systemd.service_view import anonymous_bytes, service_topology
from tests.support.machines import GIB, MachineShape, even_nodes, machine_files, write_tree

NUMA_MAPS = """\
55d0c8a00000 default file=/usr/bin/python3.11 mapped=31 N0=31 kernelpagesize_kB=4
55d0c8c00000 default file=/usr/bin/python3.11 anon=3 dirty=3 N1=3 kernelpagesize_kB=4
7f2287800000 interleave:0-1 anon=512 dirty=512 active=0 N0=200 N1=312 kernelpagesize_kB=4
7f2288000000 interleave:0-1 anon=2 dirty=2 N12=2 kernelpagesize_kB=2048
7f228803b000 interleave:0-1
"""


def test_a_process_own_pages_are_counted_by_node_and_page_size() -> None:
    assert anonymous_bytes(NUMA_MAPS) == {0: 200 * 4096, 1: 312 * 4096, 12: 2 * 2**21}
    assert anonymous_bytes("") == {}


def test_the_callers_own_cpuset_does_not_count(tmp_path: Path) -> None:
    files = machine_files(MachineShape(even_nodes(2, 4)))
    files["/proc/self/status"] = "Cpus_allowed_list:\t0-1\nMems_allowed_list:\t0\n"
    files["/proc/self/cgroup"] = "0::/user.slice"
    files["/proc/mounts"] = "cgroup2 /sys/fs/cgroup cgroup2 rw 0 0"
    files["/sys/fs/cgroup/user.slice/cpuset.cpus.effective"] = "0-1"
    files["/sys/fs/cgroup/cpuset.cpus.effective"] = "0-7"
    root = write_tree(tmp_path, files)
    assert read_topology(root).usable_cpu_ids == (0, 1)
    assert service_topology("stratad.slice", root=root).usable_cpu_ids == tuple(range(8))


def test_the_cpuset_of_the_services_slice_counts(tmp_path: Path) -> None:
    files = machine_files(MachineShape(even_nodes(2, 4, total_gib=8, free_gib=2)))
    files["/proc/mounts"] = "cgroup2 /sys/fs/cgroup cgroup2 rw 0 0"
    files["/sys/fs/cgroup/cpuset.cpus.effective"] = "0-7"
    files["/sys/fs/cgroup/stratad.slice/cpuset.cpus.effective"] = "4-7"
    root = write_tree(tmp_path, files)
    assert service_topology("stratad.slice", root=root).usable_cpu_ids == (4, 5, 6, 7)
    assert service_topology("other.slice", root=root).usable_cpu_ids == tuple(range(8))


def test_memory_of_the_running_service_counts_as_free(tmp_path: Path) -> None:
    files = machine_files(MachineShape(even_nodes(2, 4, total_gib=8, free_gib=2)))
    pages = GIB // 4096
    files["/proc/77/numa_maps"] = f"7f0000000000 bind:1 anon={pages} N1={pages} kernelpagesize_kB=4\n"
    root = write_tree(tmp_path, files)
    without = service_topology("stratad.slice", root=root)
    beside = service_topology("stratad.slice", 77, root)
    gone = [
        (after.free_bytes or 0) - (before.free_bytes or 0)
        for before, after in zip(without.nodes, beside.nodes, strict=True)
    ]
    assert gone == [0, GIB]
