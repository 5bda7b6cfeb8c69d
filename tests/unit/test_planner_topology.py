"""The reader on trees with the faults and gaps that real machines have."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from planner import TopologyUnreadable, read_topology
from planner.cpulist import format_id_list
from planner.discover import topology_of
from planner.sysfs import LARGEST_FILE_BYTES, Tree
from tests.support.machines import (
    CPU_DIRECTORY,
    GIB,
    NODE_DIRECTORY,
    GpuShape,
    MachineShape,
    MemoryTree,
    NodeShape,
    even_nodes,
    machine_files,
    machine_topology,
    write_tree,
)

TWO_SOCKETS = MachineShape(even_nodes(2, 4, threads_per_core=2))


def test_nodes_cores_and_packages_are_read_from_the_kernels_sets() -> None:
    topology = machine_topology(TWO_SOCKETS)
    assert [node.cpu_ids for node in topology.nodes] == [
        (0, 1, 2, 3, 8, 9, 10, 11),
        (4, 5, 6, 7, 12, 13, 14, 15),
    ]
    assert topology.cores[0] == (0, 8)
    assert len(topology.cores) == 8
    assert topology.packages == tuple(node.cpu_ids for node in topology.nodes)
    assert topology.cpus[8].smt_index == 1
    assert topology.distance(0, 1) == 21


def test_the_same_tree_reads_the_same_from_disk_and_from_memory(tmp_path: Path) -> None:
    files = machine_files(TWO_SOCKETS)
    assert read_topology(write_tree(tmp_path, files)) == topology_of(MemoryTree(files))


def test_cores_are_not_joined_by_core_id_alone() -> None:
    files = {path: text for path, text in machine_files(TWO_SOCKETS).items() if "siblings" not in path}
    topology = topology_of(MemoryTree(files))
    # Without sibling sets package and core_id together are all there is; across packages they must not meet.
    assert all(
        len({cpu in node.cpu_ids for cpu in core}) == 1 for core in topology.cores for node in topology.nodes
    )
    assert len(topology.cores) == 8


def test_siblings_in_another_package_are_no_siblings() -> None:
    files = machine_files(TWO_SOCKETS) | {f"{CPU_DIRECTORY}/cpu0/topology/thread_siblings_list": "0,4,8"}
    assert topology_of(MemoryTree(files)).cores[0] == (0, 8)


def test_cpus_without_any_topology_are_cores_of_one_package() -> None:
    topology = topology_of(MemoryTree({f"{CPU_DIRECTORY}/online": "0-3"}))
    assert topology.cores == ((0,), (1,), (2,), (3,))
    assert topology.packages == ((0, 1, 2, 3),)


def test_a_package_id_of_minus_one_is_unknown() -> None:
    files = machine_files(TWO_SOCKETS) | {
        f"{CPU_DIRECTORY}/cpu{cpu}/topology/physical_package_id": "-1" for cpu in range(16)
    }
    assert len(topology_of(MemoryTree(files)).packages) == 2
    without_sets = {path: text for path, text in files.items() if not path.endswith("core_siblings_list")}
    assert len(topology_of(MemoryTree(without_sets)).packages) == 1


def test_offline_cpus_are_known_by_their_own_file_when_there_is_no_list() -> None:
    files = machine_files(TWO_SOCKETS) | {
        f"{CPU_DIRECTORY}/cpu3/online": "0",
        f"{CPU_DIRECTORY}/cpu2/online": "1",
    }
    del files[f"{CPU_DIRECTORY}/online"]
    topology = topology_of(MemoryTree(files))
    assert format_id_list(cpu.cpu_id for cpu in topology.cpus) == "0-2,4-15"
    assert 3 not in topology.nodes[0].cpu_ids


def test_present_cpus_that_are_not_online_are_offline() -> None:
    files = machine_files(TWO_SOCKETS) | {f"{CPU_DIRECTORY}/present": "0-17", f"{CPU_DIRECTORY}/offline": ""}
    assert topology_of(MemoryTree(files)).offline_cpu_ids == (16, 17)


def test_a_machine_without_node_directory_has_one_implied_node() -> None:
    files = {
        f"{CPU_DIRECTORY}/online": "0-1",
        "/proc/meminfo": "MemTotal: 8388608 kB\nMemFree: 1048576 kB\nInactive(file): 2097152 kB",
    }
    (node,) = topology_of(MemoryTree(files)).nodes
    assert node.is_implied
    assert node.cpu_ids == (0, 1)
    assert (node.memory_total_bytes, node.available_bytes) == (8 * GIB, 3 * GIB)


def test_memory_that_no_file_states_is_none_and_not_zero() -> None:
    topology = machine_topology(
        MachineShape((NodeShape(0, 0, ((0,),), None), NodeShape(1, 1, ((1,),), None)))
    )
    assert [node.memory_total_bytes for node in topology.nodes] == [None, None]
    assert all(node.has_memory for node in topology.nodes)
    assert not machine_topology(MachineShape((NodeShape(0, 0, ((0,),), 0),))).nodes[0].has_memory


def test_available_memory_is_free_and_reclaimable_and_never_more_than_the_total() -> None:
    free_and_cache = NodeShape(0, 0, ((0,),), 64 * GIB, 2 * GIB, 48 * GIB)
    assert machine_topology(MachineShape((free_and_cache,))).nodes[0].available_bytes == 50 * GIB
    over_counted = NodeShape(0, 0, ((0,),), 64 * GIB, 60 * GIB, 48 * GIB)
    assert machine_topology(MachineShape((over_counted,))).nodes[0].available_bytes == 64 * GIB


def test_a_distance_row_that_covers_offline_nodes_is_read_by_id() -> None:
    shape = MachineShape((NodeShape(1, 0, ((0,),)),), distances={1: (21, 10)})
    (node,) = machine_topology(shape).nodes
    assert node.distances == ((1, 10),)
    assert node.distance_row == (21, 10)


def test_a_distance_row_of_the_wrong_length_is_unknown() -> None:
    shape = MachineShape((NodeShape(0, 0, ((0,),)), NodeShape(1, 1, ((1,),))), distances={0: (10,)})
    assert machine_topology(shape).distance(0, 1) is None


def test_a_mask_serves_where_there_is_no_list() -> None:
    files = machine_files(TWO_SOCKETS) | {f"{NODE_DIRECTORY}/node1/cpumap": "0000,0000f0f0"}
    del files[f"{NODE_DIRECTORY}/node1/cpulist"]
    assert topology_of(MemoryTree(files)).nodes[1].cpu_ids == (4, 5, 6, 7, 12, 13, 14, 15)


def test_a_cpu_listed_by_many_nodes_belongs_to_the_first() -> None:
    files = machine_files(TWO_SOCKETS) | {f"{NODE_DIRECTORY}/node1/cpulist": "0-15"}
    topology = topology_of(MemoryTree(files))
    assert topology.cpus[0].node_id == 0
    assert topology.cpus[4].node_id == 1


def test_nothing_at_all_is_a_typed_error(tmp_path: Path) -> None:
    with pytest.raises(TopologyUnreadable, match=str(tmp_path)):
        read_topology(tmp_path)


def test_the_affinity_mask_alone_names_cpus_when_nothing_else_does() -> None:
    topology = topology_of(
        MemoryTree({"/proc/self/status": "Cpus_allowed_list:\t0-1\nMems_allowed_list:\t0"})
    )
    assert topology.usable_cpu_ids == (0, 1)


def test_cpus_and_nodes_of_a_cpuset_may_differ() -> None:
    topology = machine_topology(MachineShape(even_nodes(4, 4), allowed_cpus="0-3", allowed_nodes="2-3"))
    assert topology.usable_cpu_ids == (0, 1, 2, 3)
    assert topology.usable_node_ids == (2, 3)


def test_a_cpuset_of_a_parent_group_counts_when_ours_has_none() -> None:
    files = machine_files(MachineShape(even_nodes(2, 4), allowed_cpus="0-3"))
    files["/proc/self/cgroup"] = "0::/stratad.slice/stratad.service"
    assert topology_of(MemoryTree(files)).usable_cpu_ids == (0, 1, 2, 3)


def test_a_version_1_cpuset_is_read_with_and_without_prefix() -> None:
    files = machine_files(MachineShape(even_nodes(2, 4)))
    files |= {
        "/proc/self/cgroup": "3:cpuset:/box",
        "/dev/cpuset/box/cpus": "1-2",
        "/dev/cpuset/box/mems": "1",
    }
    files["/proc/mounts"] = "cpuset /dev/cpuset cgroup rw,cpuset,noprefix 0 0"
    assert topology_of(MemoryTree(files)).usable_cpu_ids == (1, 2)
    files["/proc/mounts"] = "cpuset /cg cgroup rw,cpuset 0 0"
    files |= {"/cg/box/cpuset.cpus": "0-5", "/cg/box/cpuset.effective_cpus": "5"}
    assert topology_of(MemoryTree(files)).usable_cpu_ids == (5,)


def test_the_narrower_of_cpuset_and_affinity_counts() -> None:
    files = machine_files(MachineShape(even_nodes(2, 4), allowed_cpus="0-5"))
    files["/proc/self/status"] = "Cpus_allowed_list:\t4-7\nMems_allowed_list:\t1"
    topology = topology_of(MemoryTree(files))
    assert topology.usable_cpu_ids == (4, 5)
    assert topology.usable_node_ids == (1,)


def test_a_limit_that_leaves_no_cpu_contradicts_the_tree_and_is_passed_over() -> None:
    topology = machine_topology(MachineShape(even_nodes(2, 4), allowed_cpus="200-210", allowed_nodes="9"))
    assert len(topology.usable_cpu_ids) == 8
    assert topology.usable_node_ids == (0, 1)


def test_the_smallest_memory_limit_on_the_way_to_the_root_counts() -> None:
    files = machine_files(MachineShape(even_nodes(1, 4), memory_max_bytes=8 * GIB))
    files |= {
        "/proc/self/cgroup": "0::/stratad.slice/inner",
        "/sys/fs/cgroup/stratad.slice/inner/memory.max": "max",
    }
    assert topology_of(MemoryTree(files)).limits.memory_limit_bytes == 8 * GIB
    files["/sys/fs/cgroup/stratad.slice/inner/memory.max"] = str(4 * GIB)
    assert topology_of(MemoryTree(files)).limits.memory_limit_bytes == 4 * GIB


def test_version_1_without_a_limit_is_no_limit() -> None:
    files = machine_files(MachineShape(even_nodes(1, 4)))
    files |= {
        "/proc/mounts": "cgroup /m cgroup rw,memory 0 0",
        "/proc/self/cgroup": "4:memory:/",
        "/m/memory.limit_in_bytes": "9223372036854771712",
    }
    assert topology_of(MemoryTree(files)).limits.memory_limit_bytes is None


@pytest.mark.parametrize(
    ("gpu", "is_accelerator"),
    [
        (GpuShape("0000:01:00.0", 0, "0x030200"), True),
        (GpuShape("0000:01:00.0", 0, "0x030000"), True),
        (GpuShape("0000:01:00.0", 0, "0x038000", "0x1002"), True),
        (GpuShape("0000:01:00.0", 0, "0x120000", "0x1da3"), True),
        (GpuShape("0000:01:00.0", 0, "0x0b4000", "0x8086"), True),
        (GpuShape("10000000:01:00.0", 0, "0x030200"), True),
        (GpuShape("0000:01:00.0", 0, "0x030000", "0x1a03"), False),
        (GpuShape("0000:01:00.0", 0, "0x030000", "0x102b"), False),
        (GpuShape("0000:01:00.0", 0, "0x030000", "0x1002", "0x515e"), False),
        (GpuShape("0000:01:00.0", 0, "0x020000"), False),
        (GpuShape("0000:01:00.0", 0, "0x040300"), False),
    ],
)
def test_accelerators_are_told_from_board_vga(gpu: GpuShape, is_accelerator: bool) -> None:
    topology = machine_topology(MachineShape(even_nodes(2, 2), (gpu,)))
    assert [found.pci_address for found in topology.accelerators] == ([gpu.address] if is_accelerator else [])


@pytest.mark.parametrize("numa_node", [-1, None, 7])
def test_a_gpu_node_that_is_not_stated_is_unknown(numa_node: int | None) -> None:
    (gpu,) = machine_topology(
        MachineShape(even_nodes(2, 2), (GpuShape("0000:01:00.0", numa_node),))
    ).accelerators
    assert gpu.node_id is None
    assert gpu.kernel_numa_node == numa_node


def test_local_cpus_name_a_gpus_node_when_firmware_does_not() -> None:
    files = machine_files(MachineShape(even_nodes(2, 2), (GpuShape("0000:01:00.0", -1),)))
    path = "/sys/bus/pci/devices/0000:01:00.0/local_cpulist"
    assert topology_of(MemoryTree(files | {path: "2-3"})).accelerators[0].node_id == 1
    assert topology_of(MemoryTree(files | {path: "0-3"})).accelerators[0].node_id is None


def test_on_one_node_local_cpus_tell_nothing() -> None:
    files = machine_files(MachineShape(even_nodes(1, 4), (GpuShape("0000:01:00.0", -1),)))
    files["/sys/bus/pci/devices/0000:01:00.0/local_cpulist"] = "0-3"
    assert topology_of(MemoryTree(files)).accelerators[0].node_id is None


def test_files_that_are_no_files_are_absent(tmp_path: Path) -> None:
    root = write_tree(tmp_path, machine_files(TWO_SOCKETS))
    os.mkfifo(root / "pipe")
    (root / "loop").symlink_to("loop")
    (root / "large").write_bytes(b"1" * (LARGEST_FILE_BYTES + 10))
    tree = Tree(root)
    assert tree.text("/pipe") is None
    assert tree.text("/loop") is None
    assert tree.text("/sys") is None
    assert tree.text("/nothing\x00here") is None
    assert tree.names("/sys/devices/system/cpu/online") is None
    assert len(tree.text("/large") or "") == LARGEST_FILE_BYTES


def test_bytes_that_are_no_utf8_do_not_stop_the_reader(tmp_path: Path) -> None:
    root = write_tree(tmp_path, machine_files(TWO_SOCKETS))
    (root / "sys/devices/system/node/node0/cpulist").write_bytes(b"\xff\xfe0-3")
    assert read_topology(root).nodes[0].cpu_ids == ()


def test_a_group_outside_our_view_is_looked_up_from_the_mount() -> None:
    files = machine_files(MachineShape(even_nodes(2, 4)))
    files |= {"/proc/self/cgroup": "0::/../../other", "/sys/fs/cgroup/cpuset.cpus.effective": "2-3"}
    files["/sys/fs/cgroup/../../other/cpuset.cpus.effective"] = "7"
    assert topology_of(MemoryTree(files)).usable_cpu_ids == (2, 3)


def test_on_hybrid_hosts_the_version_1_cpuset_counts() -> None:
    files = machine_files(MachineShape(even_nodes(2, 4)))
    files["/proc/mounts"] = "cgroup2 /unified cgroup2 rw 0 0\ncgroup /cpuset cgroup rw,cpuset 0 0"
    files["/proc/self/cgroup"] = "0::/\n3:cpuset:/box"
    files |= {"/unified/cpuset.cpus.effective": "0-7", "/cpuset/box/cpuset.cpus": "4-5"}
    assert topology_of(MemoryTree(files)).usable_cpu_ids == (4, 5)


def test_the_only_node_takes_the_machines_memory_when_it_states_none() -> None:
    files = machine_files(MachineShape((NodeShape(0, 0, ((0,), (1,)), None),)))
    files["/proc/meminfo"] = "MemTotal: 1024 kB\nMemFree: 512 kB"
    assert topology_of(MemoryTree(files)).nodes[0].free_bytes == 512 * 1024


def test_a_cpu_without_siblings_does_not_take_one_that_states_its_own() -> None:
    files = {f"{CPU_DIRECTORY}/online": "0-2", f"{CPU_DIRECTORY}/cpu1/topology/thread_siblings_list": "1"}
    files |= {f"{CPU_DIRECTORY}/cpu{cpu}/topology/core_id": "0" for cpu in range(3)}
    assert topology_of(MemoryTree(files)).cores == ((0, 2), (1,))
