"""kt-kernel's CPU experts, driven line by line: reads repetitions, answers with the GFLOPS reached.

Runs in a process of its own, because the extension brings threads that never rest. The wheel declares torch, which the
compiled extension does not use: it is loaded by its path and fed numpy arrays.

usage: kt_worker.py EXTENSION TOKENS THREADS
"""

from __future__ import annotations

import importlib.util
import sys
import time
from typing import Any

import numpy as np

EMBEDDING, HIDDEN, EXPERTS, USED = 2048, 768, 128, 8


def load_extension(path: str) -> Any:
    """The compiled module."""
    spec = importlib.util.spec_from_file_location("kt_kernel_ext", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def address(array: np.ndarray) -> int:
    """Where the array's data lie."""
    return int(array.ctypes.data)


def bfloat16(random: np.random.Generator, count: int) -> np.ndarray:
    """Random bit patterns; a few million values, repeated."""
    values = (random.standard_normal(1 << 22, dtype=np.float32) * np.float32(0.03)).view(np.uint32) >> 16
    return np.resize(values.astype(np.uint16), count)


def main() -> None:
    """Serves until standard input ends."""
    tokens, threads = int(sys.argv[2]), int(sys.argv[3])
    kt = load_extension(sys.argv[1])
    random = np.random.default_rng(0)
    settings = kt.WorkerPoolConfig()
    settings.subpool_count, settings.subpool_numa_map, settings.subpool_thread_count = 1, [0], [threads]
    pool = kt.CPUInfer(settings)
    config = kt.moe.MOEConfig(EXPERTS, USED, EMBEDDING, HIDDEN, 0)
    config.max_len = max(1024, tokens)
    weights = [bfloat16(random, EXPERTS * EMBEDDING * HIDDEN) for _ in range(3)]
    config.gate_proj, config.up_proj, config.down_proj = map(address, weights)
    config.pool = pool.backend_
    layer = kt.moe.AMXInt8_MOE(config)
    identity = np.arange(EXPERTS, dtype=np.int64)
    pool.submit(layer.load_weights_task(address(identity)))
    pool.sync()
    ids = np.stack([random.permutation(EXPERTS)[:USED] for _ in range(tokens)]).astype(np.int64)
    router = np.full((tokens, USED), 1.0 / USED, dtype=np.float32)
    values = bfloat16(random, tokens * EMBEDDING).reshape(tokens, EMBEDDING)
    result, size = np.zeros_like(values), np.array([tokens], dtype=np.int32)
    operations = 2.0 * 3 * EMBEDDING * HIDDEN * USED * tokens
    for line in sys.stdin:
        start = time.perf_counter()
        for _ in range(int(line)):
            task = layer.forward_task(
                address(size), USED, address(ids), address(router), address(values), address(result), False
            )
            pool.submit(task)
            pool.sync()
        print(f"{operations * int(line) / (time.perf_counter() - start) / 1e9:.2f}", flush=True)


if __name__ == "__main__":
    main()
