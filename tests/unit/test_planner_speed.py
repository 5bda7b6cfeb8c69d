"""How long a plan takes, as ratios of CPU time measured side by side in one run: no clock, no fixed number.

Each ratio is the best of several rounds, because a busy machine only ever makes one side slower.
"""

from __future__ import annotations

import os
import resource
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.gguf_bytes import TensorShape, gguf_bytes, moe_entries
from tests.support.machines import GpuShape, MachineShape, even_nodes, machine_files, write_tree

REPOSITORY = Path(__file__).resolve().parents[2]
ROUNDS = 5
ATTEMPTS = 4


def child_cpu_seconds(*arguments: str) -> float:
    """Give the CPU time of one Python process, its own and the kernel's for it."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    environment = {"PATH": os.environ["PATH"], "PYTHONPATH": str(REPOSITORY)}
    subprocess.run(
        [sys.executable, *arguments], stdout=subprocess.DEVNULL, check=True, env=environment, timeout=120
    )
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def best_ratio(slow: Callable[[], float], fast: Callable[[], float], limit: float) -> float:
    """Give the least slow over the least fast, in alternating rounds; more rounds while it is above the limit."""
    slow_seconds: list[float] = []
    fast_seconds: list[float] = []
    for _ in range(ATTEMPTS):
        for _ in range(ROUNDS):
            slow_seconds.append(slow())
            fast_seconds.append(fast())
        if min(slow_seconds) <= limit * min(fast_seconds):
            break
    return min(slow_seconds) / min(fast_seconds)


def plan_arguments(*options: str) -> tuple[str, ...]:
    return ("-m", "stratad.cli.main", "plan", *options)


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """A model of 48 layers with 512 experts each, small enough to write."""
    tensors = [TensorShape("token_embd.weight", (64, 3))]
    for layer in range(48):
        tensors.append(TensorShape(f"blk.{layer}.attn_q.weight", (64, 64), "Q8_0"))
        tensors += [
            TensorShape(f"blk.{layer}.ffn_{name}_exps.weight", (32, 8, 512), "Q8_0")
            for name in ("gate", "up", "down")
        ]
    path = tmp_path / "model.gguf"
    path.write_bytes(gguf_bytes(moe_entries(block_count=48, expert_count=512, expert_used_count=10), tensors))
    return path


def test_a_plan_on_this_machine_takes_at_most_ten_times_a_bare_interpreter(model: Path) -> None:
    ratio = best_ratio(
        lambda: child_cpu_seconds(*plan_arguments("--model", str(model))),
        lambda: child_cpu_seconds("-c", "pass"),
        10,
    )
    assert ratio <= 10


def test_sixteen_nodes_with_1024_cpus_take_less_than_five_times_two_nodes(tmp_path: Path) -> None:
    def planning(name: str, node_count: int, cores_per_node: int) -> Callable[[], float]:
        nodes = even_nodes(node_count, cores_per_node, threads_per_core=2, total_gib=256)
        shape = MachineShape(nodes, (GpuShape("0000:3b:00.0", 0),))
        root = write_tree(tmp_path / name, machine_files(shape))
        arguments = plan_arguments("--root", str(root), "--arena-bytes", "100GiB")
        return lambda: child_cpu_seconds(*arguments)

    assert best_ratio(planning("big", 16, 32), planning("small", 2, 32), 5) < 5
