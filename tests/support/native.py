"""Short ways to pools, models and logits for tests of the native core."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from stratad import _native as native


def make_pool(worker_count: int = 2, slice_count: int = 1, *, spin_seconds: float = 20e-6) -> native.Pool:
    """A pool in test mode: unpinned workers, slices without nodes; works on any machine."""
    slices = [native.SliceSeat() for _ in range(slice_count)]
    workers = [native.WorkerSeat(None, worker % slice_count) for worker in range(worker_count)]
    return native.Pool(slices, workers, spin_seconds)


def load_plain(path: Path) -> native.Model:
    """The model in llama.cpp's own buffers, computed by ggml's CPU backend alone: the reference."""
    return native.Model.load([str(path)], use_arena=False)


def load_placed(path: Path, pool: native.Pool) -> native.Model:
    """The model with its experts in the arena, computed by `pool`."""
    return native.Model.load([str(path)], pool)


def load_owned(path: Path, pool: native.Pool) -> native.Model:
    """The model with all its large weights in the arena, computed by `pool` in own mode."""
    return native.Model.load([str(path)], pool, scope=native.ArenaScope.WEIGHTS)


def all_logits(
    model: native.Model, prompt: Sequence[int], decoded: Sequence[int], *, thread_count: int = 1
) -> np.ndarray:
    """Logits of every prompt position and of each decoded token, (position, vocabulary)."""
    context = native.Context(
        model, context_tokens=256, batch_tokens=max(64, len(prompt)), thread_count=thread_count
    )
    batch = native.Batch()
    for position, token in enumerate(prompt):
        batch.add(token, position, 0, True)
    context.decode(batch)
    rows = [context.logits(index) for index in range(len(prompt))]
    for offset, token in enumerate(decoded):
        batch.clear()
        batch.add(token, len(prompt) + offset, 0, True)
        context.decode(batch)
        rows.append(context.logits(-1))
    return np.stack(rows)
