"""`make bench-peers`: ours against plain llama.cpp, end to end, and against kt-kernel, experts of a prompt.

llama.cpp comes from our own pinned source, in the same process. kt-kernel is fetched from PyPI into the user's cache
where a wheel fits this Python; where none does, its line is left out and the run says so.

usage: python -m tests.bench.peers [--rounds N] [--type Q4_K_M ...]
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from tests.bench import __main__ as bench
from tests.bench.bars import Measured, measured, table
from tests.bench.native_programs import kernels_here
from tests.support.native_build import build

KT_VERSION = "0.7.2"
# Best first, by what /proc/cpuinfo must show.
KT_VARIANTS = (
    ("amx", "amx_int8"),
    ("avx512_bf16", "avx512_bf16"),
    ("avx512_vnni", "avx512_vnni"),
    ("avx2", "avx2"),
)
PROMPT_TOKENS = 512


def kt_extension() -> Path | None:
    """kt-kernel's compiled module for this CPU, fetched once; None where it cannot be had."""
    cache = (
        Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "stratad" / "bench" / "kt-kernel"
    )
    if not list(cache.glob("kt_kernel/*.so")):
        cache.mkdir(parents=True, exist_ok=True)
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", str(cache)]
        if subprocess.run([*command, f"kt-kernel=={KT_VERSION}"], check=False).returncode != 0:
            return None
        (wheel,) = cache.glob("kt_kernel-*.whl")
        with zipfile.ZipFile(wheel) as archive:
            archive.extractall(
                cache,
                [name for name in archive.namelist() if name.startswith(("kt_kernel/", "kt_kernel.libs/"))],
            )
        wheel.unlink()
    flags = Path("/proc/cpuinfo").read_text().split()
    for variant, flag in KT_VARIANTS:
        found = list(cache.glob(f"kt_kernel/_kt_kernel_ext_{variant}.*.so"))
        if flag in flags and found:
            return found[0]
    return None


@contextmanager
def served(command: list[str]) -> Iterator[subprocess.Popen[str]]:
    """A program that answers a line with a line; ended afterwards."""
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    ) as process:
        try:
            yield process
        finally:
            process.kill()


def ask(process: subprocess.Popen[str], repetitions: int) -> float:
    """GFLOPS over so many repetitions; other lines that the program prints are skipped."""
    reader, writer = process.stdout, process.stdin
    assert reader is not None and writer is not None
    writer.write(f"{repetitions}\n")
    writer.flush()
    return _next_number(reader)


def _next_number(reader: IO[str]) -> float:
    for line in reader:
        try:
            return float(line)
        except ValueError:
            continue
    raise SystemExit("a peer ended without an answer")


def moe_block(rounds: int) -> list[Measured]:
    """Bar 7: a layer's experts over a prompt, one thread each, in turns."""
    extension = kt_extension()
    if extension is None:
        print(f"kt-kernel {KT_VERSION} cannot be had for this Python or CPU: its comparison is left out")
        return []
    results = []
    worker = Path(__file__).with_name("kt_worker.py")
    with served([sys.executable, str(worker), str(extension), str(PROMPT_TOKENS), "1"]) as theirs:
        for weight_type in ("q8_0", "q4_K"):
            program = str(build("bench") / "bench" / "moe_bench")
            with served([program, weight_type, str(PROMPT_TOKENS), "1"]) as ours:
                ratios = []
                for _ in range(rounds + 1):
                    mine, other = ask(ours, 2), ask(theirs, 2)
                    print(f"  {weight_type}: ours {mine:.0f}, kt-kernel {other:.0f} GFLOPS", flush=True)
                    ratios.append(mine / other)
            variant = extension.name.removeprefix("_kt_kernel_ext_").split(".")[0]
            # The first round brought both into their caches.
            results.append(measured("7", f"{weight_type} over int8, its {variant} variant", ratios[1:]))
    return results


def main() -> int:
    """Exit status 0; a comparison by hand fails nothing."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--type", nargs="+", default=["Q4_K_M", "Q8_0"])
    options = parser.parse_args()
    bench.raise_priority()
    print(f"row kernels here: {', '.join(kernels_here())}")
    end_to_end = bench.parser().parse_args(
        ["--only", "decode", "--rounds", str(options.rounds), "--type", *options.type]
    )
    results = [result for measure in bench.measures(end_to_end) for result in measure()]
    print(table([*results, *moe_block(options.rounds)]))
    return 0


if __name__ == "__main__":
    sys.exit(main())
