"""What the doctor looks at, as values: nothing here reads. None is unknown: no such file, or not for our eyes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from planner import CgroupLimits, Plan, PlanRequest, Reason, Topology


@dataclass(frozen=True, slots=True)
class Swap:
    """Swap space and how readily the kernel uses it (vm.swappiness)."""

    total_bytes: int | None = None
    used_bytes: int | None = None
    swappiness: int | None = None


@dataclass(frozen=True, slots=True)
class Commit:
    """vm.overcommit_memory (2 is strict), and what strict counting still allows."""

    mode: int | None = None
    limit_bytes: int | None = None
    committed_bytes: int | None = None

    @property
    def left_bytes(self) -> int | None:
        """Bytes that can still be promised under strict counting."""
        if self.limit_bytes is None or self.committed_bytes is None:
            return None
        return self.limit_bytes - self.committed_bytes


@dataclass(frozen=True, slots=True)
class MemoryModule:
    """One slot for a memory module as the firmware's table states it; 0 bytes is an empty slot.

    Speeds are megatransfers a second: what the module can do, and what it runs at.
    """

    locator: str
    size_bytes: int
    rated_speed: int | None = None
    configured_speed: int | None = None


@dataclass(frozen=True, slots=True)
class ErrorCounts:
    """Corrected and uncorrected memory errors that the EDAC driver counted, over all controllers."""

    corrected_count: int
    uncorrected_count: int


@dataclass(frozen=True, slots=True)
class Governor:
    """CPUs that share a frequency driver, a governor and an energy preference."""

    driver: str
    governor: str
    cpu_count: int
    preference: str | None = None


@dataclass(frozen=True, slots=True)
class PciLink:
    """The width and rate that a device's link runs at, and the most that both ends can do.

    Rates are the kernel's gigatransfers a second.
    """

    pci_address: str
    width: int
    widest: int
    rate: float
    fastest: float


@dataclass(frozen=True, slots=True)
class Settings:
    """What the kernel and the firmware say of the machine beyond its topology; nothing personal is in it."""

    swap: Swap = field(default_factory=Swap)
    commit: Commit = field(default_factory=Commit)
    most_mappings: int | None = None
    zone_reclaim_mode: int | None = None
    huge_page_defrag: str | None = None
    has_unified_cgroups: bool | None = None
    has_cpuset_controller: bool | None = None
    has_node_directory: bool = True
    large_block_bytes: Mapping[int, int] = field(default_factory=dict)
    governors: tuple[Governor, ...] = ()
    modules: tuple[MemoryModule, ...] | None = None
    memory_errors: ErrorCounts | None = None
    gpu_links: tuple[PciLink, ...] = ()


@dataclass(frozen=True, slots=True)
class PinnedProcess:
    """Another process whose threads are pinned to single CPUs."""

    process_id: int
    name: str
    cpu_ids: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class RunningService:
    """The service's process: where its threads may run and what its cgroup allows.

    `worker_masks` are the CPUs of each pool worker by its index; limits are bytes, None without one.
    """

    process_id: int
    limits: CgroupLimits
    worker_masks: Mapping[int, tuple[int, ...]]
    lock_limit_bytes: int | None = None
    locked_bytes: int | None = None
    swapped_bytes: int | None = None
    mapping_count: int | None = None


@dataclass(frozen=True, slots=True)
class ServiceFacts:
    """The service as systemd's files and its cgroup show it.

    `unit` holds the last value of every setting, by name; None when no unit file is installed. `kill_count` counts
    what the kernel killed in its cgroup since that was made.
    """

    unit: Mapping[str, str] | None = None
    running: RunningService | None = None
    kill_count: int | None = None


@dataclass(frozen=True, slots=True)
class AppliedPlan:
    """The plan that `stratactl apply` left; `problem` says why it cannot be read."""

    plan: Plan | None = None
    problem: str | None = None


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What else lives on the machine: container, filters, killers, other pools.

    `container` names its kind; `killers` are programs that kill for lack of memory; `refused_calls` are the
    placement calls that the kernel refused to this process, None when nobody tried.
    """

    container: str | None = None
    is_filtered: bool | None = None
    killers: tuple[str, ...] = ()
    pinned: tuple[PinnedProcess, ...] = ()
    refused_calls: tuple[str, ...] | None = None
    error_log: str | None = None


@dataclass(frozen=True, slots=True)
class PlacementVerdict:
    """What the running daemon says of its pages: "met", "below-limit", "unverifiable" or "not-applicable"."""

    verdict: str
    worst_ratio: float | None
    limit_ratio: float


@dataclass(frozen=True, slots=True)
class MachineFacts:
    """Everything that checks work on.

    `topology` is the machine as this process sees it and `planned_topology` as the service will. `request` is what
    the model asks of it, None without a model; `reasons` are those of the plan made for it, or of its refusal.
    """

    topology: Topology
    planned_topology: Topology
    settings: Settings = field(default_factory=Settings)
    surroundings: Surroundings = field(default_factory=Surroundings)
    service: ServiceFacts = field(default_factory=ServiceFacts)
    applied: AppliedPlan = field(default_factory=AppliedPlan)
    request: PlanRequest | None = None
    configuration_problem: str | None = None
    plan: Plan | None = None
    refusal: str | None = None
    reasons: tuple[Reason, ...] = ()
    placement: PlacementVerdict | None = None

    def reason(self, code: str) -> Reason | None:
        """Give the planner's reason with this code, or None."""
        return next((reason for reason in self.reasons if reason.code == code), None)

    @property
    def arena_bytes(self) -> int | None:
        """Bytes that the plan puts into the arena; those asked for when nothing suits, None without a model."""
        if self.plan is not None and self.request is not None:
            return sum(part.size_bytes for part in self.plan.arena_slices)
        return None if self.request is None else self.request.arena.size_bytes

    @property
    def wanted_bytes(self) -> int | None:
        """Bytes of arena and other host buffers together; None without a model."""
        if self.request is None:
            return None
        return self.request.arena.size_bytes + self.request.other_host_bytes
