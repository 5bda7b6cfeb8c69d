"""The placement planner: facts of a machine and a model in, one Plan with its reasons out.

Pure and standard library only; `planner.sysfs` alone opens files. See docs/ARCHITECTURE.md.
"""

from planner.accelerators import with_gpu_affinity
from planner.calibration import (
    BandwidthCell,
    Benchmark,
    Calibration,
    CalibrationError,
    LayerCosts,
    SweepPoint,
    TuneResult,
    Tuning,
    benchmark_from_json,
    tuning_from_json,
)
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
)
from planner.reason import REASON_CODES, Effect, Reason, ReasonCode
from planner.request import ArenaSpec, MemoryHardware, Objective, PlanRequest, Policy, parse_policy
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

__all__ = [
    "REASON_CODES",
    "Accelerator",
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
    "Slice",
    "StagingBuffer",
    "SweepPoint",
    "Topology",
    "TopologyUnreadable",
    "TuneResult",
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
    "plan_from_dict",
    "plan_from_json",
    "plan_to_dict",
    "plan_to_json",
    "read_topology",
    "reason_log_line",
    "reason_to_dict",
    "topology_to_dict",
    "tuning_from_json",
    "unpinned_layout",
    "with_gpu_affinity",
]
