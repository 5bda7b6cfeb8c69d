"""Which plan the daemon starts with: the applied one where the unit names it, else one made now."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from planner import (
    ArenaScope,
    Effect,
    Plan,
    PlanRefused,
    Reason,
    Topology,
    make_plan,
    parse_policy,
    parse_scope,
)
from planner.sysfs import Tree
from stratad.config import Configuration, Environment
from stratad.gguf.model import ModelFacts
from stratad.gpu.runtime import GpuFindings, open_gpus
from stratad.native.apply import memory_policy_failures
from stratad.plan.facts import (
    STATE_DIRECTORY,
    configured_options,
    machine_calibration,
    plan_request,
    refusal_error,
)
from stratad.plan.reason_log import log_plan, tell, warn_of
from stratad.plan.stored import BLOCKING_CODES, process_policy, read_stored_plan, unit_differences

# What the plan or the unit asks for and this process does not have: it serves, and says that it is degraded.
DEGRADING_CODES = ("placement-not-possible", *BLOCKING_CODES)


def starting_gpus(topology: Topology, configuration: Configuration) -> GpuFindings:
    """The GPUs to use, with what was found logged; to be called before threads start (see gpu_runtime).

    Raises:
        ConfigurationError: The configuration asks for a GPU and there is none to use.
    """
    findings = open_gpus(configuration.gpu, topology)
    for reason in findings.reasons:
        tell(reason)
    return findings


def starting_plan(
    topology: Topology,
    model: ModelFacts,
    configuration: Configuration,
    environment: Environment,
    gpus: GpuFindings,
) -> tuple[Plan, tuple[Reason, ...]]:
    """The plan to start with, and what was found beside it: the applied plan where the unit names one.

    An applied plan that this unit cannot carry out is not forced: planned again inside the unit's limits, with
    the reasons why.

    Raises:
        ConfigurationError: The applied plan was made for another machine or model.
        PlanRefusedError: Nothing suits. Nothing is loaded yet.
    """
    failures = memory_policy_failures()
    refused = (_placement_refused(failures),) if failures else ()
    if environment.plan_path is None:
        return decide_plan(topology, model, configuration, gpus), refused
    plan = read_stored_plan(environment.plan_path, topology, model)
    tree = Tree(Path("/"))
    findings = (
        *refused,
        *unit_differences(plan, topology, process_policy(tree)),
        *_configuration_differences(plan, configuration),
        *_idle_gpus(plan, gpus),
    )
    for reason in findings:
        warn_of(reason)
    if failures or any(reason.code in BLOCKING_CODES for reason in findings):
        return decide_plan(topology, model, configuration, gpus), findings
    log_plan(plan)
    return plan, findings


def _placement_refused(failures: Sequence[str]) -> Reason:
    return Reason(
        code="placement-not-possible",
        effect=Effect.WARNS,
        message=f"the kernel refuses {', '.join(failures)}: workers are pinned, pages lie where they are touched",
        evidence={"refused": ", ".join(failures)},
        remedy="let the service use mbind, set_mempolicy and move_pages (SystemCallFilter=@system-service)",
    )


def _configuration_differences(plan: Plan, configuration: Configuration) -> tuple[Reason, ...]:
    asked = parse_policy(configuration.placement.policy), parse_scope(configuration.arena.scope)
    return tuple(
        Reason(
            "applied-plan-differs",
            Effect.WARNS,
            f"the applied plan has {what} {planned}, the configuration asks for {wanted}: the applied plan counts",
            {f"plan_{what}": planned.value, f"asked_{what}": wanted.value},
            "run `sudo stratactl apply` again",
        )
        for what, planned, wanted in zip(
            ("policy", "arena scope"), (plan.policy, plan.arena_scope), asked, strict=True
        )
        if wanted is not None and wanted is not planned
    )


def _idle_gpus(plan: Plan, gpus: GpuFindings) -> tuple[Reason, ...]:
    """A plan that was applied before the GPU could be used keeps all weights for the CPUs."""
    if not gpus.gpus or plan.arena_scope is ArenaScope.EXPERTS:
        return ()
    names = ", ".join(gpu.name for gpu in gpus.gpus)
    return (
        Reason(
            "gpu-unused-by-plan",
            Effect.WARNS,
            f"{names} could be used, and the applied plan keeps all weights in the arena for the CPUs",
            {"gpus": names},
            "run `sudo stratactl apply` again",
        ),
    )


def decide_plan(
    topology: Topology, model: ModelFacts, configuration: Configuration, gpus: GpuFindings
) -> Plan:
    """The plan for this machine and model, with its reasons logged.

    Raises:
        PlanRefusedError: Nothing suits, or the arena does not fit the memory. Nothing is loaded yet.
    """
    options = configured_options(
        configuration,
        model,
        placement_possible=not memory_policy_failures(),
        has_gpu=bool(gpus.gpus),
        gpus=gpus.in_use,
    )
    try:
        plan = make_plan(topology, plan_request(model, options), machine_calibration(STATE_DIRECTORY))
    except PlanRefused as refusal:
        raise refusal_error(refusal) from refusal
    log_plan(plan)
    return plan
