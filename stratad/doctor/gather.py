"""Brings together what the checks look at: the machine, the service, the model, and the plan for them."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

from planner import (
    Effect,
    Plan,
    PlanDocumentError,
    PlanRefused,
    PlanRequest,
    Reason,
    Topology,
    make_plan,
    plan_from_json,
)
from planner.sysfs import MachineFiles
from stratad.doctor.error_log import LOG_PATHS
from stratad.doctor.facts import AppliedPlan, MachineFacts, PlacementVerdict
from stratad.doctor.processes import read_service, read_surroundings, service_process_ids
from stratad.doctor.reading import read_settings
from stratad.errors import StratadError
from stratad.gguf.model import read_model_facts
from stratad.gpu.modules import is_gpu_expected
from stratad.plan.facts import (
    STATE_DIRECTORY,
    PlanOptions,
    configured_options,
    machine_calibration,
    machine_facts,
    machine_files,
    plan_request,
    refusal_error,
)
from stratad.plan.slot_memory import with_fitting_memory
from stratad.systemd.service_view import service_topology
from stratad.systemd.unit_files import PLAN_PATH, SLICE

DEFAULT_CONFIGURATION = "/etc/stratad/stratad.toml"


@dataclass(frozen=True, slots=True)
class Question:
    """What the doctor is asked about: a machine, and the model in one of three ways, or none."""

    root: Path = Path("/")
    configuration: Path | None = None
    model: Path | None = None
    arena_bytes: int | None = None


@dataclass(frozen=True, slots=True)
class LiveAnswers:
    """What only the running machine tells, and no file of it; None where nobody asked."""

    refused_calls: tuple[str, ...] | None = None
    error_log: str | None = None
    placement: PlacementVerdict | None = None


def gather(question: Question, live: LiveAnswers) -> MachineFacts:
    """Give the facts for every check.

    A configuration or model that cannot be used is a finding and no error: the rest of the machine is looked at.

    Raises:
        StratadError: The root shows no machine at all.
    """
    files = machine_files(question.root)
    topology = machine_facts(question.root, files)
    service = read_service(files)
    planned_topology = topology
    if service.unit is not None and question.root.is_dir():
        process_id = service.running.process_id if service.running else None
        planned_topology = service_topology(SLICE, process_id, question.root)
        # What the vendor's library told of their nodes; asked once.
        planned_topology = replace(planned_topology, accelerators=topology.accelerators)
    surroundings = read_surroundings(files, service_process_ids(files))
    facts = MachineFacts(
        topology=topology,
        planned_topology=planned_topology,
        settings=read_settings(files, topology),
        surroundings=replace(
            surroundings, refused_calls=live.refused_calls, error_log=live.error_log or _kept_log(files)
        ),
        service=service,
        applied=_applied(files),
        placement=live.placement,
    )
    return _with_plan(_with_request(facts, question), question.root)


def _kept_log(files: MachineFiles) -> str | None:
    texts = [text for path in LOG_PATHS if (text := files.text(path)) is not None]
    return "\n".join(texts) if texts else None


def _applied(files: MachineFiles) -> AppliedPlan:
    text = files.text(str(PLAN_PATH))
    if text is None:
        return AppliedPlan()
    try:
        return AppliedPlan(plan_from_json(text))
    except PlanDocumentError as error:
        return AppliedPlan(problem=str(error))


def _with_request(facts: MachineFacts, question: Question) -> MachineFacts:
    """Fill in what the model asks of the machine, or why that is not known."""
    try:
        request = _request(facts.planned_topology, question)
    except StratadError as error:
        return replace(facts, configuration_problem=f"{error.because} ({error.tried})")
    return replace(facts, request=request)


def _request(topology: Topology, question: Question) -> PlanRequest | None:
    if question.arena_bytes is not None:
        return plan_request(None, PlanOptions(arena_bytes=question.arena_bytes))
    path = question.configuration or _installed_configuration(question)
    if path is None:
        return (
            None if question.model is None else plan_request(read_model_facts(question.model), PlanOptions())
        )
    # pydantic is needed for a configuration only.
    from stratad.config import load_configuration

    configuration = load_configuration(path)
    model = read_model_facts(question.model or configuration.model.path)
    configuration, _ = with_fitting_memory(configuration, model, topology)
    gpu = configuration.gpu
    # Elsewhere nobody knows which modules are there, so every GPU that is seen counts.
    has_gpu = is_gpu_expected(gpu.mode, gpu.backend_path, topology) if question.root == Path("/") else None
    return plan_request(model, configured_options(configuration, model, has_gpu=has_gpu))


def _installed_configuration(question: Question) -> Path | None:
    """Give the machine's own configuration when no model was named; a captured one names a model of another machine."""
    path = Path(DEFAULT_CONFIGURATION)
    is_wanted = question.model is None and question.root == Path("/")
    return path if is_wanted and path.exists() else None


def _with_plan(facts: MachineFacts, root: Path) -> MachineFacts:
    """Fill in the plan for the model, with its reasons; without a model those that are about the machine alone."""
    request = facts.request or PlanRequest()
    refused_calls = facts.surroundings.refused_calls
    if refused_calls is not None and request.placement_possible is None:
        request = replace(request, placement_possible=not refused_calls)
    plan: Plan | None = None
    try:
        plan = make_plan(facts.planned_topology, request, machine_calibration(_state_directory(root)))
    except PlanRefused as refusal:
        machine = _machine_reasons(facts.planned_topology, request)
        return replace(facts, refusal=refusal_error(refusal).because, reasons=(*refusal.reasons, *machine))
    except StratadError as error:
        # Damaged measurements: plan without them.
        plan = make_plan(facts.planned_topology, request)
        facts = replace(facts, configuration_problem=facts.configuration_problem or error.because)
    return replace(facts, plan=plan if facts.request is not None else None, reasons=plan.reasons)


def _state_directory(root: Path) -> Path | None:
    """Give where stratad keeps its state on the machine under `root`; None for an archive."""
    return None if root.is_file() else root / STATE_DIRECTORY.relative_to("/")


def _machine_reasons(topology: Topology, request: PlanRequest) -> tuple[Reason, ...]:
    """Give what the planner says of the machine alone, for a request that it refuses."""
    nothing = PlanRequest(gpu_node_ids=request.gpu_node_ids, placement_possible=request.placement_possible)
    try:
        plan = make_plan(topology, nothing)
    except PlanRefused:
        return ()
    return tuple(reason for reason in plan.reasons if reason.effect is not Effect.REJECTS)
