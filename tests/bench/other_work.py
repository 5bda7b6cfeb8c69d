"""How much of the CPUs' time went to others while something was measured: other processes, or the host's guests."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from stratad.machine.load import CpuTimes, cpu_times
from tests.bench.bars import Measured


@dataclass(frozen=True, slots=True)
class Usage:
    """All CPUs' ticks since the boot, and how many of them this process and its ended children used."""

    cpus: CpuTimes
    own_ticks: float


def usage_now() -> Usage | None:
    """None where the kernel does not say."""
    try:
        cpus = cpu_times(Path("/proc/stat").read_text(encoding="ascii"))
    except OSError:
        return None
    times = os.times()
    own_seconds = times.user + times.system + times.children_user + times.children_system
    return None if cpus is None else Usage(cpus, own_seconds * os.sysconf("SC_CLK_TCK"))


def share_of_others(before: Usage | None, after: Usage | None) -> float:
    """Give the share of all CPUs' time, 0 to 1, that others used in between; 0 where nothing is known."""
    if before is None or after is None or after.cpus.total_ticks <= before.cpus.total_ticks:
        return 0.0
    busy_ticks = after.cpus.busy_ticks - before.cpus.busy_ticks
    others_ticks = busy_ticks - (after.own_ticks - before.own_ticks)
    return max(0.0, others_ticks) / (after.cpus.total_ticks - before.cpus.total_ticks)


def watched(measure: Callable[[], list[Measured]]) -> list[Measured]:
    """The measure's results, each with what others did meanwhile."""
    before = usage_now()
    results = measure()
    share = share_of_others(before, usage_now())
    return [replace(result, others_share=share) for result in results]
