"""What the running daemon measured of its experts, as the planner takes it: for `stratactl plan` where it runs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from planner import Policy, Running

# Fewer steps are mostly the cache filling up.
FEWEST_STEPS = 256
# Below a hundredth the CPUs have next to nothing to do: the same as nothing, for the size of the pool.
NEXT_TO_NOTHING = 0.01


@dataclass(frozen=True, slots=True)
class ExpertShare:
    """Who has read the experts since the model was loaded.

    `cpu_share` is the part of their bytes that was the pool's, `hit_ratio` the part of the router's choices that
    VRAM held. Large batches that a GPU computes count for neither: a plan is about the pool's work.
    """

    cpu_share: float
    hit_ratio: float


def expert_share(status: Mapping[str, Any]) -> ExpertShare | None:
    """The shares of a /status document; None without a cache in VRAM, and before any expert was read."""
    cache, pool = status.get("expert_cache"), status.get("pool")
    if not cache or not pool:
        return None
    cpu_bytes = sum(part["expert_bytes"] for part in pool["slices"])
    uses, read_bytes = cache["hits"] + cache["misses"], cpu_bytes + cache["hit_bytes"]
    if not uses or not read_bytes:
        return None
    return ExpertShare(cpu_bytes / read_bytes, cache["hits"] / uses)


def running_share(status: Mapping[str, Any]) -> Running | None:
    """What a /status document says to the planner; None from a daemon without a GPU, or before it has enough to say."""
    share, plan, decode = expert_share(status), status.get("plan"), status.get("decode")
    if share is None or not plan or not decode or decode["decode_steps"] < FEWEST_STEPS:
        return None
    return Running(
        policy=Policy(plan["policy"]),
        worker_count=plan["workers"],
        cpu_share=0.0 if share.cpu_share < NEXT_TO_NOTHING else share.cpu_share,
        hit_ratio=share.hit_ratio,
        decode_steps=decode["decode_steps"],
    )
