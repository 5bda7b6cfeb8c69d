"""The documents `stratactl plan --json` writes, as pydantic models: the published schema is made from these.

The planner writes the same documents without pydantic, so that a plan starts at once; a test holds both sides
together.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter

from planner import ArenaScope, Confidence, Effect, MemoryMode, Objective, Policy
from planner.plan_json import SCHEMA_VERSION

Count = Annotated[int, Field(ge=0)]
NodeIds = list[Count]


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid")


class ReasonDocument(_Strict):
    """One finding: what was compared, what it did, and a way out. docs/REASONS.md explains every code."""

    code: str
    effect: Effect
    policy: Policy | None = Field(description="The policy the finding is about; null for machine or request.")
    message: str
    evidence: dict[str, str | int | float | bool | list[int] | None] = Field(
        description="The numbers compared."
    )
    remedy: str | None


class EstimateDocument(_Strict):
    """Seconds of one decode step, in parts."""

    step_seconds: float
    stream_seconds: float = Field(description="Reading and multiplying the expert bytes.")
    synchronization_seconds: float = Field(description="Workers waiting for each other.")
    rest_seconds: float = Field(description="Everything but the experts.")
    prompt_seconds: float | None = Field(description="The GPUs reading the whole arena once; null without.")
    confidence: Confidence


class CandidateDocument(_Strict):
    """One policy on one set of nodes that was weighed."""

    policy: Policy
    node_ids: NodeIds
    slice_count: Count
    worker_count: Count
    is_chosen: bool
    objection_codes: list[str]
    estimate: EstimateDocument | None


class SliceDocument(_Strict):
    """Where one slice's rows live."""

    node_ids: NodeIds = Field(description="One node, several to interleave over, or none: not placed.")
    weight: Annotated[int, Field(ge=1)]


class WorkerDocument(_Strict):
    """One worker of the pool; the first is the seat of the thread that submits work."""

    cpu_id: Count | None
    slice_index: Count


class LayoutDocument(_Strict):
    """Slices and their workers, and the CPUs kept for the server."""

    slices: list[SliceDocument]
    workers: list[WorkerDocument]
    host_cpu_ids: NodeIds


class ArenaSliceDocument(_Strict):
    """The bytes of the arena in one slice."""

    slice_index: Count
    node_ids: NodeIds
    size_bytes: Count


class ProcessMemoryDocument(_Strict):
    """The policy of every page but the arena's."""

    mode: MemoryMode
    node_ids: NodeIds


class StagingDocument(_Strict):
    """The node for the host buffers of one GPU; null when its node is unknown or may not be used."""

    pci_address: str
    node_id: Count | None


class GpuLayersDocument(_Strict):
    """The layers whose attention and dense part one GPU computes."""

    pci_address: str
    node_id: Count | None
    first_layer: Count
    layer_count: Count


class PlanDocument(_Strict):
    """A plan. Sizes are bytes, times seconds, ids the kernel's."""

    schema_version: Literal[1]
    policy: Policy
    objective: Objective
    confidence: Confidence
    fingerprint: str
    machine_fingerprint: str
    layout: LayoutDocument
    arena_scope: ArenaScope = Field(description="What the arena holds: experts, or all large weights.")
    arena_slices: list[ArenaSliceDocument]
    process_memory: ProcessMemoryDocument
    memory_nodes: NodeIds
    gpu_staging: list[StagingDocument]
    gpu_layers: list[GpuLayersDocument] = Field(description="By GPU; empty where none computes layers.")
    page_bytes: Count
    transparent_huge_pages: bool
    release_page_cache: bool
    reasons: list[ReasonDocument]
    candidates: list[CandidateDocument]


class RefusalDocument(_Strict):
    """No policy suits; exit status 3."""

    schema_version: Literal[1]
    refused: Literal[True]
    reasons: list[ReasonDocument]
    candidates: list[CandidateDocument]


class ErrorBody(_Strict):
    """What was tried, what happened, the values and a remedy."""

    kind: str
    summary: str
    tried: str
    because: str
    values: dict[str, str | int | float | bool | None]
    remedy: str
    exit_status: int


class ErrorDocument(_Strict):
    """Anything else that went wrong; `exit_status` is the command's."""

    error: ErrorBody


def plan_schema() -> dict[str, Any]:
    """Give the JSON Schema of what `stratactl plan --json` writes: a plan, a refusal or an error."""
    assert SCHEMA_VERSION == 1, "a new version of the document needs its own models"
    adapter: TypeAdapter[Any] = TypeAdapter(PlanDocument | RefusalDocument | ErrorDocument)
    schema = adapter.json_schema()
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "stratactl plan --json",
        "description": "Version 1. Fields are added without a new version; none is renamed or dropped in it.",
        **schema,
    }
