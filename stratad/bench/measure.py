"""The run itself: every case once a round, round after round, within bounds of time and memory."""

from __future__ import annotations

import statistics
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial

from planner.quantity import format_bytes
from stratad.bench.cases import BenchNode, LayerCase, Pattern, Programme, ReadCase, largest_node
from stratad.bench.probe import DeviceCopies, Probe
from stratad.bench.results import CopyResult, LayerResult, Measurements, ReadResult, Spread
from stratad.errors import StratadError

# Medians of fewer samples say nothing about how far they spread.
LEAST_ROUNDS = 3
MOST_ROUNDS = 9
# Shorter samples measure the clock and the scheduler; longer ones tell nothing more.
SHORTEST_SAMPLE_SECONDS = 0.02
LONGEST_SAMPLE_SECONDS = 0.5
LAYERS_PER_SAMPLE = 400
# Of a node's free memory: the rest belongs to whatever else runs here.
FREE_SHARE = 0.25
DEFAULT_NODE_BYTES = 1 << 30
LEAST_NODE_BYTES = 64 << 20
# Well past the last cache, and no more than is needed to be.
CACHE_MULTIPLE = 8
# A run that takes this much longer than allowed, and some, is not going to end in time.
PATIENCE = 3.0
GRACE_SECONDS = 30.0

# Called before each step with what it is, and how much is done, 0 to 1.
Report = Callable[[str, float], None]


class BenchmarkRefused(StratadError):
    """There is not enough memory or time to measure anything that would be worth keeping."""

    default_summary = "the benchmark cannot run here"


@dataclass(frozen=True, slots=True)
class Bounds:
    """What a run may take: seconds of measuring, and bytes on each node (`block_bytes`)."""

    seconds: float
    node_bytes: int


@dataclass(frozen=True, slots=True)
class Instruments:
    """What a run measures with: the machine, its accelerators, and seconds that never go back."""

    probe: Probe
    copies: DeviceCopies
    clock: Callable[[], float]


def block_bytes(nodes: tuple[BenchNode, ...], cache_bytes: int | None, asked_bytes: int | None) -> int:
    """Give the size of the block on each node: as asked, else past the last cache, never over a share of what is free.

    Raises:
        BenchmarkRefused: More was asked for, or less is free than anything can be measured with.
    """
    known = [node.free_bytes for node in nodes if node.free_bytes is not None]
    # Beside each node's block lies its part of an interleaved one.
    blocks = 1 + (1 / len(nodes) if len(nodes) > 1 else 0)
    most = int(FREE_SHARE * min(known) / blocks) if known else DEFAULT_NODE_BYTES
    wanted = (
        max(DEFAULT_NODE_BYTES, CACHE_MULTIPLE * (cache_bytes or 0)) if asked_bytes is None else asked_bytes
    )
    if most < LEAST_NODE_BYTES or (asked_bytes is not None and asked_bytes > most):
        raise BenchmarkRefused(
            tried=f"taking {format_bytes(wanted)} on each node to read from",
            because=f"at most {FREE_SHARE:.0%} of a node's free memory is taken: {format_bytes(most)} here",
            values={"asked_bytes": asked_bytes, "most_bytes": most, "least_bytes": LEAST_NODE_BYTES},
            remedy=f"give --bytes {most}" if most >= LEAST_NODE_BYTES else "free memory on the fullest node",
        )
    return min(wanted, most)


def measure(programme: Programme, instruments: Instruments, bounds: Bounds, report: Report) -> Measurements:
    """Run every case of the programme in rounds until the time is used.

    Args:
        programme: The cases.
        instruments: The machine and its clock.
        bounds: Seconds and bytes.
        report: Hears of every step.

    Raises:
        BenchmarkRefused: The machine is too slow for the seconds allowed.
        StratadError: The probe's own refusals.
    """
    memories = []
    for index, node_ids in enumerate(programme.memories):
        report(f"placing memory on node {', '.join(map(str, node_ids))}", index / len(programme.memories))
        memories.append(instruments.probe.place(node_ids, bounds.node_bytes))
    samples = _Samples(programme, instruments, bounds, report)
    round_count = samples.take_rounds()
    return Measurements(
        memories=tuple(memories),
        reads=tuple(ReadResult(case, Spread.of(rates)) for case, rates in samples.reads.items()),
        layers=tuple(LayerResult(case, Spread.of(costs)) for case, costs in samples.layers.items()),
        copies=_copy_results(programme, instruments, samples.sample_seconds, report),
        round_count=round_count,
    )


class _Samples:
    """Samples of every case, and the rounds that take them."""

    def __init__(
        self, programme: Programme, instruments: Instruments, bounds: Bounds, report: Report
    ) -> None:
        self.reads: dict[ReadCase, list[float]] = {case: [] for case in programme.reads}
        self.layers: dict[LayerCase, list[float]] = {case: [] for case in programme.layers}
        self._probe, self._clock = instruments.probe, instruments.clock
        self._bounds, self._report = bounds, report
        case_count = len(self.reads) + len(self.layers)
        each = bounds.seconds / max(1, case_count) / (LEAST_ROUNDS + 2)
        self.sample_seconds = min(LONGEST_SAMPLE_SECONDS, max(SHORTEST_SAMPLE_SECONDS, each))
        self._start_seconds = self._clock()

    def take_rounds(self) -> int:
        """Takes rounds until the time is used, at least LEAST_ROUNDS; gives how many."""
        # Threads start, caches and page tables fill, clocks rise: none of that is to be measured.
        self._take_round("warming up", is_kept=False)
        for index in range(1, MOST_ROUNDS + 1):
            self._take_round(f"round {index}", is_kept=True)
            if index >= LEAST_ROUNDS and self._elapsed >= self._bounds.seconds:
                return index
        return MOST_ROUNDS

    @property
    def _elapsed(self) -> float:
        return self._clock() - self._start_seconds

    def _take_round(self, name: str, *, is_kept: bool) -> None:
        seconds = self.sample_seconds if is_kept else SHORTEST_SAMPLE_SECONDS
        for case, rates in self.reads.items():
            self._step(name, case.name)
            rate = self._probe.read(case, seconds)
            if is_kept:
                rates.append(rate)
        for layer_case, costs in self.layers.items():
            self._step(name, layer_case.name)
            found = self._probe.layers(layer_case, LAYERS_PER_SAMPLE, seconds)
            if is_kept:
                costs.append(statistics.median(found))

    def _step(self, name: str, case_name: str) -> None:
        elapsed = self._elapsed
        if elapsed > PATIENCE * self._bounds.seconds + GRACE_SECONDS:
            raise BenchmarkRefused(
                tried=f"measuring within {self._bounds.seconds:g} seconds",
                because=f"{elapsed:.0f} seconds have passed and there are no {LEAST_ROUNDS} rounds yet",
                remedy="give more with --seconds, or less memory with --bytes",
            )
        self._report(f"{name}: {case_name}", min(1.0, elapsed / self._bounds.seconds))


def _copy_results(
    programme: Programme, instruments: Instruments, seconds: float, report: Report
) -> tuple[CopyResult, ...]:
    """Every device from every node, alone and while all workers multiply: isolated numbers mislead."""
    everything = [case for case in programme.reads if case.pattern is Pattern.PRODUCTS]
    busiest = max(everything, key=lambda case: case.worker_count, default=None)
    if busiest is None:
        return ()
    copies, rounds = instruments.copies, range(LEAST_ROUNDS)
    results: list[CopyResult] = []
    for device in copies.devices:
        for node in programme.nodes:
            report(
                f"copying from node {node.node_id} to {device}",
                len(results) / (len(copies.devices) * len(programme.nodes)),
            )
            copy = partial(copies.copy, device, node.node_id, seconds)
            alone = [copy() for _ in rounds]
            pairs = [_together(copy, partial(instruments.probe.read, busiest, seconds)) for _ in rounds]
            together, pool = zip(*pairs, strict=True)
            results.append(
                CopyResult(device, node.node_id, Spread.of(alone), Spread.of(together), Spread.of(pool))
            )
    return tuple(results)


def _together(copy: Callable[[], float], read: Callable[[], float]) -> tuple[float, float]:
    """Bytes a second of both at the same time. The pool's worker 0 is the calling thread, so the copy moves off it."""
    with ThreadPoolExecutor(max_workers=1) as executor:
        copying = executor.submit(copy)
        pool_rate = read()
        return copying.result(), pool_rate


def shared_cache_bytes(
    programme: Programme, caches: tuple[tuple[tuple[int, ...], int | None], ...]
) -> int | None:
    """Give the last-level cache that the largest node's cores reach, all its parts together; None when unknown.

    Args:
        programme: The cases, for their nodes.
        caches: CPUs and bytes of every last-level cache.
    """
    if not programme.reads:
        return None
    cpu_ids = set(largest_node(tuple(node for node in programme.nodes if node.cpu_ids)).cpu_ids)
    sizes = [size for shared, size in caches if cpu_ids & set(shared)]
    known = [size for size in sizes if size is not None]
    return sum(known) if known and len(known) == len(sizes) else None
