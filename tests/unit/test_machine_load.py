"""What else the machine does, from /proc: read, judged with numbers, and both sides of each limit."""

from __future__ import annotations

import pytest

from stratad.machine.load import (
    MachineBusyError,
    MachineLoad,
    cpu_times,
    look_at_load,
    require_quiet,
    some_average,
)
from tests.support.machines import MemoryTree


class ChangingStat(MemoryTree):
    """/proc/stat as it was before and after the pause."""

    def __init__(self, before: str, after: str, **pressure: str) -> None:
        super().__init__({f"/proc/pressure/{name}": text for name, text in pressure.items()})
        self._stat = [before, after]

    def text(self, path: str) -> str | None:
        return self._stat.pop(0) if path == "/proc/stat" else super().text(path)


def stat(busy: int, idle: int, steal: int = 0) -> str:
    return f"cpu  {busy} 0 0 {idle} 0 0 0 {steal} 0 0\ncpu0 1 2 3 4\n"


def test_the_busy_share_is_what_passed_during_the_look_and_counts_stolen_time() -> None:
    waits: list[float] = []
    load = look_at_load(ChangingStat(stat(1000, 500), stat(1010, 585, steal=5)), waits.append)
    assert load.busy_share == pytest.approx(0.15)
    assert len(waits) == 1


def test_idle_and_waiting_for_a_disk_are_not_busy() -> None:
    times = cpu_times("cpu  10 1 2 100 50 0 3 4 9 9\n")
    assert times is not None
    assert (times.total_ticks, times.busy_ticks) == (170, 20)


@pytest.mark.parametrize("text", ["", "intr 5", "cpu 1 2", "cpu a b c d e f"])
def test_what_is_no_stat_file_is_unknown(text: str) -> None:
    assert cpu_times(text) is None


def test_pressure_is_the_line_some() -> None:
    text = "some avg10=12.50 avg60=1.00 avg300=0.00 total=5\nfull avg10=99.00 avg60=0 avg300=0 total=0"
    assert some_average(text) == 12.5
    assert some_average(None) is None
    assert some_average("full avg10=3.00") is None


@pytest.mark.parametrize(
    ("load", "words"),
    [
        (MachineLoad(0.11, None, None), "CPUs were busy 11 %"),
        (MachineLoad(0.0, 10.5, None), "waited for a CPU"),
        (MachineLoad(0.0, 0.0, 1.2), "waited for memory"),
    ],
)
def test_each_limit_is_refused_with_its_number(load: MachineLoad, words: str) -> None:
    with pytest.raises(MachineBusyError) as caught:
        require_quiet(load, "stratactl bench")
    assert words in caught.value.because
    assert "limit" in caught.value.because
    assert "stratactl bench --force" in caught.value.remedy


@pytest.mark.parametrize("load", [MachineLoad(0.10, 10.0, 1.0), MachineLoad(None, None, None)])
def test_at_the_limit_and_unknown_are_quiet_enough(load: MachineLoad) -> None:
    require_quiet(load, "stratactl bench")
