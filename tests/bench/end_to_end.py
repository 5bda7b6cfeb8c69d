"""End to end: decode, prefill and load of ours over llama.cpp's plain CPU backend, in one interleaved run."""

from __future__ import annotations

import contextlib
import gc
import mmap
import os
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from planner.sysfs import Tree
from stratad import _native as native
from stratad.machine.free_blocks import free_huge_page_bytes
from tests.bench.bars import Measured, measured
from tests.bench.synthetic_model import BenchShape, cached_model

PROMPT_TOKENS = 4
PREFILL_TOKENS = 512


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


def warm_memory(size_bytes: int) -> None:
    """Touches that much memory on huge pages and gives it back.

    In a virtual machine the host takes back what the guest has freed, and whoever touches it first pays for getting it
    again. So both arms start with memory that was in use a moment ago.
    """
    populate_write = 23  # MADV_POPULATE_WRITE, unknown to the mmap module
    with mmap.mmap(-1, size_bytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS) as memory:
        memory.madvise(mmap.MADV_HUGEPAGE)
        with contextlib.suppress(OSError):
            memory.madvise(populate_write)


def step_bytes(context: native.Context, position: int) -> float:
    """Weight bytes that the pool reads for one token: experts, and in own mode dense weights."""

    def total() -> int:
        counters = native.device_counters()
        return sum(counters.expert_bytes) + sum(counters.dense_bytes)

    before = total()
    batch = native.Batch()
    batch.add(1, position, 0, True)
    context.decode(batch)
    return float(total() - before)


def prefill_rate(context: native.Context) -> float:
    """Prompt tokens per second of one batch of PREFILL_TOKENS."""
    context.forget(0)
    batch = native.Batch()
    for position in range(PREFILL_TOKENS):
        batch.add(position * 31 % 512, position, 0, position == PREFILL_TOKENS - 1)
    start = time.perf_counter()
    context.decode(batch)
    return PREFILL_TOKENS / (time.perf_counter() - start)


@dataclass(slots=True)
class Arm:
    """One way to run the model, and its samples: one a round."""

    load: Callable[[], native.Model]
    memory_bytes: int
    load_seconds: list[float] = field(default_factory=list)
    decode_rates: list[float] = field(default_factory=list)
    prefill_rates: list[float] = field(default_factory=list)
    read_rates: list[float] = field(default_factory=list)
    bytes_per_token: float = 0.0

    def run(self, pool: native.Pool, cpu_ids: list[int], tokens: int) -> None:
        """A fresh start: load, decode, prefill, free. The next arm then gets the same memory: which pages of the
        host lie under the model moves decode by several per cent, and must not be one arm's luck.
        """
        warm_memory(self.memory_bytes)
        start = time.perf_counter()
        model = self.load()
        self.load_seconds.append(time.perf_counter() - start)
        context = native.Context(
            model,
            context_tokens=1024,
            batch_tokens=PREFILL_TOKENS,
            thread_count=len(cpu_ids),
            cpu_ids=cpu_ids,
        )
        decode_rate(context, 2)
        self.decode_rates.append(decode_rate(context, tokens))
        self.bytes_per_token = step_bytes(context, PROMPT_TOKENS + tokens)
        self.prefill_rates.append(prefill_rate(context))
        if model.arenas:
            self.read_rates.append(native.measure_read_rate(model.arenas[0], pool))
        del context, model
        gc.collect()


def arms_for(path: Path, pool: native.Pool) -> tuple[Arm, Arm]:
    """llama.cpp's own loader and CPU backend, and ours in own mode, with the best kernels this CPU has."""

    def load_ours() -> native.Model:
        place = native.PlaceOptions(
            allow_huge_pages=True,
            huge_page_bytes=free_huge_page_bytes(Tree(Path("/")), (0,)),
            lock=native.LockMode.NEVER,
        )
        return native.Model.load([str(path)], pool, place=place, scope=native.ArenaScope.WEIGHTS)

    size = path.stat().st_size
    return Arm(lambda: native.Model.load([str(path)], use_arena=False), size), Arm(load_ours, size)


def compare(weight_type: str, worker_count: int, rounds: int, tokens: int) -> list[Measured]:
    """Bars 5, 6, 11 and 12 for one model and number of workers."""
    path = cached_model(BenchShape(expert_type=weight_type))
    pool = make_pool(worker_count)
    cpu_ids = sorted(os.sched_getaffinity(0))[:worker_count]
    native.set_device_options(kernels=native.supported_kernels()[0])
    plain, ours = arms_for(path, pool)
    for round_index in range(rounds):
        for arm in (plain, ours) if round_index % 2 == 0 else (ours, plain):
            arm.run(pool, cpu_ids, tokens)
        print(
            f"  {path.name}, {worker_count} worker(s), round {round_index + 1}/{rounds}, ours and plain: "
            f"decode {ours.decode_rates[-1]:.1f}, {plain.decode_rates[-1]:.1f} tok/s; "
            f"prefill {ours.prefill_rates[-1]:.0f}, {plain.prefill_rates[-1]:.0f} tok/s; "
            f"load {ours.load_seconds[-1]:.2f}, {plain.load_seconds[-1]:.2f} s; "
            f"plain read {ours.read_rates[-1] / 1e9:.1f} GB/s",
            flush=True,
        )
    setting = f"{weight_type}, {worker_count} worker(s)"
    reads = ours.read_rates
    return [
        measured("5", setting, _ratios(ours.decode_rates, plain.decode_rates), reads),
        measured("6", setting, _ratios(ours.prefill_rates, plain.prefill_rates), reads),
        measured("11", setting, _ratios(plain.load_seconds, ours.load_seconds), reads),
        measured("12", setting, [_overhead(ours, index) for index in range(rounds)], reads),
    ]


def _overhead(arm: Arm, index: int) -> float:
    """The part of a step that reading its weights at the plain read's rate does not account for."""
    return 1.0 - arm.bytes_per_token / arm.read_rates[index] * arm.decode_rates[index]


def _ratios(ours: list[float], theirs: list[float]) -> list[float]:
    return [mine / other for mine, other in zip(ours, theirs, strict=True)]
