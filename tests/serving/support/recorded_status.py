"""Status documents of machines that nobody here has: the real service over the real planner's plans."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from planner import make_plan, plan_to_dict
from stratad.runner.protocol import (
    GpuCounters,
    NativeCounters,
    PlacementReport,
    SliceCounters,
    SlicePlacement,
)
from stratad.service.machine_view import plan_summary
from tests.golden.test_plans import CASES
from tests.serving.support.scripted_runner import ScriptedRunner
from tests.serving.support.served import Served, serve
from tests.support.machines import MachineShape, even_nodes, machine_topology
from tests.support.planning import request_for

SAMPLED_PAGES = 4096

# Beside the machines of the approved plans, one of the largest there are.
LARGEST = {"2s8n-128c2t": (MachineShape(even_nodes(8, 16, threads_per_core=2, nodes_per_package=4)), 200, {})}


class PlannedRunner(ScriptedRunner):
    """A scripted runner whose counters grow with every look, as those of a working pool do."""

    def __init__(self, workers: Sequence[int], *, has_cache: bool = False) -> None:
        """`workers` has the number of workers of each slice."""
        super().__init__(context_tokens=4096, sequence_count=4)
        self._workers = workers
        self._has_cache = has_cache
        self._looks = 0

    def counters(self) -> NativeCounters:
        self._looks += 1
        looks = self._looks
        slices = tuple(
            SliceCounters(0.02 * looks, 0.004 * looks, 400 * looks, looks * 10**9, workers=count)
            for count in self._workers
        )
        gpu = GpuCounters("GPU0", 1, 0, 0, 0, 0, 0, 930 * looks, 70 * looks, 0, 0, 0, 64, 64, 0)
        return NativeCounters(slices, 48 * looks, 0, gpus=(gpu,) if self._has_cache else ())


@contextmanager
def serve_as(name: str, *, astray: float = 0.0, has_cache: bool = False) -> Iterator[Served]:
    """Serves as the named machine would; `astray` is the share of slice 0's pages on a node of another slice."""
    shape, arena_gib, request = {**CASES, **LARGEST}[name]
    topology = machine_topology(shape)
    plan = make_plan(topology, request_for(arena_gib, **request))
    workers = [plan.layout.worker_count_of(index) for index in range(len(plan.layout.slices))]
    runner = PlannedRunner(workers, has_cache=has_cache)
    slices, sizes = [], dict.fromkeys((node.node_id for node in topology.nodes), 0)
    for part in plan.arena_slices:
        pages = {node: SAMPLED_PAGES // len(part.node_ids) for node in part.node_ids}
        if part.slice_index == 0 and astray and pages:
            home = part.node_ids[0]
            other = next(node.node_id for node in topology.nodes if node.node_id not in part.node_ids)
            pages[other] = int(pages[home] * astray)
            pages[home] -= pages[other]
        for node, count in pages.items():
            sizes[node] += part.size_bytes * count // max(1, sum(pages.values()))
        slices.append(SlicePlacement(part.slice_index, part.node_ids, tuple(sorted(pages.items())), 0))
    found = tuple((node, size) for node, size in sizes.items() if size)
    runner.report = PlacementReport(tuple(slices), found, plan.page_bytes)
    with serve(runner) as served:
        served.service.planned(plan_summary(plan, plan_to_dict(plan), topology))
        served.service.sample_placement()
        yield served
