"""`stratactl revert`: takes back what `stratactl apply` wrote."""

from __future__ import annotations

import click

from stratad.cli.apply import Outcome, report, settle, show_changes
from stratad.cli.output import json_option
from stratad.systemd.control import Systemctl
from stratad.systemd.unit_files import PLAN_PATH, carry_out, changes, placement_path


@click.command()
@click.option("--dry-run", is_flag=True, help="Show what would change and change nothing.")
@click.option("--no-restart", is_flag=True, help="Remove and reload; the service takes it at its next start.")
@json_option
def revert(dry_run: bool, no_restart: bool, as_json: bool) -> int:
    """Remove the plan's drop-in and the plan it names, and restart a running service."""
    planned = changes({placement_path(): None, PLAN_PATH: None})
    if not as_json:
        show_changes(planned)
    notes: tuple[str, ...] = ()
    if planned and not dry_run:
        carry_out(planned, "sudo stratactl revert")
        notes = settle(Systemctl(), is_restart_wanted=not no_restart)
    report(Outcome(planned, notes), is_dry_run=dry_run, as_json=as_json)
    return 0
