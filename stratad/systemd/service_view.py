"""The machine as stratad.service will see it, read from another process such as stratactl.

The caller may sit in a session that a reservation has narrowed, and the service may be running already, with its
arena in memory. Neither is a fact about the machine: a plan for the service counts the cpuset of its slice, and
memory that the running service gives back when it is restarted.
"""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

from planner import Topology
from planner.discover import topology_of
from planner.sysfs import MachineFiles, Tree

_PAGE_COUNT = re.compile(r"\bN(\d+)=(\d+)")
_PAGE_KIBIBYTES = re.compile(r"\bkernelpagesize_kB=(\d+)")


class _ServiceFiles:
    """A machine's files with our own process's limits replaced by those of the service's slice."""

    def __init__(self, tree: MachineFiles, slice_name: str) -> None:
        self._tree = tree
        self._slice_name = slice_name

    def text(self, path: str) -> str | None:
        """The file's text; what describes our own process describes the slice instead."""
        if path == "/proc/self/cgroup":
            return f"0::/{self._slice_name}"
        if path in ("/proc/self/status", "/proc/self/cpuset"):
            return None
        return self._tree.text(path)

    def names(self, path: str) -> tuple[str, ...] | None:
        """As the tree's."""
        return self._tree.names(path)

    def has(self, path: str) -> bool:
        """As the tree's."""
        return self._tree.has(path)

    def link_name(self, path: str) -> str | None:
        """As the tree's."""
        return self._tree.link_name(path)


def service_topology(slice_name: str, process_id: int | None = None, root: Path = Path("/")) -> Topology:
    """The topology that a service in `slice_name` sees; `process_id` is the running service, if it runs.

    Memory of the running service counts as free: it is freed before the new plan is carried out.

    Raises:
        TopologyUnreadable: The root shows no CPU at all.
    """
    tree = Tree(root)
    topology = topology_of(_ServiceFiles(tree, slice_name), str(root))
    held = {} if process_id is None else anonymous_bytes(tree.text(f"/proc/{process_id}/numa_maps") or "")
    nodes = tuple(
        node
        if node.free_bytes is None
        else replace(node, free_bytes=node.free_bytes + held.get(node.node_id, 0))
        for node in topology.nodes
    )
    return replace(topology, nodes=nodes)


def anonymous_bytes(numa_maps: str) -> dict[int, int]:
    """Bytes per node of a process's own memory, from the text of its /proc/PID/numa_maps (proc(5)).

    Pages of files are left out: they are page cache, which counts as available in any case.
    """
    found: dict[int, int] = {}
    for line in numa_maps.splitlines():
        if " file=" in line or " anon=" not in line:
            continue
        size = _PAGE_KIBIBYTES.search(line)
        page_bytes = int(size[1]) * 1024 if size else 4096
        for node, pages in _PAGE_COUNT.findall(line):
            found[int(node)] = found.get(int(node), 0) + int(pages) * page_bytes
    return found
