"""Decode and prefill of every arm on one synthetic model, interleaved, and the rates from host memory to the device.

Prints one line of JSON. All arms are loaded at once and take turns, so that what the machine does meanwhile meets all.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from planner.sysfs import Tree
from stratad import _native as native
from stratad.config import GpuSection
from stratad.gpu.rates import HostToDeviceRate, slow_upload
from stratad.gpu.runtime import FoundGpu, measure_host_to_device, open_gpus, pin_arenas
from stratad.plan.facts import machine_facts
from tests.bench import synthetic_model
from tests.bench.synthetic_model import BenchShape

PROMPT_TOKENS = 4


@dataclass(frozen=True, slots=True)
class Amount:
    """How much is computed: tokens of an answer, tokens of a prompt, rounds of all arms."""

    decode_tokens: int
    prefill_tokens: int
    rounds: int


@dataclass(slots=True)
class Arm:
    """One way to serve the model, loaded; rates in tokens a second."""

    name: str
    model: native.Model
    context: native.Context
    gpu: native.GpuOffload | None = None
    is_cached: bool = False
    decode: list[float] = field(default_factory=list)
    prefill: list[float] = field(default_factory=list)

    def as_document(self) -> dict[str, object]:
        """Medians, every round, and the share of expert uses that VRAM answered."""
        cache = self.gpu.counters()[0][1].cache if self.gpu is not None and self.is_cached else None
        uses = 0 if cache is None else cache.hits + cache.misses
        return {
            "name": self.name,
            "decode": statistics.median(self.decode),
            "prefill": statistics.median(self.prefill),
            "decode_rounds": self.decode,
            "prefill_rounds": self.prefill,
            "is_cached": self.is_cached,
            "hit_ratio": None if cache is None else cache.hits / max(1, uses),
            "cache_bytes": None if cache is None else cache.device_bytes,
        }


def main() -> None:
    """Prints the report."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--module", type=Path, required=True)
    parser.add_argument("--folder", type=Path, required=True, help="for the model, where it is small")
    parser.add_argument(
        "--small", action="store_true", help="minutes are not to be spent on a software device"
    )
    arguments = parser.parse_args()
    topology = machine_facts()
    gpu = open_gpus(GpuSection(mode="on", backend_path=arguments.module), topology).gpus[0]
    shape = BenchShape(1, 256, 256, 16, 2, 4, 2, 64) if arguments.small else BenchShape()
    amount = Amount(4, 40, 2) if arguments.small else Amount(64, 512, 3)
    path = arguments.folder / "model.gguf"
    if arguments.small:
        synthetic_model.write_model(path, shape)
    else:
        path = synthetic_model.cached_model(shape)
    arms = opened_arms(path, gpu, amount)
    for _ in range(amount.rounds):
        for arm in arms:
            arm.prefill.append(prefill_rate(arm.context, amount.prefill_tokens))
            arm.decode.append(decode_rate(arm.context, amount.decode_tokens))
    rates = copy_rates(arms[-1].model, gpu)
    slow = slow_upload(rates, Tree(Path("/")), topology.iommu)
    document = {
        "model": f"{shape.layer_count} layers, {shape.expert_count} experts of {shape.expert_hidden}x"
        f"{shape.embedding}, "
        f"{shape.experts_used} used, {shape.expert_type}, {path.stat().st_size / 1e9:.1f} GB",
        "arms": [arm.as_document() for arm in arms],
        "copy_rates": [dataclasses.asdict(rate) for rate in rates],
        "iommu": topology.iommu,
        "hint": None if slow is None else f"{slow.message}: {slow.remedy}",
    }
    print(json.dumps(document))


def opened_arms(path: Path, gpu: FoundGpu, amount: Amount) -> list[Arm]:
    """Plain llama.cpp offload first; then ours on the CPUs alone, hybrid, with half of the experts cached, with all."""
    cpus = sorted(os.sched_getaffinity(0))
    # Siblings share a core, and one CPU is left to everything else.
    workers = max(1, len(cpus) // 2)
    context_tokens = max(1024, amount.prefill_tokens + 256)

    def context_of(model: native.Model, threads: int) -> native.Context:
        return native.Context(
            model,
            context_tokens=context_tokens,
            batch_tokens=amount.prefill_tokens,
            thread_count=threads,
            cpu_ids=cpus[:threads],
        )

    # --n-gpu-layers 99 --cpu-moe
    plain = native.Model.load([str(path)], use_arena=False, plain_gpu=gpu.name, gpu_layer_count=99)
    arms = [Arm("llama.cpp offload", plain, context_of(plain, workers))]
    pool = pool_of(cpus[:workers])
    alone = native.Model.load([str(path)], pool, scope=native.ArenaScope.WEIGHTS)
    arms.append(Arm("ours, CPUs alone", alone, context_of(alone, workers)))
    for name, share in (("ours, no cache", 0.0), ("ours, half cached", 0.5), ("ours, cached", 1.0)):
        offload = native.GpuOffload([gpu.name])
        model = native.Model.load([str(path)], pool, gpu=offload)
        context = context_of(model, workers)
        expert_bytes = sum(arena.size_bytes for arena in model.arenas)
        # A little more than the experts themselves: slots are rounded up.
        cache_bytes = int(share * 1.1 * expert_bytes) if share == 1.0 else int(share * expert_bytes)
        pin_arenas_for(model, gpu)
        offload.open_memory(reserve_bytes=0, cache_bytes=cache_bytes)
        arms.append(Arm(name, model, context, offload, share > 0))
    return arms


_PINNED = []


def pin_arenas_for(model: native.Model, gpu: FoundGpu) -> None:
    """Registers the model's arenas until the process ends."""
    _PINNED.append(pin_arenas(model.arenas, [gpu.backend]))


def pool_of(cpu_ids: Sequence[int]) -> native.Pool:
    """Workers pinned to these CPUs, one slice."""
    return native.Pool([native.SliceSeat()], [native.WorkerSeat(cpu_id) for cpu_id in cpu_ids], 50e-6)


def decode_rate(context: native.Context, tokens: int) -> float:
    """Tokens a second of single-token steps after a short prompt."""
    context.forget(0)
    batch = native.Batch()
    for position in range(PROMPT_TOKENS):
        batch.add(position * 31 % 512, position, 0, position == PROMPT_TOKENS - 1)
    context.decode(batch)
    context.logits(-1)
    start = time.perf_counter()
    for step in range(tokens):
        batch.clear()
        batch.add((step * 97 + 13) % 512, PROMPT_TOKENS + step, 0, True)
        context.decode(batch)
        # Reading the logits waits for the device.
        context.logits(-1)
    return tokens / (time.perf_counter() - start)


def prefill_rate(context: native.Context, tokens: int) -> float:
    """Tokens a second of one batch."""
    context.forget(0)
    batch = native.Batch()
    for position in range(tokens):
        batch.add(position * 31 % 512, position, 0, position == tokens - 1)
    start = time.perf_counter()
    context.decode(batch)
    context.logits(-1)
    return tokens / (time.perf_counter() - start)


def copy_rates(model: native.Model, gpu: FoundGpu) -> list[HostToDeviceRate]:
    """From each slice to the device, as things are, and unpinned as well where they are pinned."""
    arena = model.arenas[0]
    nodes: list[tuple[int, ...]] = [()] * arena.slice_count
    rates = list(measure_host_to_device(arena, nodes, [gpu]))
    if arena.are_pages_held:
        for pinned in _PINNED:
            for registration in pinned.registrations:
                registration.release()
        rates += measure_host_to_device(arena, nodes, [gpu])
    return rates


if __name__ == "__main__":
    main()
