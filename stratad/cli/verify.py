"""`stratactl verify`: asks the running daemon where its pages lie now, and holds that against its plan."""

from __future__ import annotations

from typing import Any

import click

from stratad.cli.daemon_access import DaemonAddress, daemon_options, get_json
from stratad.cli.output import json_option, print_json
from stratad.cli.placement_text import placement_lines
from stratad.errors import PlacementError

# The verdicts of stratad.runner.verify.Verdict; importing that would bring numpy into a command that only prints.
_EXIT_STATUS = {"met": 0, "not-applicable": 0, "below-limit": PlacementError.exit_status}
_UNVERIFIABLE_STATUS = 1


@click.command()
@daemon_options
@json_option
def verify(address: DaemonAddress, as_json: bool) -> int:
    """Check where the running daemon's expert pages lie, slice by slice.

    Exit status 0: as planned (or nothing was to be placed). 4: below the limit. 1: the daemon cannot be
    reached, or the kernel does not tell where pages lie.
    """
    document = get_json(address, "/placement")
    if as_json:
        print_json(document)
    else:
        click.echo("\n".join(verify_lines(document)))
    return _EXIT_STATUS.get(document["verdict"], _UNVERIFIABLE_STATUS)


def verify_lines(document: dict[str, Any]) -> list[str]:
    """The placement document as lines for people."""
    plan = document["plan"] or {}
    head = f"plan      {plan.get('policy', 'unknown')}  (fingerprint {plan.get('fingerprint', 'unknown')})"
    return [head, *placement_lines(document)]
