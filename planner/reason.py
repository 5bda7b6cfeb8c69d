"""Reasons: every choice, refusal and warning as a value, and the table of their public codes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from planner.request import Policy

Evidence = str | int | float | bool | None | tuple[int, ...]


class Effect(StrEnum):
    """What a reason does to the plan."""

    REJECTS = "rejects"
    WARNS = "warns"
    CHOOSES = "chooses"
    INFORMS = "informs"


@dataclass(frozen=True, slots=True)
class Reason:
    """One finding: a stable code, its effect, the sentence with the numbers compared, and a way out.

    `policy` is the policy the finding is about, or None when it is about the machine or the request.
    """

    code: str
    effect: Effect
    message: str
    evidence: Mapping[str, Evidence] = field(default_factory=dict, hash=False)
    remedy: str | None = None
    policy: Policy | None = None

    def __post_init__(self) -> None:
        assert self.code in REASON_CODES, f"{self.code} has no row in REASON_CODES"


@dataclass(frozen=True, slots=True)
class ReasonCode:
    """What a code means to an operator, in one sentence."""

    meaning: str


# Public: tests, metrics and people match on these. A code is renamed only with an ADR.
REASON_CODES: Mapping[str, ReasonCode] = {
    "affinity-narrows-cpuset": ReasonCode("an affinity mask leaves fewer CPUs than the cpuset allows"),
    "all-experts-in-vram": ReasonCode(
        "the CPU computes no expert bytes, so the pool stays as small as it can"
    ),
    "arena-exceeds-cgroup-limit": ReasonCode(
        "arena and host buffers are larger than the cgroup's memory limit"
    ),
    "arena-exceeds-memory": ReasonCode(
        "arena and host buffers do not fit into the machine's available memory"
    ),
    "arena-exceeds-nodes": ReasonCode("the arena does not fit the nodes of this candidate with headroom"),
    "arena-not-locked": ReasonCode("the arena cannot be locked in memory, so the kernel may swap it out"),
    "close-call": ReasonCode(
        "two candidates are nearer than the model can tell; only a measurement settles it"
    ),
    "cpuset-one-cpu": ReasonCode("only one CPU may be used, so server and pool share it"),
    "estimated-gain": ReasonCode("the cost model agrees with the choice; its number is an estimate"),
    "estimated-no-gain": ReasonCode(
        "the cost model sees no gain beyond its uncertainty over the safer candidate"
    ),
    "gpu-node-outside-cpuset": ReasonCode("the GPU's node is not among the nodes this process may use"),
    "gpu-node-preferred": ReasonCode("candidates are equal and this one lies at the GPU"),
    "gpu-node-unknown": ReasonCode("a GPU is present and neither firmware nor locality tells its node"),
    "headroom-tight": ReasonCode("the plan fits, and little stays free beside it"),
    "huge-pages-idle": ReasonCode(
        "reserved huge pages nobody uses take memory that ordinary pages cannot have"
    ),
    "memory-unknown": ReasonCode("the kernel states no memory sizes here, so nothing was compared"),
    "most-local-feasible": ReasonCode("the most local policy that fits is chosen"),
    "no-experts": ReasonCode("the model has no experts in host memory, so there is nothing to place"),
    "node-too-small-for-slice": ReasonCode("a node cannot hold its slice of the arena with headroom"),
    "numa-balancing-on": ReasonCode(
        "automatic NUMA balancing is on; placed memory is protected by its own policy"
    ),
    "one-node-cpuset": ReasonCode("the cpuset leaves workers and memory of one node only"),
    "other-buffers-crowd-node": ReasonCode(
        "host buffers beside the arena do not fit the same node and will spill"
    ),
    "placement-not-possible": ReasonCode("the kernel or a seccomp filter refuses to place memory"),
    "policy-requested": ReasonCode("the operator asked for this policy"),
    "prompt-at-gpu": ReasonCode("prompts run on the GPU, which reads an arena at its own node fastest"),
    "single-node-machine": ReasonCode("the machine has one NUMA node, so there is nothing to choose"),
    "too-few-workers": ReasonCode("there is less than one worker for each slice"),
    "workers-clamped": ReasonCode("more workers were asked for than physical cores can serve"),
    "workers-lopsided": ReasonCode("nodes differ in usable cores, so slices differ in workers"),
    "workers-rounded": ReasonCode("the worker count asked for is not a multiple of the slice count"),
}
