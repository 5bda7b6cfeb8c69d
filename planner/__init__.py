"""The placement planner: facts of a machine and a model in, one Plan with its reasons out.

Pure and standard library only; `planner.sysfs` alone opens files. See docs/ARCHITECTURE.md.

Measurements are imported when somebody has any: seven data types cost a twentieth of a plan's time.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from planner.accelerators import pci_address_of, with_gpu_affinity
from planner.cost import CostConstants
from planner.decide import make_plan
from planner.discover import TopologyUnreadable, read_topology
from planner.explain import (
    explain_machine,
    explain_plan,
    explain_refusal,
    explain_topology,
    log_lines,
    reason_log_line,
)
from planner.fingerprint import machine_fingerprint
from planner.layout import unpinned_layout
from planner.plan import (
    ArenaSlice,
    Candidate,
    Confidence,
    Estimate,
    GpuLayers,
    MemoryMode,
    Plan,
    PlanRefused,
    ProcessMemory,
    Slice,
    StagingBuffer,
    Worker,
    WorkerLayout,
)
from planner.plan_json import (
    PlanDocumentError,
    plan_from_dict,
    plan_from_json,
    plan_to_dict,
    plan_to_json,
    reason_to_dict,
    refusal_to_dict,
)
from planner.reason import REASON_CODES, Effect, Reason, ReasonCode
from planner.request import (
    ArenaScope,
    ArenaSpec,
    GpuInUse,
    MemoryHardware,
    Objective,
    PlanRequest,
    Policy,
    Running,
    parse_policy,
    parse_scope,
)
from planner.topology import (
    Accelerator,
    CgroupLimits,
    Cpu,
    CpuModel,
    HugePagePool,
    LastLevelCache,
    Node,
    Topology,
)
from planner.topology_json import topology_to_dict

if TYPE_CHECKING:
    from planner.calibration import (
        BandwidthCell,
        Benchmark,
        Calibration,
        CalibrationError,
        LayerCosts,
        SweepPoint,
        TuneResult,
        TuneVerdict,
        Tuning,
        benchmark_from_json,
        tuning_from_json,
    )

__all__ = [
    "REASON_CODES",
    "Accelerator",
    "ArenaScope",
    "ArenaSlice",
    "ArenaSpec",
    "BandwidthCell",
    "Benchmark",
    "Calibration",
    "CalibrationError",
    "Candidate",
    "CgroupLimits",
    "Confidence",
    "CostConstants",
    "Cpu",
    "CpuModel",
    "Effect",
    "Estimate",
    "GpuInUse",
    "GpuLayers",
    "HugePagePool",
    "LastLevelCache",
    "LayerCosts",
    "MemoryHardware",
    "MemoryMode",
    "Node",
    "Objective",
    "Plan",
    "PlanDocumentError",
    "PlanRefused",
    "PlanRequest",
    "Policy",
    "ProcessMemory",
    "Reason",
    "ReasonCode",
    "Running",
    "Slice",
    "StagingBuffer",
    "SweepPoint",
    "Topology",
    "TopologyUnreadable",
    "TuneResult",
    "TuneVerdict",
    "Tuning",
    "Worker",
    "WorkerLayout",
    "benchmark_from_json",
    "explain_machine",
    "explain_plan",
    "explain_refusal",
    "explain_topology",
    "log_lines",
    "machine_fingerprint",
    "make_plan",
    "parse_policy",
    "parse_scope",
    "pci_address_of",
    "plan_from_dict",
    "plan_from_json",
    "plan_to_dict",
    "plan_to_json",
    "read_topology",
    "reason_log_line",
    "reason_to_dict",
    "refusal_to_dict",
    "topology_to_dict",
    "tuning_from_json",
    "unpinned_layout",
    "with_gpu_affinity",
]

_MEASUREMENT_NAMES = frozenset(
    {
        "BandwidthCell",
        "Benchmark",
        "Calibration",
        "CalibrationError",
        "LayerCosts",
        "SweepPoint",
        "TuneResult",
        "TuneVerdict",
        "Tuning",
        "benchmark_from_json",
        "tuning_from_json",
    }
)


def __getattr__(name: str) -> object:
    if name not in _MEASUREMENT_NAMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from planner import calibration

    return getattr(calibration, name)


def __dir__() -> list[str]:
    return sorted({*globals(), *_MEASUREMENT_NAMES})
