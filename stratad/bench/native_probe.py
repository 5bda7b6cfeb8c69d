"""The probe of this machine: our own pool and arena, called with the GIL released and interruptible by Ctrl-C."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence

from stratad import _native
from stratad.bench.batch_cases import USED_COUNT, BatchCase, BatchForm, BatchPath, BatchPlan, WeightShape
from stratad.bench.cases import LONG_SPIN_SECONDS, TASK_SECONDS, BenchNode, LayerCase, Pattern, ReadCase
from stratad.bench.results import PlacedMemory
from stratad.errors import StratadError

_PATTERNS = {
    Pattern.STREAM: _native.ReadPattern.STREAM,
    Pattern.EXPERTS: _native.ReadPattern.EXPERTS,
    Pattern.PRODUCTS: _native.ReadPattern.PRODUCTS,
}
_PATHS = {
    BatchPath.ROWS: _native.BatchPath.ROWS,
    BatchPath.PANELS: _native.BatchPath.PANELS,
    BatchPath.TILES: _native.BatchPath.TILES,
    BatchPath.GGML: _native.BatchPath.GGML,
}
_FORMS = {BatchForm.EXPERTS: _native.BatchForm.EXPERTS, BatchForm.DENSE: _native.BatchForm.DENSE}
# The pool's usual one; readers do not wait for each other.
_READ_SPIN_SECONDS = 50e-6
_SAMPLED_PAGES = 4096
# Meetings have nothing but phases: enough of them that handing out the job does not count.
_MEETING_PHASES = 32
# The CPUs of each slice's workers.
_Slices = tuple[tuple[int, ...], ...]


class MeasuringError(StratadError):
    """The kernel refused what measuring needs: a CPU, memory, or room on a node."""

    default_summary = "this machine could not be measured"


class NativeProbe:
    """`Probe` of the machine that this process runs on.

    Args:
        nodes: The nodes to measure; their cores place the memory.
    """

    def __init__(self, nodes: tuple[BenchNode, ...]) -> None:
        self._nodes = {node.node_id: node for node in nodes}
        self._may_place = not _native.probe_memory_policy()
        self._arenas: dict[tuple[int, ...], _native.Arena] = {}
        self._reads: dict[ReadCase, _native.ReadProbe] = {}
        # Workers stay and sleep between samples; cases with the same ones share them.
        self._pools: dict[tuple[_Slices, float], _native.Pool] = {}

    def place(self, node_ids: tuple[int, ...], size_bytes: int) -> PlacedMemory:
        """Places a block and says how much of it lies where it should."""
        cpu_ids = [cpu_id for node_id in node_ids for cpu_id in self._nodes[node_id].cpu_ids]
        # Nodes without cores of their own are touched from the others'.
        cpu_ids = cpu_ids or [cpu_id for node in self._nodes.values() for cpu_id in node.cpu_ids]
        home = list(node_ids) if self._may_place and len(self._nodes) > 1 else []
        try:
            pool = _start_pool((tuple(cpu_ids),), home, _READ_SPIN_SECONDS)
            arena = _native.place_probe_memory(size_bytes, pool)
        except OSError as error:
            raise MeasuringError(
                tried=f"placing {size_bytes} bytes on node {', '.join(map(str, node_ids))}",
                because=os.strerror(error.errno or 0),
                values={"size_bytes": size_bytes, "nodes": node_ids},
                remedy="give less with --bytes, or free memory on that node",
            ) from error
        self._arenas[node_ids] = arena
        return PlacedMemory(node_ids, arena.size_bytes, _local_ratio(arena, node_ids, len(self._nodes)))

    def memory_of(self, node_id: int) -> _native.Arena:
        """The block that was placed on this node alone."""
        return self._arenas[(node_id,)]

    def read(self, case: ReadCase, seconds: float) -> float:
        """Bytes a second of all readers together."""
        if case not in self._reads:
            pool = self._pool(tuple(reader.cpu_ids for reader in case.readers), _READ_SPIN_SECONDS)
            parts = [self._arenas[reader.memory_node_ids] for reader in case.readers]
            self._reads[case] = _native.ReadProbe(parts, pool, _PATTERNS[case.pattern])
        size_bytes, elapsed_seconds = self._reads[case].sample(seconds)
        return size_bytes / elapsed_seconds

    def layers(self, case: LayerCase, layer_count: int, limit_seconds: float) -> Sequence[float]:
        """Seconds of each layer beyond its work; of meetings, of each phase."""
        pool = self._pool(case.slices, case.spin_seconds)
        # The workers of the case before may still be awake, on the same CPUs.
        time.sleep(2 * LONG_SPIN_SECONDS)
        if case.meets:
            found = _native.measure_layers(
                pool,
                layer_count=layer_count,
                limit_seconds=limit_seconds,
                phase_count=_MEETING_PHASES,
                meets=True,
            )
            return [float(seconds) / _MEETING_PHASES for seconds in found]
        found = _native.measure_layers(
            pool,
            layer_count=layer_count,
            limit_seconds=limit_seconds,
            task_seconds=TASK_SECONDS,
            gap_seconds=case.gap_seconds,
        )
        return [float(seconds) for seconds in found]

    def _pool(self, slices: _Slices, spin_seconds: float) -> _native.Pool:
        key = (slices, spin_seconds)
        if key not in self._pools:
            self._pools[key] = _start_pool(slices, [], spin_seconds)
        return self._pools[key]


class NativeBatches:
    """`BatchProbe` of the machine that this process runs on: the daemon's own jobs, and ggml's graph.

    Raises:
        MeasuringError: A CPU or memory is refused.
    """

    def __init__(self, plan: BatchPlan, case: BatchCase) -> None:
        shape = case.shape
        # A home is named only where there is another node that pages could be on.
        pool = _start_pool((plan.cpu_ids,), [plan.node_id] if plan.places_memory else [], _READ_SPIN_SECONDS)
        try:
            self._probe = _native.BatchProbe(
                pool,
                weight_type=shape.weight_type,
                kernels=plan.kernels,
                rows=shape.rows,
                columns=shape.columns,
                matrix_count=case.matrix_count,
                used_count=USED_COUNT,
            )
        except OSError as error:
            size_bytes = shape.matrix_bytes * case.matrix_count
            raise MeasuringError(
                tried=f"placing {size_bytes} bytes of {shape.weight_type} weights on node {plan.node_id}",
                because=os.strerror(error.errno or 0),
                values={"size_bytes": size_bytes, "node": plan.node_id},
                remedy="give less with --bytes, or free memory on that node",
            ) from error

    @property
    def paths(self) -> tuple[BatchPath, ...]:
        """The paths that this CPU has for the type."""
        return tuple(path for path, native in _PATHS.items() if self._probe.offers(native))

    def multiply(self, path: BatchPath, form: BatchForm, tokens: int) -> float:
        """Seconds of one pass."""
        return self._probe.sample(_PATHS[path], _FORMS[form], tokens)


def is_measurable(shape: WeightShape) -> bool:
    """Whether such weights can be made here to be multiplied."""
    return _native.can_place_weights(shape.weight_type, shape.columns)


def _start_pool(slices: _Slices, node_ids: list[int], spin_seconds: float) -> _native.Pool:
    seats = [_native.SliceSeat(node_ids) for _ in slices]
    workers = [
        _native.WorkerSeat(cpu_id, index) for index, cpu_ids in enumerate(slices) for cpu_id in cpu_ids
    ]
    try:
        return _native.Pool(seats, workers, spin_seconds)
    except OSError as error:
        raise MeasuringError(
            tried=f"starting workers on CPUs {[cpu_id for cpu_ids in slices for cpu_id in cpu_ids]}",
            because=os.strerror(error.errno or 0),
            remedy="look whether this shell's cpuset has changed (`stratactl topology`)",
        ) from error


def _local_ratio(arena: _native.Arena, node_ids: tuple[int, ...], node_count: int) -> float:
    """The share of sampled pages on the wanted nodes; 1 on a machine with one node, where there is no other."""
    if node_count < 2:
        return 1.0
    try:
        nodes = arena.sample_placement(0, _SAMPLED_PAGES)
    except OSError:
        # Nobody can tell where the pages are: they count as elsewhere.
        return 0.0
    return float(sum(int(node) in node_ids for node in nodes) / len(nodes))
