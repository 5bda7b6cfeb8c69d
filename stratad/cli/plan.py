"""`stratactl plan`: the plan for a model on this machine or a captured one, with every reason."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import click

from planner import (
    Objective,
    Plan,
    PlanRefused,
    PlanRequest,
    Policy,
    Topology,
    explain_machine,
    explain_plan,
    make_plan,
    parse_policy,
    parse_scope,
    plan_to_dict,
    refusal_to_dict,
)
from planner.quantity import format_bytes
from stratad.cli.output import json_option, print_json, print_report
from stratad.cli.parameters import byte_size, root_option
from stratad.errors import ConfigurationError, DaemonError, one_line
from stratad.gguf.model import ModelFacts, read_model_facts
from stratad.gpu.modules import is_gpu_expected
from stratad.plan.facts import (
    STATE_DIRECTORY,
    PlanOptions,
    machine_calibration,
    machine_facts,
    plan_request,
    refusal_error,
    total_context_tokens,
)
from stratad.plan.slot_memory import with_fitting_memory

if TYPE_CHECKING:
    from planner import Calibration, Running
    from stratad.config import Configuration

DEFAULT_CONFIGURATION = Path("/etc/stratad/stratad.toml")
LIVE_ROOT = Path("/")


@dataclass(frozen=True, slots=True)
class Wishes:
    """The command's options. None means the option was not given, so the configuration may fill it in."""

    root: Path
    model: Path | None
    arena_bytes: int | None
    policy: str | None
    objective: str | None
    workers: int | None
    cpu_share: float | None
    config: Path | None
    bench: Path | None = None
    tune: Path | None = None
    gpu_nodes: tuple[int, ...] = ()
    gpu_expert_layers: int = 0
    other_bytes: int | None = None
    tokens_per_step: float = 1.0


@click.command()
@root_option
@click.option("--model", type=click.Path(path_type=Path), help="GGUF file (the first, of a split model).")
@click.option(
    "--arena-bytes",
    callback=byte_size,
    metavar="SIZE",
    help="Expert bytes in host memory, as 44GiB or a number of bytes.",
)
@click.option(
    "--policy", type=click.Choice(["auto", *(policy.value for policy in Policy)]), help="Ask for a policy."
)
@click.option("--objective", type=click.Choice([word.value for word in Objective]), help="What to favour.")
@click.option("--workers", type=click.IntRange(min=1), help="Ask for a number of workers.")
@click.option(
    "--cpu-share",
    type=click.FloatRange(0, 1),
    help="Share of expert bytes the CPU computes; 0 when all experts are in VRAM. Default: what the daemon that runs "
    "here has measured, else 1.",
)
@click.option(
    "--config",
    type=click.Path(path_type=Path),
    help=f"Configuration; {DEFAULT_CONFIGURATION} if it is there.",
)
@click.option(
    "--gpu-node",
    "gpu_nodes",
    type=click.IntRange(min=0),
    multiple=True,
    help="Node of a GPU in use; once for each. By default the accelerators found.",
)
@click.option(
    "--gpu-expert-layers",
    type=click.IntRange(min=0),
    default=0,
    help="Layers whose experts are all in VRAM, counted from the last.",
)
@click.option(
    "--other-bytes",
    callback=byte_size,
    metavar="SIZE",
    help="Host memory beside weights and KV cache: prompt cache, staging, other programs of the service.",
)
@click.option(
    "--tokens-per-step",
    type=click.FloatRange(min=0, min_open=True),
    default=1.0,
    help="Tokens whose experts one step reads; about 2.1 for windows of four drafts.",
)
@click.option(
    "--bench", type=click.Path(path_type=Path), help="Measurements of `stratactl bench` to plan with."
)
@click.option("--tune", type=click.Path(path_type=Path), help="Results of `stratactl tune` to plan with.")
@click.option("--drop-in", "as_drop_in", is_flag=True, help="Write the unit's drop-in instead of text.")
@json_option
def plan(
    *,
    root: Path,
    model: Path | None,
    arena_bytes: int | None,
    policy: str | None,
    objective: str | None,
    workers: int | None,
    cpu_share: float | None,
    config: Path | None,
    gpu_nodes: tuple[int, ...],
    gpu_expert_layers: int,
    other_bytes: int | None,
    tokens_per_step: float,
    bench: Path | None,
    tune: Path | None,
    as_drop_in: bool,
    as_json: bool,
) -> int:
    """Plan where a model's experts lie and which cores read them.

    Options given here win over the configuration. Exit status 3 means that no policy suits; the reasons are
    shown. Measurements of this machine are used when they are there; --bench and --tune name others.
    """
    wishes = Wishes(
        root=root,
        model=model,
        arena_bytes=arena_bytes,
        policy=policy,
        objective=objective,
        workers=workers,
        cpu_share=cpu_share,
        config=config,
        bench=bench,
        tune=tune,
        gpu_nodes=gpu_nodes,
        gpu_expert_layers=gpu_expert_layers,
        other_bytes=other_bytes,
        tokens_per_step=tokens_per_step,
    )
    topology = machine_facts(root)
    facts, plan_options = _facts_and_options(wishes, topology)
    request = plan_request(facts, plan_options)
    try:
        decided = make_plan(topology, request, calibration_for(wishes))
    except PlanRefused as refusal:
        if not as_json:
            raise refusal_error(refusal) from refusal
        print_json(refusal_to_dict(refusal))
        return refusal_error(refusal).exit_status
    if as_drop_in:
        from planner.dropin import drop_in_text
        from stratad.systemd.unit_files import PLAN_PATH

        text = drop_in_text(decided, str(PLAN_PATH))
        click.echo("# this plan needs no drop-in" if text is None else text.rstrip("\n"))
    elif as_json:
        print_json(plan_to_dict(decided))
    else:
        print_report(_text(topology, facts, request, decided))
    return 0


def calibration_for(wishes: Wishes) -> Calibration | None:
    """Give the measurements to plan with: the named ones, and this machine's own for the live root."""
    directory = STATE_DIRECTORY if wishes.root == LIVE_ROOT else None
    return machine_calibration(directory, wishes.bench, wishes.tune)


def _configuration_path(wishes: Wishes) -> Path | None:
    """Give the configuration to read: the named one, or the installed one when no model or size is given."""
    if wishes.config is not None:
        return wishes.config
    is_needed = wishes.model is None and wishes.arena_bytes is None and wishes.root == LIVE_ROOT
    return DEFAULT_CONFIGURATION if is_needed and DEFAULT_CONFIGURATION.exists() else None


def _facts_and_options(wishes: Wishes, topology: Topology) -> tuple[ModelFacts | None, PlanOptions]:
    options = PlanOptions(
        policy=parse_policy(wishes.policy or "auto"),
        objective=Objective(wishes.objective or Objective.DECODE),
        worker_count=wishes.workers,
        cpu_share=1.0 if wishes.cpu_share is None else wishes.cpu_share,
        arena_bytes=wishes.arena_bytes,
        extra_host_bytes=wishes.other_bytes or 0,
        gpu_node_ids=wishes.gpu_nodes or None,
        gpu_expert_layers=wishes.gpu_expert_layers,
        tokens_per_step=wishes.tokens_per_step,
    )
    configuration_path = _configuration_path(wishes)
    if configuration_path is not None:
        return _configured(wishes, options, configuration_path, topology)
    if wishes.model is None and wishes.arena_bytes is None:
        raise ConfigurationError(
            tried="planning without a model",
            because="neither a model nor an arena size was given",
            remedy="give --model FILE.gguf, --arena-bytes SIZE or --config FILE",
        )
    model = None if wishes.model is None else read_model_facts(wishes.model)
    return model, replace(options, has_gpu=_has_gpu(wishes, topology, "auto", None))


def _has_gpu(
    wishes: Wishes, topology: Topology, mode: Literal["auto", "off", "on"], backend_path: Path | None
) -> bool | None:
    """Whether a GPU takes part: on this machine one with a module to use it; elsewhere every one that is seen."""
    if wishes.gpu_nodes or wishes.root != LIVE_ROOT:
        return None
    return is_gpu_expected(mode, backend_path, topology)


def _configured(
    wishes: Wishes, options: PlanOptions, path: Path, topology: Topology
) -> tuple[ModelFacts, PlanOptions]:
    """Fill in from the configuration what no option gave. pydantic is imported only here."""
    from stratad.config import load_configuration

    configuration = load_configuration(path)
    model = read_model_facts(wishes.model or configuration.model.path)
    configuration, _ = with_fitting_memory(configuration, model, topology)
    placement = configuration.placement
    filled = replace(
        options,
        arena_scope=parse_scope(configuration.arena.scope),
        policy=options.policy if wishes.policy is not None else parse_policy(placement.policy),
        objective=options.objective if wishes.objective is not None else Objective(placement.objective),
        worker_count=wishes.workers if wishes.workers is not None else placement.workers,
        context_tokens=total_context_tokens(configuration, model),
        extra_host_bytes=options.extra_host_bytes + (configuration.model.prompt_cache_bytes or 0),
        has_gpu=_has_gpu(wishes, topology, configuration.gpu.mode, configuration.gpu.backend_path),
        pool_spin_seconds=placement.spin_microseconds * 1e-6,
    )
    running = _measured(wishes, configuration)
    return model, filled if running is None else replace(filled, cpu_share=running.cpu_share, running=running)


def _measured(wishes: Wishes, configuration: Configuration) -> Running | None:
    """What the daemon that runs here with this model has measured; None when none does, or has enough to say."""
    if wishes.root != LIVE_ROOT or wishes.model is not None or wishes.cpu_share is not None:
        return None
    from stratad.config import read_environment
    from stratad.state.runtime_directory import find_running

    try:
        endpoint = find_running(configuration.server.runtime_directory, read_environment()).endpoint
        # HTTP only where somebody answers.
        from stratad.cli.daemon_access import address_of, get_json
        from stratad.plan.running_share import running_share

        status = get_json(address_of(endpoint), "/status")
    except DaemonError:
        return None
    served = configuration.model.name or configuration.model.path.stem
    return running_share(status) if status.get("model") == served else None


def _text(topology: Topology, facts: ModelFacts | None, request: PlanRequest, decided: Plan) -> str:
    return explain_machine(topology) + _request_line(facts, request, decided) + explain_plan(decided)


def _request_line(facts: ModelFacts | None, request: PlanRequest, decided: Plan) -> str:
    arena_bytes = sum(part.size_bytes for part in decided.arena_slices)
    # What the arena's scope adds to the experts is no other buffer any more.
    other_bytes = request.arena.size_bytes + request.other_host_bytes - arena_bytes
    arena = f"{format_bytes(arena_bytes)} of {decided.arena_scope} in host memory"
    other = f", {format_bytes(other_bytes)} of other buffers" if other_bytes else ""
    if facts is None:
        return f"arena     {arena}{other}\n"
    experts = f", {facts.experts_used} of {facts.expert_count} experts" if facts.expert_count else ""
    layers = f", {facts.layer_count} layers" if facts.layer_count is not None else ""
    name = one_line(facts.name or facts.paths[0].name)
    return f"model     {name}: {one_line(facts.architecture)}{layers}{experts}\narena     {arena}{other}\n"
