"""What `stratactl bench` measures on a machine of this shape: a list of cases, worked out before anything runs."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from planner import PlanRequest, Topology
from planner.facts import gather_facts

# The gap between layers that the GPU leaves, beyond what our pool spins by default (50 us).
GAP_SECONDS = 200e-6
SHORT_SPIN_SECONDS = 20e-6
LONG_SPIN_SECONDS = 1e-3
# A task of a layer: 20 workers that share 100 us take three each in two phases.
TASK_SECONDS = 2e-6


class Pattern(StrEnum):
    """How memory is read; the names of the native side (native/measure/read_probe.hpp)."""

    STREAM = "stream"
    EXPERTS = "experts"
    PRODUCTS = "products"


@dataclass(frozen=True, slots=True)
class BenchNode:
    """A node that may hold pages: its package, one CPU for each usable core, and its free memory."""

    node_id: int
    package_index: int
    cpu_ids: tuple[int, ...]
    free_bytes: int | None


class Purpose(StrEnum):
    """What a read case is for: a cell of the matrix, a point of the planner's sweep, or to be held against those."""

    CELL = "cell"
    SWEEP = "sweep"
    COMPARISON = "comparison"


@dataclass(frozen=True, slots=True)
class Reader:
    """The workers of one slice, by CPU, their node (None: of several) and the nodes that hold what they read."""

    node_id: int | None
    cpu_ids: tuple[int, ...]
    memory_node_ids: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class ReadCase:
    """One way to read: every reader is a slice, and all read at once."""

    name: str
    purpose: Purpose
    pattern: Pattern
    readers: tuple[Reader, ...]

    @property
    def worker_count(self) -> int:
        """Workers of all readers."""
        return sum(len(reader.cpu_ids) for reader in self.readers)


class Team(StrEnum):
    """Who works together on a layer: one node, two packages with a slice each, or as one slice."""

    NODE = "one-node"
    SLICED = "sliced-across"
    UNSLICED = "unsliced-across"


@dataclass(frozen=True, slots=True)
class LayerCase:
    """One team of workers, by slice, doing one layer after the other.

    `gap_seconds` pass between two layers; `spin_seconds` is how long a waiting worker stays awake. `meets`: all
    workers wait for each other in every phase.
    """

    name: str
    team: Team
    slices: tuple[tuple[int, ...], ...]
    spin_seconds: float = LONG_SPIN_SECONDS
    gap_seconds: float = 0.0
    meets: bool = False

    @property
    def worker_count(self) -> int:
        """Workers of all slices."""
        return sum(map(len, self.slices))

    @property
    def must_wake(self) -> bool:
        """Whether workers fall asleep between layers."""
        return self.gap_seconds > self.spin_seconds


@dataclass(frozen=True, slots=True)
class Programme:
    """All cases for one machine."""

    nodes: tuple[BenchNode, ...]
    reads: tuple[ReadCase, ...]
    layers: tuple[LayerCase, ...]

    @property
    def memories(self) -> tuple[tuple[int, ...], ...]:
        """The memory that has to be placed: a block on each of these sets of nodes."""
        return tuple(
            sorted({reader.memory_node_ids for case in self.reads for reader in case.readers}, key=_by_size)
        )


def bench_nodes(topology: Topology) -> tuple[BenchNode, ...]:
    """The nodes that this process may place pages on, with the cores that read from them."""
    return tuple(
        BenchNode(
            budget.node_id,
            budget.group_index,
            tuple(core.cpu_ids[0] for core in budget.cores),
            budget.free_bytes,
        )
        for budget in gather_facts(topology, PlanRequest()).budgets
    )


def programme(nodes: tuple[BenchNode, ...]) -> Programme:
    """Every case that makes sense on these nodes."""
    readers = tuple(node for node in nodes if node.cpu_ids)
    if not readers:
        return Programme(nodes, (), ())
    return Programme(
        nodes, (*_matrix(nodes, readers), *_at_once(readers), *_sweep(nodes, readers)), _layers(readers)
    )


def worker_counts(most: int) -> tuple[int, ...]:
    """1, 2, 4, ... and the most: few enough to measure, dense where the curve bends."""
    counts = [1]
    while counts[-1] * 2 < most:
        counts.append(counts[-1] * 2)
    return tuple(sorted({*counts, most}))


def _by_size(node_ids: tuple[int, ...]) -> tuple[int, tuple[int, ...]]:
    return (len(node_ids), node_ids)


def _matrix(nodes: tuple[BenchNode, ...], readers: tuple[BenchNode, ...]) -> list[ReadCase]:
    """Every node's cores reading every node's memory: one worker, and all of them."""
    cases = []
    for reader in readers:
        for memory in nodes:
            for cpu_ids in dict.fromkeys((reader.cpu_ids[:1], reader.cpu_ids)):
                name = f"{_workers(len(cpu_ids))} of node {reader.node_id} from node {memory.node_id}"
                cases.append(
                    ReadCase(
                        name,
                        Purpose.CELL,
                        Pattern.STREAM,
                        (Reader(reader.node_id, cpu_ids, (memory.node_id,)),),
                    )
                )
    return cases


def _at_once(readers: tuple[BenchNode, ...]) -> list[ReadCase]:
    """All nodes at the same time: each from its own memory, each from the next one's, experts at random."""
    own = tuple(Reader(node.node_id, node.cpu_ids, (node.node_id,)) for node in readers)
    cases = [ReadCase("all workers, random experts, own memory", Purpose.COMPARISON, Pattern.EXPERTS, own)]
    if len(readers) < 2:
        return cases
    turned = (*readers[1:], readers[0])
    crossed = tuple(
        Reader(node.node_id, node.cpu_ids, (other.node_id,))
        for node, other in zip(readers, turned, strict=True)
    )
    everybody = tuple(cpu_id for node in readers for cpu_id in node.cpu_ids)
    spread = (Reader(None, everybody, tuple(node.node_id for node in readers)),)
    return [
        ReadCase("all nodes at once, own memory", Purpose.COMPARISON, Pattern.STREAM, own),
        ReadCase("all nodes at once, the next node's memory", Purpose.COMPARISON, Pattern.STREAM, crossed),
        *cases,
        ReadCase("products, sliced, own memory", Purpose.COMPARISON, Pattern.PRODUCTS, own),
        ReadCase("products, unsliced, interleaved memory", Purpose.COMPARISON, Pattern.PRODUCTS, spread),
    ]


def _sweep(nodes: tuple[BenchNode, ...], readers: tuple[BenchNode, ...]) -> list[ReadCase]:
    """Products by 1 to all workers of the node with most cores, from its own memory and the farthest one."""
    node = largest_node(readers)
    cases = [
        ReadCase(
            f"products, {_workers(count)}, own memory",
            Purpose.SWEEP,
            Pattern.PRODUCTS,
            (Reader(node.node_id, node.cpu_ids[:count], (node.node_id,)),),
        )
        for count in worker_counts(len(node.cpu_ids))
    ]
    other = farthest(nodes, node)
    if other is None:
        return cases
    remote = [
        ReadCase(
            f"products, {_workers(count)}, memory of node {other.node_id}",
            Purpose.COMPARISON,
            Pattern.PRODUCTS,
            (Reader(node.node_id, node.cpu_ids[:count], (other.node_id,)),),
        )
        for count in dict.fromkeys((1, len(node.cpu_ids)))
    ]
    return cases + remote


def _layers(readers: tuple[BenchNode, ...]) -> tuple[LayerCase, ...]:
    node = largest_node(readers)
    most = len(node.cpu_ids)
    cases = [
        LayerCase(f"layer, {_workers(count)} of one node", Team.NODE, (node.cpu_ids[:count],))
        for count in worker_counts(most)
    ]
    cases += _resting(cases[-1])
    cases.append(LayerCase("meeting, all workers of one node", Team.NODE, (node.cpu_ids,), meets=True))
    other = farthest(tuple(one for one in readers if one.package_index != node.package_index), node)
    if other is None:
        return tuple(cases)
    each = min(most, len(other.cpu_ids))
    for count in worker_counts(each):
        pair = (node.cpu_ids[:count], other.cpu_ids[:count])
        cases.append(
            LayerCase(f"layer, {count} and {count} workers of two packages, sliced", Team.SLICED, pair)
        )
        joined = (tuple(cpu_id for two in zip(*pair, strict=True) for cpu_id in two),)
        cases.append(
            LayerCase(f"layer, {count} and {count} workers of two packages, unsliced", Team.UNSLICED, joined)
        )
    widest = (node.cpu_ids[:each], other.cpu_ids[:each])
    cases += _resting(LayerCase("layer, all workers of two packages, sliced", Team.SLICED, widest))
    cases.append(LayerCase("meeting, all workers of two packages", Team.SLICED, widest, meets=True))
    return tuple(cases)


def _resting(case: LayerCase) -> list[LayerCase]:
    """The same team with a gap between layers, through which it spins or sleeps."""
    return [
        LayerCase(f"{case.name}, {word} through a gap", case.team, case.slices, spin, GAP_SECONDS)
        for word, spin in (("awake", LONG_SPIN_SECONDS), ("asleep", SHORT_SPIN_SECONDS))
    ]


def largest_node(nodes: tuple[BenchNode, ...]) -> BenchNode:
    """The node with most cores, the first of equals."""
    return min(nodes, key=lambda node: (-len(node.cpu_ids), node.node_id))


def farthest(nodes: tuple[BenchNode, ...], node: BenchNode) -> BenchNode | None:
    """Another node, of another package where there is one; None when it is alone."""
    others = [other for other in nodes if other.node_id != node.node_id]
    return min(
        others, key=lambda other: (other.package_index == node.package_index, other.node_id), default=None
    )


def _workers(count: int) -> str:
    return f"{count} worker{'' if count == 1 else 's'}"
