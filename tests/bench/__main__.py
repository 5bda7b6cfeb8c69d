"""`make bench`: decode and load of our pool over llama.cpp's plain CPU backend, as ratios of one interleaved run.

Absolute times mean nothing on a shared machine; what is printed and worth quoting is the median of per-round ratios.
The plain read rate of the same workers is measured in every round: when it varies by more than 1.5x, the machine is
too busy and nothing is judged.

usage: python -m tests.bench [--rounds N] [--tokens N] [--workers N ...] [--type Q4_K]
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import os
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from planner.sysfs import Tree
from stratad import _native as native
from stratad.free_blocks import free_huge_page_bytes
from tests.bench.synthetic_model import BenchShape, cached_model

CEILING_VARIATION_LIMIT = 1.5
PROMPT_TOKENS = 4


def raise_priority() -> bool:
    """Put this run into a scheduler group of its own at the highest priority, where we may.

    Between groups plain nice does nothing: without this, a busy machine halves the read rate itself.
    """
    with contextlib.suppress(OSError):
        os.setsid()
    try:
        Path("/proc/self/autogroup").write_text("-20")
    except OSError:
        return False
    return True


def make_pool(worker_count: int) -> native.Pool:
    """Workers pinned to the first CPUs this process may use, one slice."""
    cpu_ids = sorted(os.sched_getaffinity(0))[:worker_count]
    return native.Pool([native.SliceSeat()], [native.WorkerSeat(cpu_id) for cpu_id in cpu_ids], 50e-6)


def decode_rate(context: native.Context, tokens: int) -> float:
    """Tokens per second of greedy single-token steps after a short prompt."""
    context.forget(0)
    batch = native.Batch()
    for position in range(PROMPT_TOKENS):
        batch.add(position * 31 % 512, position, 0, position == PROMPT_TOKENS - 1)
    context.decode(batch)
    start = time.perf_counter()
    for step in range(tokens):
        batch.clear()
        batch.add((step * 97 + 13) % 512, PROMPT_TOKENS + step, 0, True)
        context.decode(batch)
    return tokens / (time.perf_counter() - start)


@dataclass(slots=True)
class Arm:
    """One way to run the model, and its samples: one a round."""

    name: str
    load: Callable[[], native.Model]
    load_seconds: list[float] = field(default_factory=list)
    token_rates: list[float] = field(default_factory=list)
    read_rates: list[float] = field(default_factory=list)


def arms_for(path: Path, pool: native.Pool) -> tuple[Arm, Arm]:
    """llama.cpp's own loader and CPU backend, and ours."""
    place = native.PlaceOptions(
        allow_huge_pages=True,
        huge_page_bytes=free_huge_page_bytes(Tree(Path("/")), (0,)),
        lock=native.LockMode.NEVER,
    )
    return (
        Arm("plain", lambda: native.Model.load([str(path)], use_arena=False)),
        Arm("pool", lambda: native.Model.load([str(path)], pool, place=place)),
    )


def run_arm(arm: Arm, pool: native.Pool, cpu_ids: list[int], tokens: int) -> None:
    """A fresh start: load, decode, free. The next arm then gets the same memory: which pages of the host lie under
    the model moves decode by several per cent, and must not be one arm's luck.
    """
    start = time.perf_counter()
    model = arm.load()
    arm.load_seconds.append(time.perf_counter() - start)
    context = native.Context(model, context_tokens=512, thread_count=len(cpu_ids), cpu_ids=cpu_ids)
    decode_rate(context, 2)
    arm.token_rates.append(decode_rate(context, tokens))
    if model.arenas:
        arm.read_rates.append(native.measure_read_rate(model.arenas[0], pool))
    del context, model
    gc.collect()


def compare(path: Path, worker_count: int, rounds: int, tokens: int) -> bool:
    """Prints the ratios for one number of workers; False when the machine was too busy to judge."""
    pool = make_pool(worker_count)
    cpu_ids = sorted(os.sched_getaffinity(0))[:worker_count]
    plain, ours = arms_for(path, pool)
    for round_index in range(rounds):
        for arm in (plain, ours) if round_index % 2 == 0 else (ours, plain):
            run_arm(arm, pool, cpu_ids, tokens)
        print(
            f"  round {round_index + 1}/{rounds}: decode pool {ours.token_rates[-1]:.1f}, plain "
            f"{plain.token_rates[-1]:.1f} tok/s; load pool {ours.load_seconds[-1]:.2f}, plain "
            f"{plain.load_seconds[-1]:.2f} s; plain read {ours.read_rates[-1] / 1e9:.1f} GB/s",
            flush=True,
        )
    variation = max(ours.read_rates) / min(ours.read_rates)
    is_quiet = variation <= CEILING_VARIATION_LIMIT
    verdict = "" if is_quiet else ": too busy, NOT JUDGED"
    decode = [mine / theirs for mine, theirs in zip(ours.token_rates, plain.token_rates, strict=True)]
    load = [theirs / mine for mine, theirs in zip(ours.load_seconds, plain.load_seconds, strict=True)]
    print(f"{worker_count} worker(s), pool over plain ggml; the read rate varied {variation:.2f}x{verdict}")
    print(f"  decode {summary(decode)}")
    print(f"  load   {summary(load)}  (from the page cache)")
    return is_quiet


def summary(ratios: list[float]) -> str:
    """Median, range and count of per-round ratios."""
    return f"{statistics.median(ratios):.2f} [{min(ratios):.2f}-{max(ratios):.2f}], n={len(ratios)}"


def main() -> int:
    """Exit status 1 when the machine was too busy to judge."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--tokens", type=int, default=24, help="decode steps per arm and round")
    parser.add_argument("--workers", type=int, nargs="+", help="default: 1 and all CPUs")
    parser.add_argument("--type", default="Q4_K", help="quantisation of the synthetic model")
    options = parser.parse_args()
    all_cpus = len(os.sched_getaffinity(0))
    path = cached_model(BenchShape(expert_type=options.type))
    priority = "raised" if raise_priority() else "ordinary (a busy machine will show)"
    print(f"model {path.name}, {path.stat().st_size / 1e9:.2f} GB; scheduler priority {priority}", flush=True)
    is_quiet = True
    for worker_count in options.workers or sorted({1, all_cpus}):
        is_quiet &= compare(path, worker_count, options.rounds, options.tokens)
    return 0 if is_quiet else 1


if __name__ == "__main__":
    sys.exit(main())
