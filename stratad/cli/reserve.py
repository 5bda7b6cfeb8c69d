"""`stratactl reserve` and `release`: keep other services off the plan's CPUs, and give them back."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import click

from planner import Plan, PlanDocumentError, plan_from_json, read_topology
from planner.dropin import plan_cpu_ids, reservation_text
from stratad.cli.apply import Outcome, report, show_changes
from stratad.cli.output import json_option
from stratad.errors import StratadError
from stratad.systemd.control import Systemctl, SystemdControl, SystemdError, system_objections
from stratad.systemd.unit_files import (
    PERSISTENT_UNITS,
    PLAN_PATH,
    RUNTIME_UNITS,
    Change,
    FileSet,
    carry_out,
    changes,
    reservation_path,
    reservations,
)

# Where everything else of a system runs. machine.slice holds virtual machines and containers, where there are any.
OTHER_UNITS = ("init.scope", "system.slice", "user.slice")
_MACHINES = "machine.slice"


@click.command()
@click.option("--persistent", is_flag=True, help="Keep it over a reboot; by default it ends with this boot.")
@click.option("--dry-run", is_flag=True, help="Show what would change and change nothing.")
@json_option
def reserve(persistent: bool, dry_run: bool, as_json: bool) -> int:
    """Keep system services, sessions and machines off the CPUs of the applied plan.

    Kernel threads and interrupts are not moved. `stratactl release` gives the CPUs back at any time.
    """
    for objection in system_objections():
        raise SystemdError("changing the cpusets of other slices", objection, remedy="leave the CPUs shared")
    control = Systemctl()
    plan = _applied_plan(PLAN_PATH)
    rest = _other_cpus(plan)
    units = PERSISTENT_UNITS if persistent else RUNTIME_UNITS
    planned = changes(reservation_files(units, other_units(control), rest, plan.fingerprint))
    if not as_json:
        show_changes(planned)
    if planned and not dry_run:
        carry_out(planned, "sudo stratactl reserve")
        control.reload()
    report(Outcome(planned, (), plan), is_dry_run=dry_run, as_json=as_json)
    return 0


@click.command()
@click.option("--dry-run", is_flag=True, help="Show what would change and change nothing.")
@json_option
def release(dry_run: bool, as_json: bool) -> int:
    """Give other services every CPU back, whatever reserved them and whenever."""
    wanted: FileSet = {
        path: None for units in (RUNTIME_UNITS, PERSISTENT_UNITS) for path in reservations(units)
    }
    planned = changes(wanted)
    if not as_json:
        show_changes(planned)
    if planned and not dry_run:
        give_back(planned, Systemctl())
    report(Outcome(planned, ()), is_dry_run=dry_run, as_json=as_json)
    return 0


def give_back(planned: Sequence[Change], control: SystemdControl) -> None:
    """Widens every reservation to all CPUs, then takes the files away.

    systemd forgets a removed AllowedCPUs= without writing the cpuset anew as long as another unit (ours) keeps the
    controller on: without the first step the slices would stay narrow until the next boot (measured, systemd 252).
    """
    every = tuple(cpu.cpu_id for cpu in read_topology(Path("/")).cpus)
    units = {change.path: change.path.parent.name.removesuffix(".d") for change in planned}
    widened: FileSet = {path: reservation_text(unit, every, "being released") for path, unit in units.items()}
    carry_out(changes(widened), "sudo stratactl release")
    control.reload()
    carry_out(planned, "sudo stratactl release")
    control.reload()


def other_units(control: SystemdControl) -> tuple[str, ...]:
    """The slices and scopes that hold everything but stratad on this system."""
    return OTHER_UNITS if not control.is_active(_MACHINES) else (*OTHER_UNITS, _MACHINES)


def reservation_files(
    units: Path, names: tuple[str, ...], cpu_ids: tuple[int, ...], fingerprint: str
) -> FileSet:
    """The drop-ins that keep `names` on `cpu_ids`."""
    return {reservation_path(units, name): reservation_text(name, cpu_ids, fingerprint) for name in names}


def _applied_plan(path: Path) -> Plan:
    remedy = "run `sudo stratactl apply` first"
    try:
        return plan_from_json(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise StratadError("reserving the plan's CPUs", "no plan has been applied", remedy=remedy) from error
    except (OSError, PlanDocumentError) as error:
        raise StratadError(f"reading {path}", str(error), remedy=remedy) from error


def _other_cpus(plan: Plan) -> tuple[int, ...]:
    ours = plan_cpu_ids(plan)
    rest = tuple(sorted({cpu.cpu_id for cpu in read_topology(Path("/")).cpus} - set(ours)))
    if not rest:
        raise StratadError(
            tried="reserving the plan's CPUs",
            because="the plan uses every CPU, so none is left for the rest of the system",
            values={"cpus": len(ours)},
            remedy="set placement.workers to fewer than the machine's cores and apply again",
        )
    return rest
