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
from pathlib import Path

from stratad import _native as native
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


def compare_decode(path: Path, worker_count: int, rounds: int, tokens: int) -> bool:
    """Prints one line per worker count; False when the machine was too busy to judge."""
    pool = make_pool(worker_count)
    cpu_ids = sorted(os.sched_getaffinity(0))[:worker_count]
    models = {
        "plain": native.Model.load([str(path)], use_arena=False),
        "pool": native.Model.load(
            [str(path)], pool, place=native.PlaceOptions(huge_pages=True, lock=native.LockMode.NEVER)
        ),
    }
    contexts = {
        name: native.Context(model, context_tokens=512, thread_count=worker_count, cpu_ids=cpu_ids)
        for name, model in models.items()
    }
    for context in contexts.values():
        decode_rate(context, 2)
    ceilings, ratios, rates = [], [], {"plain": [], "pool": []}
    for round_index in range(rounds):
        ceilings.append(native.measure_read_rate(models["pool"].arenas[0], pool))
        order = ("plain", "pool") if round_index % 2 == 0 else ("pool", "plain")
        sample = {name: decode_rate(contexts[name], tokens) for name in order}
        ratios.append(sample["pool"] / sample["plain"])
        for name, rate in sample.items():
            rates[name].append(rate)
        print(
            f"  round {round_index + 1}/{rounds}: pool {sample['pool']:.1f}, plain {sample['plain']:.1f} tok/s, "
            f"read {ceilings[-1] / 1e9:.1f} GB/s",
            flush=True,
        )
    return report(f"decode, {worker_count} worker(s)", ratios, ceilings, rates)


def report(what: str, ratios: list[float], ceilings: list[float], rates: dict[str, list[float]]) -> bool:
    """The ratio line, and whether it may be judged."""
    variation = max(ceilings) / min(ceilings)
    is_quiet = variation <= CEILING_VARIATION_LIMIT
    medians = ", ".join(f"{name} {statistics.median(values):.1f} tok/s" for name, values in rates.items())
    print(
        f"{what}: pool over plain ggml {statistics.median(ratios):.2f} "
        f"[{min(ratios):.2f}-{max(ratios):.2f}], n={len(ratios)} ({medians}); read rate varied {variation:.2f}x"
        + ("" if is_quiet else ": too busy, NOT JUDGED")
    )
    return is_quiet


def seconds_of(action: Callable[[], native.Model]) -> float:
    """Wall time of a load; the model is dropped at once."""
    start = time.perf_counter()
    model = action()
    elapsed = time.perf_counter() - start
    del model
    gc.collect()
    return elapsed


def compare_load(path: Path, worker_count: int, rounds: int) -> None:
    """Load from the page cache: all workers placing and filling the arena, against llama.cpp's one thread."""
    pool = make_pool(worker_count)
    place = native.PlaceOptions(huge_pages=True, lock=native.LockMode.NEVER)
    loads = {
        "plain": lambda: native.Model.load([str(path)], use_arena=False),
        "pool": lambda: native.Model.load([str(path)], pool, place=place),
    }
    seconds_of(loads["plain"])  # warms the page cache
    ratios = []
    for round_index in range(rounds):
        order = ("plain", "pool") if round_index % 2 == 0 else ("pool", "plain")
        sample = {name: seconds_of(loads[name]) for name in order}
        ratios.append(sample["plain"] / sample["pool"])
    print(
        f"load, {worker_count} worker(s): speed over llama.cpp's loader {statistics.median(ratios):.2f} "
        f"[{min(ratios):.2f}-{max(ratios):.2f}], n={rounds}, {path.stat().st_size / 1e9:.2f} GB from the page cache"
    )


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
        is_quiet &= compare_decode(path, worker_count, options.rounds, options.tokens)
        gc.collect()
    compare_load(path, all_cpus, max(3, options.rounds // 2))
    return 0 if is_quiet else 1


if __name__ == "__main__":
    sys.exit(main())
