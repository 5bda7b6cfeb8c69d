"""The reader against the truth about 42 real machines, read in place and never committed."""

from __future__ import annotations

import json
import os
import tarfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from planner import (
    ArenaSpec,
    PlanRefused,
    PlanRequest,
    Topology,
    make_plan,
    topology_to_dict,
)
from planner.discover import topology_of
from planner.sysfs import Tree
from stratad.machine.archive import Recording, cleaned
from tests.support.archives import unpack

REPOSITORY = Path(__file__).resolve().parents[2]
SHARED = Path(os.environ.get("STRATAD_SHARED", REPOSITORY.parent / "shared")) / "topologies"
MACHINES = sorted(path.name.removesuffix(".tar.xz") for path in SHARED.glob("*.tar.xz"))
PLAIN_FIELDS = ("cpus_online", "cpus_offline", "packages", "cores", "distances", "memory_total_kib")
USABLE_FIELDS = ("usable_cpus", "usable_nodes")

pytestmark = pytest.mark.skipif(
    not MACHINES, reason=f"no captured machines under {SHARED} (set STRATAD_SHARED)"
)


def unpacked(name: str, tmp_path: Path) -> Path:
    with tarfile.open(SHARED / f"{name}.tar.xz") as archive:
        unpack(archive, tmp_path)
    return tmp_path


@pytest.mark.parametrize("name", MACHINES)
def test_the_reader_agrees_with_the_truth_and_the_planner_has_an_answer(name: str, tmp_path: Path) -> None:
    # One test for both: unpacking is nearly all of its time.
    recording = Recording(Tree(unpacked(name, tmp_path)))
    topology = topology_of(recording, name)
    check_capture(recording, topology)
    truth = json.loads((SHARED / f"{name}.json").read_text())["summary"]
    compare(topology_to_dict(topology), truth)
    for arena_bytes in (0, 4 << 20, 44 << 30):
        check_plan(topology, arena_bytes)


def check_capture(recording: Recording, topology: Topology) -> None:
    """A capture of the machine gives the same facts; only the kernel's build is cut to its number."""
    again = topology_of(cleaned(recording))
    release = again.kernel_release
    assert release is None or str(topology.kernel_release).startswith(release)
    assert replace(again, kernel_release=topology.kernel_release) == topology


def compare(document: dict[str, object], truth: dict[str, Any]) -> None:
    disputed = {dispute["field"].split()[0] for dispute in truth["disagreements"]}
    for field in (*PLAIN_FIELDS, *USABLE_FIELDS):
        if field in truth and field not in disputed:
            assert document[field] == truth[field], field
    nodes = document["nodes"]
    assert isinstance(nodes, dict)
    assert list(nodes) == list(truth["nodes"])
    for node_id, node in truth["nodes"].items():
        for field in ("cpus", "mem_total_kib"):
            if field in node and f"node{node_id}" not in disputed:
                assert nodes[node_id][field] == node[field], (node_id, field)
    assert accelerators(document) == [
        (gpu["busid"], gpu["class"], gpu["id"], gpu["numa_node"]) for gpu in truth["accelerators"]
    ]
    homes = [None if gpu["hwloc_nodes"] is None else int(gpu["hwloc_nodes"]) for gpu in truth["accelerators"]]
    assert [gpu["node"] for gpu in document["accelerators"]] == homes  # type: ignore[attr-defined]


def accelerators(document: dict[str, object]) -> list[tuple[object, ...]]:
    found = document["accelerators"]
    assert isinstance(found, list)
    return [(gpu["busid"], gpu["class"], gpu["id"], gpu["numa_node"]) for gpu in found]


def check_plan(topology: Topology, arena_bytes: int) -> None:
    try:
        plan = make_plan(topology, PlanRequest(arena=ArenaSpec(arena_bytes)))
    except PlanRefused as refusal:
        assert refusal.reasons
        return
    cpu_ids = [worker.cpu_id for worker in plan.layout.workers]
    assert set(cpu_ids) <= set(topology.usable_cpu_ids)
    assert len(cpu_ids) <= len(topology.cores)
