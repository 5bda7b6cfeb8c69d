"""What the running daemon measured, as the planner takes it: for `stratactl plan` on the machine that it runs on."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from planner import Policy, Running

# Fewer steps are mostly the cache filling up.
FEWEST_STEPS = 256
# Below a hundredth the CPUs have next to nothing to do: the same as nothing, for the size of the pool.
NEXT_TO_NOTHING = 0.01


def running_share(status: Mapping[str, Any]) -> Running | None:
    """What a /status document says of experts; None from a daemon without a GPU, or before it has enough to say."""
    experts, plan, decode = status.get("experts"), status.get("plan"), status.get("decode")
    if not experts or not plan or not decode or experts["hit_ratio"] is None:
        return None
    steps, share = decode["decode_steps"], experts["cpu_share"]
    if share is None or steps < FEWEST_STEPS:
        return None
    return Running(
        policy=Policy(plan["policy"]),
        worker_count=plan["worker_count"],
        cpu_share=0.0 if share < NEXT_TO_NOTHING else share,
        hit_ratio=experts["hit_ratio"],
        decode_steps=steps,
    )
