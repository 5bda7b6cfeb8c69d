"""Measures taken by the native benchmark programs: row kernels, pool and arena."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from planner.sysfs import Tree
from stratad import _native as native
from stratad.machine.free_blocks import free_huge_page_bytes
from tests.bench.bars import BAR_OF, Bar, Measured, measured
from tests.support.native_build import build

# By bar: the weight types that count, best known first.
LEADING_TYPES = ("Q8_0", "Q6_K", "Q4_K")
FURTHER_TYPES = ("Q5_K", "IQ4_XS", "Q4_0", "MXFP4")


@dataclass(frozen=True, slots=True)
class KernelRow:
    """One line of kernel_bench: a kernel's bytes/s over the plain read beside it."""

    weight_type: str
    shape: str
    workers: int
    tokens: int
    kernel: str
    ratio: float
    lowest: float
    highest: float
    read_variation: float

    @classmethod
    def parse(cls, line: str) -> KernelRow:
        """From "type rows columns workers tokens kernel", three ratios and four rates in GB/s.

        The ratios are median, lowest and highest; the rates are the kernel's median and the plain read's median,
        lowest and highest.
        """
        words = line.split()
        median, lowest, highest = (float(word) for word in words[6:9])
        slowest, fastest = float(words[11]), float(words[12])
        name, shape = words[0].upper(), f"{words[1]}x{words[2]}"
        return cls(
            name, shape, int(words[3]), int(words[4]), words[5], median, lowest, highest, fastest / slowest
        )

    def under(self, bar: Bar, single: float = 1.0) -> Measured:
        """This row as a bar's measure, its ratios over `single`."""
        ratios = (self.ratio / single, self.lowest / single, self.highest / single)
        return Measured(bar, f"{self.weight_type} {self.shape}", *ratios, self.read_variation)


def run_program(name: str, *arguments: str) -> Iterator[str]:
    """Lines of a benchmark program, as they come."""
    program = build("bench") / "bench" / name
    with subprocess.Popen([str(program), *arguments], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        for line in process.stdout:
            print(f"  {line.rstrip()}", flush=True)
            yield line
    if process.returncode != 0:
        raise SystemExit(f"{name} ended with status {process.returncode}")


def kernel_rows(types: Sequence[str], rounds: int, *options: str) -> list[KernelRow]:
    """Every kernel that this CPU runs, for each type, with 1 and 2 workers, 1 and 4 tokens; see kernel_bench.cpp."""
    arguments = [word for name in types for word in ("--type", name)]
    lines = run_program("kernel_bench", *arguments, "--rounds", str(rounds), *options)
    return [KernelRow.parse(line) for line in lines]


def kernel_results(rows: Sequence[KernelRow]) -> list[Measured]:
    """The rows that bars 1 to 4 and the one for four tokens ask for."""
    results = []
    for row in rows:
        key = _bar_of(row)
        if key is not None:
            results.append(row.under(BAR_OF[key]))
    singles = {(row.weight_type, row.shape): row for row in rows if _bar_of(row) in ("1", "2")}
    for row in rows:
        single = singles.get((row.weight_type, row.shape))
        if single and (row.workers, row.tokens, row.kernel) == (2, 1, single.kernel):
            # Both are over a plain read of as many workers, so what is left is the kernel's own scaling.
            results.append(row.under(BAR_OF["4"], single.ratio))
    return results


def _bar_of(row: KernelRow) -> str | None:
    if row.workers != 1:
        return None
    if row.kernel == "avx512" and row.tokens == 4:
        return "batch" if row.weight_type in LEADING_TYPES else None
    if row.tokens != 1:
        return None
    if row.kernel == "avx2":
        return "3" if row.weight_type in LEADING_TYPES else None
    if row.kernel == "avx512":
        return "1" if row.weight_type in LEADING_TYPES else "2" if row.weight_type in FURTHER_TYPES else None
    return None


def pool_results(workers: int, rounds: int) -> list[Measured]:
    """Bars 8 and 9."""
    ratios: dict[str, list[float]] = {}
    openmp: dict[str, list[float]] = {}
    for line in run_program("pool_bench", str(workers), str(rounds)):
        name, ratio, _, nanoseconds = line.split()
        ratios.setdefault(name, []).append(float(ratio))
        openmp.setdefault(name, []).append(float(nanoseconds))
    setting = f"{workers} workers"
    return [
        measured(key, setting, ratios[name], openmp[name])
        for key, name in (("8", "dispatch"), ("9", "barrier"))
    ]


def fill_results(path: Path, workers: int, rounds: int) -> list[Measured]:
    """Bar 10."""
    huge_bytes = str(free_huge_page_bytes(Tree(Path("/")), (0,)))
    rows = [
        line.split() for line in run_program("fill_bench", str(path), str(workers), str(rounds), huge_bytes)
    ]
    ratios, fresh_rates = ([float(row[column]) for row in rows] for column in (1, 3))
    return [measured("10", f"{workers} worker(s)", ratios, fresh_rates)]


def kernels_here() -> list[str]:
    """What this CPU can run, best first."""
    return native.supported_kernels()


def cpu_count() -> int:
    """CPUs that this process may use."""
    return len(os.sched_getaffinity(0))
