"""The one document that `/status` gives: the page, `stratactl status` and the OpenAPI document all read it here.

Sizes are bytes, times seconds, ids the kernel's numbers; what is not known, or not there yet, is null. Counters
count from the daemon's start, so that a reader takes rates from two documents and their `uptime_seconds`.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

Count = Annotated[int, Field(ge=0)]
Seconds = Annotated[float, Field(ge=0)]
Ratio = Annotated[float, Field(ge=0, le=1)]
CpuRole = Literal["worker", "server", "free", "closed"]


class _Document(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class ReasonDocument(_Document):
    """A finding of the planner or of a check after it; docs/REASONS.md explains every code."""

    code: str
    effect: str
    message: str
    remedy: str | None


class CpuDocument(_Document):
    """One logical CPU. `slice` is that of the worker pinned to it; closed: not in the daemon's cpuset."""

    cpu: Count
    role: CpuRole
    slice: Count | None


class NodeDocument(_Document):
    """One NUMA node with the cores that the kernel counts to it, each as its CPUs."""

    node: Count
    memory_total_bytes: Count | None
    is_allowed: bool
    cores: list[list[CpuDocument]]


class PackageDocument(_Document):
    """One CPU package. `package` is null for nodes that have no CPU, and for CPUs that have no node."""

    package: Count | None
    nodes: list[NodeDocument]


class GpuDocument(_Document):
    """One GPU; `node` is null when nobody knows where it is attached."""

    address: str
    node: Count | None


class MachineDocument(_Document):
    """The machine as the plan saw it."""

    packages: list[PackageDocument]
    gpus: list[GpuDocument]


class PlannedSliceDocument(_Document):
    """One slice of the arena as planned: its nodes (none: not placed), its bytes and its workers."""

    slice: Count
    nodes: list[Count]
    size_bytes: Count
    workers: Count


class PlanSummaryDocument(_Document):
    """The plan in force, in short; `/placement` has all of it."""

    policy: str
    fingerprint: str
    confidence: str
    worker_count: Count
    slices: list[PlannedSliceDocument]


class SlicePlacementDocument(_Document):
    """Where a sample of one slice's pages lies, by node."""

    slice: Count
    home_nodes: list[Count]
    pages_per_node: dict[str, Count]
    unknown_pages: Count
    local_ratio: Ratio | None


class PlacementDocument(_Document):
    """One check of where the arena's pages lie; `age_seconds` is how long ago it was."""

    verdict: Literal["met", "below-limit", "unverifiable", "not-applicable"]
    limit_ratio: Ratio
    worst_slice: Count | None
    worst_ratio: Ratio | None
    page_bytes: Count
    arena_bytes_per_node: dict[str, Count]
    slices: list[SlicePlacementDocument]
    age_seconds: Seconds


class TimingsDocument(_Document):
    """llama.cpp's timings of the last answer."""

    model_config = ConfigDict(extra="allow", frozen=True)

    prompt_n: Count
    prompt_ms: Seconds
    predicted_n: Count
    predicted_ms: Seconds
    predicted_per_second: float | None


class SlotDocument(_Document):
    """One slot: what its memory holds, and the request that it serves now.

    `work` is "prompt" while the prompt is computed, "answer" after that, null while the slot is free.
    """

    slot: Count
    work: Literal["prompt", "answer"] | None
    held_tokens: Count
    prompt_tokens: Count | None
    generated_tokens: Count | None


class DecodeDocument(_Document):
    """Requests, tokens and slots."""

    requests_running: Count
    requests_waiting: Count
    slots: Count
    slot_list: list[SlotDocument]
    context_tokens: Count
    held_tokens: Count
    prompt_tokens_cached: Count
    prompt_cache_bytes: Count
    prompt_cache_limit_bytes: Count
    prompt_cache_entries: Count
    generation_tokens: Count
    prompt_tokens: Count
    decode_steps: Count
    decode_seconds: Seconds
    prefill_seconds: Seconds
    decode_steps_per_second: float | None
    last_timings: TimingsDocument | None


class PoolSliceDocument(_Document):
    """What one slice of the pool has done.

    `wait_seconds` is its workers' time at barriers, `drain_seconds` from its first idle worker to a batch's end.
    """

    slice: Count
    wait_seconds: Seconds
    drain_seconds: Seconds
    workers: Count
    tasks: Count
    expert_bytes: Count
    dense_bytes: Count


class PoolDocument(_Document):
    """The pool's totals."""

    slices: list[PoolSliceDocument]
    fused_chains: Count
    fallback_operations: Count


class ExpertShareDocument(_Document):
    """Who has read the experts since the model was loaded.

    `cpu_share` is null before any expert was read; hits, misses and their ratio without a cache in VRAM, the ratio also
    before the first read. Large batches that a GPU computes count for neither: a plan is about the pool's work.
    """

    cpu_bytes: Count
    vram_bytes: Count
    cpu_share: float | None
    hits: Count | None
    misses: Count | None
    hit_ratio: float | None
    pinned_bytes: Count


class StatusDocument(_Document):
    """State, plan, machine, placement, requests and findings of a running daemon."""

    state: Literal["loading", "ready", "degraded", "draining", "failed"]
    stage: str
    loaded_ratio: Ratio
    uptime_seconds: Seconds
    model: str
    version: str
    plan: PlanSummaryDocument | None
    machine: MachineDocument | None
    reasons: list[ReasonDocument]
    placement: PlacementDocument | None
    decode: DecodeDocument | None
    pool: PoolDocument | None
    experts: ExpertShareDocument | None
