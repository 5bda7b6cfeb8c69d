"""The machines the lab boots, as QEMU options: nodes with CPUs and memory of their own, a device on a node."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Layout:
    """One machine: `processors` is QEMU's -smp, `options` everything else about its nodes."""

    name: str
    processors: str
    memory_mebibytes: int
    options: tuple[str, ...]


def _node(node_id: int, mebibytes: int, cpus: str | None) -> tuple[str, ...]:
    node = f"node,nodeid={node_id}"
    if cpus is not None:
        node += f",cpus={cpus}"
    if mebibytes == 0:
        return ("-numa", node)
    backend = f"memory-backend-ram,id=m{node_id},size={mebibytes}M"
    return ("-object", backend, "-numa", f"{node},memdev=m{node_id}")


def _distances(
    count: int, far: int = 21, special: Mapping[tuple[int, int], int] | None = None
) -> tuple[str, ...]:
    options: tuple[str, ...] = ()
    for first in range(count):
        for second in range(first + 1, count):
            value = (special or {}).get((first, second), far)
            options += ("-numa", f"dist,src={first},dst={second},val={value}")
    return options


def _display(node_id: int) -> tuple[str, ...]:
    """A display device behind an expander bridge on a node: what sysfs shows as a GPU there."""
    bus = 0x40 + 0x20 * node_id
    return (
        "-device",
        f"pxb-pcie,id=px{node_id},bus=pcie.0,bus_nr={bus},numa_node={node_id}",
        "-device",
        f"pcie-root-port,id=rp{node_id},bus=px{node_id},chassis={10 + node_id},slot={node_id}",
        "-device",
        f"bochs-display,bus=rp{node_id}",
    )


TWO = Layout(
    "two",
    "4,sockets=2,cores=2,threads=1",
    1792,
    (*_node(0, 896, "0-1"), *_node(1, 896, "2-3"), *_distances(2), *_display(1)),
)

# With four cores a node, the plan leaves some to the rest of the system. (Six CPUs in all hang the emulated kernel.)
WIDE = Layout(
    "wide",
    "8,sockets=2,cores=4,threads=1",
    1792,
    (*_node(0, 896, "0-3"), *_node(1, 896, "4-7"), *_distances(2), *_display(1)),
)

# Each node holds half of the large model with headroom, and not the whole.
TIGHT = Layout(
    "tight",
    "4,sockets=2,cores=2,threads=1",
    1024,
    (*_node(0, 512, "0-1"), *_node(1, 512, "2-3"), *_distances(2), *_display(1)),
)

# Two cores a node: with one, the core that is kept free would leave a slice without a worker.
FOUR = Layout(
    "four",
    "8,sockets=2,cores=4,threads=1",
    2560,
    (
        *(
            option
            for node_id in range(4)
            for option in _node(node_id, 640, f"{2 * node_id}-{2 * node_id + 1}")
        ),
        *_distances(4, 32, {(0, 1): 12, (2, 3): 12}),
        *_display(2),
    ),
)

# Node 2 has memory and no CPU, as a CXL expander.
MEMORY_ONLY = Layout(
    "memory-only",
    "4,sockets=2,cores=2,threads=1",
    2304,
    (
        *_node(0, 896, "0-1"),
        *_node(1, 896, "2-3"),
        *_node(2, 512, None),
        *_distances(3, special={(0, 2): 17, (1, 2): 28}),
        *_display(1),
    ),
)

# Node 1 has CPUs and no memory.
MEMORYLESS = Layout(
    "memoryless",
    "4,sockets=2,cores=2,threads=1",
    1280,
    (*_node(0, 1280, "0-1"), *_node(1, 0, "2-3"), *_distances(2), *_display(1)),
)

# Node 1 cannot hold half of the large model.
UNEVEN = Layout(
    "uneven",
    "4,sockets=2,cores=2,threads=1",
    1408,
    (*_node(0, 1152, "0-1"), *_node(1, 256, "2-3"), *_distances(2), *_display(1)),
)

SINGLE = Layout("single", "2,sockets=1,cores=2,threads=1", 1152, _node(0, 1152, "0-1"))
