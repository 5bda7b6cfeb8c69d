"""What else this machine is doing: measured before a benchmark, so that nobody believes numbers of a busy machine."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

from planner.sysfs import MachineFiles
from stratad.errors import StratadError

# An idle machine shows one to three per cent; a tenth is one busy core in ten, and moves a rate by as much.
BUSY_SHARE_LIMIT = 0.10
# Per cent of the last ten seconds in which somebody waited for a CPU, or for memory (PSI, "some avg10").
CPU_PRESSURE_LIMIT = 10.0
MEMORY_PRESSURE_LIMIT = 1.0
LOOK_SECONDS = 1.0

_AVERAGE_10 = re.compile(r"^some .*?avg10=([0-9.]+)", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class CpuTimes:
    """Ticks of all CPUs since the boot: all of them, and those in which a CPU did something or its host did."""

    total_ticks: int
    busy_ticks: int


@dataclass(frozen=True, slots=True)
class MachineLoad:
    """How busy the machine was for a moment; None where the kernel does not say.

    `busy_share` is of all CPUs' time, 0 to 1; pressures are per cent of the last ten seconds.
    """

    busy_share: float | None
    cpu_pressure: float | None
    memory_pressure: float | None

    @property
    def objections(self) -> tuple[str, ...]:
        """Why measuring now would measure something else, with the numbers; () on a quiet machine."""
        found = (
            _above("CPUs were busy", 100 * (self.busy_share or 0.0), 100 * BUSY_SHARE_LIMIT),
            _above("processes waited for a CPU", self.cpu_pressure or 0.0, CPU_PRESSURE_LIMIT),
            _above("processes waited for memory", self.memory_pressure or 0.0, MEMORY_PRESSURE_LIMIT),
        )
        return tuple(text for text in found if text is not None)

    def as_document(self) -> dict[str, float | None]:
        """The load as JSON values."""
        return {
            "busy_share": self.busy_share,
            "cpu_pressure_percent": self.cpu_pressure,
            "memory_pressure_percent": self.memory_pressure,
        }


class MachineBusyError(StratadError):
    """The machine does something else, so that nothing measured on it would be worth keeping."""

    default_summary = "the machine is too busy to measure"


def look_at_load(files: MachineFiles, pause: Callable[[float], None]) -> MachineLoad:
    """Watches the machine for LOOK_SECONDS.

    Args:
        files: Where /proc is read.
        pause: Waits so many seconds: `time.sleep`, or a test's.
    """
    before = cpu_times(files.text("/proc/stat") or "")
    pause(LOOK_SECONDS)
    after = cpu_times(files.text("/proc/stat") or "")
    return MachineLoad(
        busy_share=_busy_share(before, after),
        cpu_pressure=some_average(files.text("/proc/pressure/cpu")),
        memory_pressure=some_average(files.text("/proc/pressure/memory")),
    )


def require_quiet(load: MachineLoad, command: str) -> None:
    """Raises MachineBusyError, with the numbers, unless the machine is quiet; `command` is what to try again."""
    if load.objections:
        raise MachineBusyError(
            tried="looking whether the machine is idle enough to measure it",
            because="; ".join(load.objections),
            remedy=f"stop what runs beside it, or run `{command} --force` and believe the numbers less",
        )


def cpu_times(text: str) -> CpuTimes | None:
    """The first line of /proc/stat; None when it is not one. Source: proc(5)."""
    words = text.splitlines()[0].split() if text else []
    if len(words) < 5 or words[0] != "cpu" or not all(word.isdigit() for word in words[1:]):
        return None
    # user nice system idle iowait irq softirq steal; guest time is counted in user already.
    ticks = [int(word) for word in words[1:9]]
    idle_ticks = ticks[3] + (ticks[4] if len(ticks) > 4 else 0)
    return CpuTimes(sum(ticks), sum(ticks) - idle_ticks)


def some_average(text: str | None) -> float | None:
    """`avg10` of the line "some" of a pressure file; None without one. Source: Documentation/accounting/psi.rst."""
    match = _AVERAGE_10.search(text or "")
    return float(match[1]) if match else None


def _busy_share(before: CpuTimes | None, after: CpuTimes | None) -> float | None:
    if before is None or after is None or after.total_ticks <= before.total_ticks:
        return None
    busy_ticks = max(0, after.busy_ticks - before.busy_ticks)
    return busy_ticks / (after.total_ticks - before.total_ticks)


def _above(what: str, percent: float, limit: float) -> str | None:
    return f"{what} {percent:.0f} % of the time (limit {limit:g} %)" if percent > limit else None
