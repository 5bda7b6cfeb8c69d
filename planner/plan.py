"""The plan: policy, workers, arena slices and process memory in one value, with the reasons. Values only."""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import StrEnum

from planner.reason import Effect, Reason
from planner.request import ArenaScope, Objective, Policy


@dataclass(frozen=True, slots=True)
class Worker:
    """One pinned worker of the pool. `cpu_id` None is an unpinned worker (test mode)."""

    cpu_id: int | None
    slice_index: int


@dataclass(frozen=True, slots=True)
class Slice:
    """Where one slice's rows live: on one node, interleaved over several, or () for not placed.

    `weight` is the slice's part of the rows, relative to the other slices.
    """

    node_ids: tuple[int, ...]
    weight: int = 1


@dataclass(frozen=True, slots=True)
class WorkerLayout:
    """Slices and the workers that compute them.

    `workers[0]` is the seat of the submitting (decode) thread, which takes part in the pool. `host_cpu_ids`
    are the CPUs of the core kept free for the server; with too few cores they are every usable CPU.
    """

    slices: tuple[Slice, ...]
    workers: tuple[Worker, ...]
    host_cpu_ids: tuple[int, ...]

    def worker_count_of(self, slice_index: int) -> int:
        """Give the number of workers of one slice."""
        return sum(worker.slice_index == slice_index for worker in self.workers)


class MemoryMode(StrEnum):
    """The process-wide memory policy, named as the kernel names it."""

    DEFAULT = "default"
    PREFERRED = "preferred"
    INTERLEAVE = "interleave"


@dataclass(frozen=True, slots=True)
class ProcessMemory:
    """Policy for every page but the arena's. `node_ids` is () for default, one node for preferred."""

    mode: MemoryMode
    node_ids: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class ArenaSlice:
    """The bytes of the arena one slice holds, and where."""

    slice_index: int
    node_ids: tuple[int, ...]
    size_bytes: int


class Confidence(StrEnum):
    """How far a number or a choice can be trusted, in rising order; docs/GLOSSARY.md says what each needs."""

    ESTIMATED = "estimated"
    LIKELY = "likely"
    MEASURED = "measured"
    PROVEN = "proven"


@dataclass(frozen=True, slots=True)
class Estimate:
    """Seconds of one decode step as the cost model sees it, in its three parts.

    `prompt_seconds` is what the GPU needs to read the candidate's arena once, None without a GPU's node.
    """

    step_seconds: float
    stream_seconds: float
    synchronization_seconds: float
    rest_seconds: float
    confidence: Confidence = Confidence.ESTIMATED
    prompt_seconds: float | None = None


@dataclass(frozen=True, slots=True)
class Candidate:
    """One policy on one set of nodes that was weighed, with the codes of what spoke against it.

    A split over the same nodes may have a slice for each of them or for each package.
    """

    policy: Policy
    node_ids: tuple[int, ...]
    slice_count: int
    worker_count: int
    estimate: Estimate | None
    objection_codes: tuple[str, ...]
    is_chosen: bool = False


@dataclass(frozen=True, slots=True)
class StagingBuffer:
    """Where the host buffers that feed one GPU belong. `node_id` None: nobody knows the GPU's node."""

    pci_address: str
    node_id: int | None


@dataclass(frozen=True, slots=True)
class GpuLayers:
    """The layers whose attention and dense part one GPU computes: a run of them.

    `node_id` is the GPU's, None where nobody knows it.
    """

    pci_address: str
    node_id: int | None
    first_layer: int
    layer_count: int


@dataclass(frozen=True, slots=True)
class Plan:
    """One decision about threads and memory together.

    `confidence` is how far the choice of the policy can be trusted, never more than what it rests on.

    `memory_nodes` are the nodes whose memory the process uses. `page_bytes` is the page size the arena is cut
    for; `transparent_huge_pages` says whether the kernel may join pages (only with one slice: a 2 MiB page
    cannot be cut). `release_page_cache` asks for the model file's cache to be dropped before and while
    loading. `machine_fingerprint` covers the hardware only and stays the same inside the plan's own cpuset.
    """

    policy: Policy
    objective: Objective
    layout: WorkerLayout
    arena_slices: tuple[ArenaSlice, ...]
    process_memory: ProcessMemory
    memory_nodes: tuple[int, ...]
    page_bytes: int
    transparent_huge_pages: bool
    release_page_cache: bool
    reasons: tuple[Reason, ...]
    candidates: tuple[Candidate, ...]
    machine_fingerprint: str
    fingerprint: str
    confidence: Confidence = Confidence.ESTIMATED
    gpu_staging: tuple[StagingBuffer, ...] = ()
    gpu_layers: tuple[GpuLayers, ...] = ()
    arena_scope: ArenaScope = ArenaScope.EXPERTS

    def decides_as(self, other: Plan) -> bool:
        """Say whether both lead to the same system; what was weighed and why may differ.

        Estimates and reasons name free memory, which is another number at every look.
        """
        account = replace(
            self, reasons=other.reasons, candidates=other.candidates, confidence=other.confidence
        )
        return account == other

    def reasons_with(self, effect: Effect) -> tuple[Reason, ...]:
        """Give the reasons of one effect, in the order they were found."""
        return tuple(reason for reason in self.reasons if reason.effect is effect)


class PlanRefused(Exception):
    """No candidate is feasible, or the requested one is not; `reasons` say why."""

    def __init__(self, reasons: tuple[Reason, ...], candidates: tuple[Candidate, ...] = ()) -> None:
        super().__init__("; ".join(reason.message for reason in reasons))
        self.reasons = reasons
        self.candidates = candidates
