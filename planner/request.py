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


class ArenaScope(StrEnum):
    """What the arena holds: the matrices of experts, or every large weight matrix that a token reads."""

    EXPERTS = "experts"
    WEIGHTS = "weights"


SMALL_PAGE_BYTES = 4096


@dataclass(frozen=True, slots=True)
class ArenaSpec:
    """The weights that the arena holds in host memory: the experts, or with them the other large matrices.

    `size_bytes` 0 means there are none.

    `bytes_per_token` is what one decoded token reads of them (experts used over experts); None when unknown.
    `layer_bytes` holds the bytes of each layer that has any, or () when not known per layer.
    `expert_matrix_bytes` is the smallest matrix of one expert (gate, up or down), which a slice border cuts.
    """

    size_bytes: int
    bytes_per_token: int | None = None
    layer_bytes: tuple[int, ...] = ()
    expert_matrix_bytes: int | None = None

    @property
    def layer_count(self) -> int | None:
        """Layers with weights in the arena, or None when sizes per layer are not known."""
        return len(self.layer_bytes) or None


@dataclass(frozen=True, slots=True)
class MemoryHardware:
    """What an operator knows of the memory and the kernel does not tell; None falls back on the CPU's row.

    `node_bandwidth` is bytes a second that one node's own cores read, as a data sheet or a report states it.
    """

    channels_per_package: int | None = None
    megatransfers: int | None = None
    node_bandwidth: float | None = None


@dataclass(frozen=True, slots=True)
class GpuInUse:
    """A GPU that takes part. `pci_address` None: its backend does not say which one it is."""

    pci_address: str | None
    memory_bytes: int | None = None


@dataclass(frozen=True, slots=True)
class Running:
    """What a running daemon has measured, for the question whether another plan would suit it better now.

    `cpu_share` is the part of expert bytes that its CPUs read, `hit_ratio` the part of the router's choices that
    VRAM answered, None without a cache; both over `decode_steps`. Policy and workers are those it runs with.
    """

    policy: Policy
    worker_count: int
    cpu_share: float
    hit_ratio: float | None
    decode_steps: int


@dataclass(frozen=True, slots=True)
class PlanRequest:
    """Everything but the machine that a plan depends on.

    Args:
        arena: The expert weights in host memory.
        weights: All large weights as an arena, experts included; None when only experts may be placed.
        requested_scope: Which of the two the operator wants, or None for the planner's choice.
        other_host_bytes: KV cache, prompt cache, dense weights and every other large host buffer.
        requested_policy: The operator's policy, or None for the planner's choice.
        requested_node_ids: With a policy: of its candidates the one whose arena lies on exactly these nodes.
        requested_slice_count: With a policy: of its candidates the one with so many slices.
        objective: What to favour.
        cpu_share: Share (0 to 1) of the expert bytes of a step that the CPU computes; 0 when all experts
            are in VRAM.
        requested_worker_count: The operator's worker count, or None; clamped to what the machine has.
        gpu_node_ids: Nodes of the GPUs in use. None means: take the accelerators of the topology.
        placement_possible: Whether mbind, set_mempolicy and move_pages work here; None when nobody tried.
        allowed_policies: What the planner may choose among: an engine that cannot slice leaves `split` out.
        page_bytes: Page size the arena is asked to use; larger ones come from reserved huge pages.
        tokens_per_step: Tokens whose experts one step reads: 1, or about 2.1 for a window of four drafts.
        has_gpu: Whether a GPU takes part in a step; None means: look at the accelerators.
        gpus: The GPUs that take part; None means: all accelerators.
        running: What the running daemon measured; its share is then `cpu_share`.
        layer_count: Layers of the model, with experts or without; None when not known.
        staging_placeable: Whether GPU staging buffers can be put on the GPU's node although the process
            interleaves; None when they can, as in our engine.
        pool_spin_seconds: How long an idle worker spins before it sleeps; a longer gap between layers costs
            a wake-up. The default is our pool's.
        memory: What is known of the memory beyond what the kernel tells.
    """

    arena: ArenaSpec = field(default_factory=lambda: ArenaSpec(0))
    weights: ArenaSpec | None = None
    requested_scope: ArenaScope | None = None
    other_host_bytes: int = 0
    requested_policy: Policy | None = None
    requested_node_ids: tuple[int, ...] | None = None
    requested_slice_count: int | None = None
    objective: Objective = Objective.DECODE
    cpu_share: float = 1.0
    requested_worker_count: int | None = None
    gpu_node_ids: tuple[int, ...] | None = None
    placement_possible: bool | None = None
    allowed_policies: tuple[Policy, ...] = tuple(Policy)
    page_bytes: int = SMALL_PAGE_BYTES
    tokens_per_step: float = 1.0
    has_gpu: bool | None = None
    gpus: tuple[GpuInUse, ...] | None = None
    layer_count: int | None = None
    running: Running | None = None
    staging_placeable: bool | None = None
    pool_spin_seconds: float = 50e-6
    memory: MemoryHardware = MemoryHardware()

    def __post_init__(self) -> None:
        if self.arena.size_bytes < 0 or self.other_host_bytes < 0:
            raise ValueError("sizes are bytes and cannot be negative")
        if not 0 <= self.cpu_share <= 1:
            raise ValueError("cpu_share is a share between 0 and 1")
        if self.requested_worker_count is not None and self.requested_worker_count < 1:
            raise ValueError("requested_worker_count is at least 1")
        if self.page_bytes < SMALL_PAGE_BYTES or self.page_bytes & (self.page_bytes - 1):
            raise ValueError("page_bytes is a power of two of 4096 or more")
        if self.tokens_per_step <= 0:
            raise ValueError("tokens_per_step is above 0")


def parse_scope(text: str) -> ArenaScope | None:
    """Give the scope of a setting's text; "auto" is None.

    Raises:
        ValueError: For any other word.
    """
    return None if text == "auto" else ArenaScope(text)


def parse_policy(text: str) -> Policy | None:
    """Give the policy of a setting's text; "auto" is None.

    Raises:
        ValueError: For any other word.
    """
    return None if text == "auto" else Policy(text)
