"""The real daemon with one thing changed that this machine cannot show: `python -m ... MODE --config FILE`.

astray      half of slice 0's pages are reported on a node that the plan does not name
astray-once the same for the first model opened, so that a second plan helps
unknown     the kernel tells no page's node
slow-load   loading reports progress until it is cancelled
tiny-memory the cgroup allows one MiB
no-room     beside the weights there is no memory for the slots
"""

from __future__ import annotations

import sys
import time
import weakref
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from planner import Topology
from stratad.daemon import loading, startup
from stratad.daemon.main import main
from stratad.errors import LoadCancelled
from stratad.native import runner as native_runner
from stratad.plan import slot_memory
from stratad.plan.facts import machine_facts
from stratad.runner.protocol import PlacementReport

_MODES: dict[str, Callable[[], None]] = {}


def _mode(name: str) -> Callable[[Callable[[], None]], Callable[[], None]]:
    def register(change: Callable[[], None]) -> Callable[[], None]:
        _MODES[name] = change
        return change

    return register


def _change_placement(change: Callable[[PlacementReport], PlacementReport], *, only_first: bool) -> None:
    true_placement = native_runner.NativeRunner.placement
    first_runner: list[weakref.ref[native_runner.NativeRunner]] = []

    def placement(self: native_runner.NativeRunner, pages_per_slice: int) -> PlacementReport:
        if not first_runner:
            first_runner.append(weakref.ref(self))
        report = true_placement(self, pages_per_slice)
        return change(report) if not only_first or first_runner[0]() is self else report

    native_runner.NativeRunner.placement = placement  # type: ignore[method-assign]


def _half_astray(report: PlacementReport) -> PlacementReport:
    return replace(
        report, slices=tuple(replace(part, pages_per_node=((0, 50), (9, 50))) for part in report.slices)
    )


@_mode("astray")
def _astray() -> None:
    _change_placement(_half_astray, only_first=False)


@_mode("astray-once")
def _astray_once() -> None:
    _change_placement(_half_astray, only_first=True)


@_mode("unknown")
def _unknown() -> None:
    def forget(report: PlacementReport) -> PlacementReport:
        parts = tuple(replace(part, pages_per_node=(), unknown_pages=100) for part in report.slices)
        return replace(report, slices=parts)

    _change_placement(forget, only_first=False)


@_mode("slow-load")
def _slow_load() -> None:
    def open_runner(
        plan: Any, model: Any, configuration: Any, progress: Callable[[str, float], bool], **gpu: Any
    ) -> Any:
        while progress("loading weights", 0.5):
            time.sleep(0.005)
        raise LoadCancelled

    loading.open_runner = open_runner  # type: ignore[attr-defined]
    loading._LOG_PAUSE_SECONDS = 0.02


@_mode("tiny-memory")
def _tiny_memory() -> None:
    def small_machine() -> Topology:
        topology = machine_facts()
        return replace(topology, limits=replace(topology.limits, memory_limit_bytes=1 << 20))

    startup.machine_facts = small_machine  # type: ignore[attr-defined]


@_mode("no-room")
def _no_room() -> None:
    slot_memory.available_bytes = lambda topology: 0  # type: ignore[assignment]


if __name__ == "__main__":
    _MODES[sys.argv.pop(1)]()
    main()
