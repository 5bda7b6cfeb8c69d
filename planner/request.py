"""What a plan is asked for: the arena, the other host memory, and the operator's wishes. Values only."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum


class Policy(StrEnum):
    """Where the arena lies and who reads it; docs/GLOSSARY.md has one sentence for each."""

    OFF = "off"
    SINGLE_SOCKET = "single-socket"
    SPLIT = "split"
    INTERLEAVE = "interleave"


class Objective(StrEnum):
    """What the plan favours when policies differ by workload."""

    DECODE = "decode"
    PROMPT = "prompt"
    BALANCED = "balanced"


@dataclass(frozen=True, slots=True)
class ArenaSpec:
    """The expert weights that stay in host memory. `size_bytes` 0 means the model has no experts there.

    `bytes_per_token` is what one decoded token reads of them (experts used over experts); None when unknown.
    `layer_bytes` holds the expert bytes of each layer that has experts, or () when not known per layer.
    """

    size_bytes: int
    bytes_per_token: int | None = None
    layer_bytes: tuple[int, ...] = ()

    @property
    def layer_count(self) -> int | None:
        """Layers with experts, or None when sizes per layer are not known."""
        return len(self.layer_bytes) or None


@dataclass(frozen=True, slots=True)
class PlanRequest:
    """Everything but the machine that a plan depends on.

    Args:
        arena: The expert weights in host memory.
        other_host_bytes: KV cache, prompt cache, dense weights and every other large host buffer.
        requested_policy: The operator's policy, or None for the planner's choice.
        objective: What to favour.
        cpu_share: Share (0 to 1) of the expert bytes of a step that the CPU computes; 0 when all experts
            are in VRAM.
        requested_worker_count: The operator's worker count, or None; clamped to what the machine has.
        gpu_node_ids: Nodes of the GPUs in use. None means: take the accelerators of the topology.
        placement_possible: Whether mbind, set_mempolicy and move_pages work here; None when nobody tried.
    """

    arena: ArenaSpec = field(default_factory=lambda: ArenaSpec(0))
    other_host_bytes: int = 0
    requested_policy: Policy | None = None
    objective: Objective = Objective.DECODE
    cpu_share: float = 1.0
    requested_worker_count: int | None = None
    gpu_node_ids: tuple[int, ...] | None = None
    placement_possible: bool | None = None

    def __post_init__(self) -> None:
        if self.arena.size_bytes < 0 or self.other_host_bytes < 0:
            raise ValueError("sizes are bytes and cannot be negative")
        if not 0 <= self.cpu_share <= 1:
            raise ValueError("cpu_share is a share between 0 and 1")
        if self.requested_worker_count is not None and self.requested_worker_count < 1:
            raise ValueError("requested_worker_count is at least 1")


def parse_policy(text: str) -> Policy | None:
    """Give the policy of a setting's text; "auto" is None.

    Raises:
        ValueError: For any other word.
    """
    return None if text == "auto" else Policy(text)
