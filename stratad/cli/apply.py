"""`stratactl apply`: writes the plan into the service's drop-in, shows what changes, and restarts the service."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import click

from planner import (
    Plan,
    PlanDocumentError,
    PlanRefused,
    Policy,
    explain_plan,
    make_plan,
    parse_policy,
    plan_from_json,
    plan_to_json,
)
from planner.dropin import OWNER_LINE, drop_in_text
from stratad.cli.output import json_option, print_json
from stratad.gguf.model import read_model_facts
from stratad.gpu.modules import is_gpu_expected
from stratad.plan.facts import (
    STATE_DIRECTORY,
    configured_options,
    machine_calibration,
    plan_request,
    refusal_error,
)
from stratad.plan.slot_memory import with_fitting_memory
from stratad.systemd.control import Systemctl, SystemdControl, SystemdError, system_objections
from stratad.systemd.service_view import service_topology
from stratad.systemd.unit_files import (
    PLAN_PATH,
    SLICE,
    UNIT,
    Change,
    FileSet,
    carry_out,
    changes,
    diff_lines,
    placement_path,
)

DEFAULT_CONFIGURATION = Path("/etc/stratad/stratad.toml")


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a command that changes unit files did: it is shown as text or as JSON."""

    changes: tuple[Change, ...]
    notes: tuple[str, ...]
    plan: Plan | None = None


@click.command()
@click.option(
    "--config",
    type=click.Path(path_type=Path),
    default=DEFAULT_CONFIGURATION,
    show_default=True,
    help="The service's configuration.",
)
@click.option(
    "--policy", type=click.Choice(["auto", *(policy.value for policy in Policy)]), help="Ask for a policy."
)
@click.option("--dry-run", is_flag=True, help="Show what would change and change nothing.")
@click.option("--no-restart", is_flag=True, help="Write and reload; the service takes it at its next start.")
@json_option
def apply(config: Path, policy: str | None, dry_run: bool, no_restart: bool, as_json: bool) -> int:
    """Plan for the configured model and write the plan into the service's drop-in.

    Shows the difference first. A running service is restarted; `stratactl revert` takes everything back.
    """
    objections = system_objections()
    if objections and not dry_run:
        raise SystemdError(
            tried=f"changing the cpuset and memory policy of {UNIT}",
            because=objections[0],
            remedy="run the daemon without a drop-in: it places its memory and pins its workers itself",
        )
    control = Systemctl()
    plan = decide_for_service(config, policy, None if objections else control)
    planned = () if stands_already(plan) else changes(placement_files(plan))
    if not as_json:
        click.echo(explain_plan(plan), nl=False)
        show_changes(planned)
    notes = () if dry_run else _carry_out(planned, control, is_restart_wanted=not no_restart)
    report(Outcome(planned, (*objections, *notes), plan), is_dry_run=dry_run, as_json=as_json)
    return 0


def decide_for_service(config: Path, policy: str | None, control: SystemdControl | None) -> Plan:
    """The plan for the configured model on the machine as the service will see it.

    Raises:
        PlanRefusedError: No policy suits.
        ConfigurationError, ModelFileError: The configuration or its model cannot be used.
    """
    from stratad.config import load_configuration

    configuration = load_configuration(config)
    model = read_model_facts(configuration.model.path)
    process_id = int(control.property_of(UNIT, "MainPID") or 0) if control is not None else 0
    topology = service_topology(SLICE, process_id or None)
    configuration, _ = with_fitting_memory(configuration, model, topology)
    settings = configuration.gpu
    options = configured_options(
        configuration, model, has_gpu=is_gpu_expected(settings.mode, settings.backend_path, topology)
    )
    if policy is not None:
        options = replace(options, policy=parse_policy(policy))
    try:
        return make_plan(topology, plan_request(model, options), machine_calibration(STATE_DIRECTORY))
    except PlanRefused as refusal:
        raise refusal_error(refusal) from refusal


def placement_files(plan: Plan) -> FileSet:
    """The drop-in and the plan that it names; both absent for a plan that needs neither."""
    text = drop_in_text(plan, str(PLAN_PATH))
    return {PLAN_PATH: None if text is None else plan_to_json(plan), placement_path(): text}


def stands_already(plan: Plan, plan_path: Path = PLAN_PATH, drop_in: Path | None = None) -> bool:
    """Whether the applied plan and its drop-in lead to the same system, and only their account differs."""
    try:
        applied = plan_from_json(plan_path.read_text(encoding="utf-8"))
        text = (drop_in or placement_path()).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError, PlanDocumentError):
        return False
    wanted = drop_in_text(plan, str(PLAN_PATH)) or ""
    return (
        text.startswith(OWNER_LINE) and applied.decides_as(plan) and _directives(text) == _directives(wanted)
    )


def _directives(text: str) -> list[str]:
    return [line for line in text.splitlines() if line and not line.startswith("#")]


def show_changes(planned: Sequence[Change]) -> None:
    """Prints the drop-ins' differences; of a plan document only that it changes."""
    for change in planned:
        if change.path.suffix != ".json":
            click.echo("\n".join(diff_lines(change)))
        else:
            verb = "removed" if change.after is None else "written" if change.before is None else "replaced"
            click.echo(f"{change.path}: {verb}")


def report(outcome: Outcome, *, is_dry_run: bool, as_json: bool) -> None:
    """Prints how it ended."""
    if as_json:
        print_json(outcome_document(outcome, is_dry_run))
        return
    if not outcome.changes:
        click.echo("nothing to change")
    elif is_dry_run:
        click.echo("nothing was changed (--dry-run)")
    for note in outcome.notes:
        click.echo(note)


def outcome_document(outcome: Outcome, is_dry_run: bool) -> Mapping[str, object]:
    """The outcome as JSON values."""
    plan = outcome.plan
    return {
        "dry_run": is_dry_run,
        "plan": None if plan is None else {"policy": plan.policy.value, "fingerprint": plan.fingerprint},
        "changes": [
            {"path": str(change.path), "before": change.before, "after": change.after}
            for change in outcome.changes
        ],
        "notes": list(outcome.notes),
    }


def _carry_out(
    planned: Sequence[Change], control: SystemdControl, *, is_restart_wanted: bool
) -> tuple[str, ...]:
    if not planned:
        return ()
    carry_out(planned, "sudo stratactl apply")
    return settle(control, is_restart_wanted=is_restart_wanted)


def settle(control: SystemdControl, *, is_restart_wanted: bool) -> tuple[str, ...]:
    """Makes systemd and the service take changed files; gives a line on what became of the service."""
    control.reload()
    if not control.is_active(UNIT):
        return (f"{UNIT} does not run; start it with `sudo systemctl start {UNIT.removesuffix('.service')}`",)
    if not is_restart_wanted:
        return (f"{UNIT} runs with its former plan until it is restarted",)
    control.restart(UNIT)
    return (f"{UNIT} was restarted and is ready",)
