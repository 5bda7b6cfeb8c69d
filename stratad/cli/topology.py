"""`stratactl topology`: the machine as the planner sees it."""

from __future__ import annotations

from pathlib import Path

import click

from planner import explain_topology, topology_to_dict
from stratad.cli.output import json_option, print_json, print_report
from stratad.cli.parameters import root_option
from stratad.plan.facts import machine_facts


@click.command()
@root_option
@json_option
def topology(root: Path, as_json: bool) -> None:
    """Show the machine: nodes with CPUs and memory, accelerators, and what cpusets leave.

    With --json, CPU sets are kernel lists ("0-3,8") and memory is in KiB or bytes as each name says.
    """
    facts = machine_facts(root)
    if as_json:
        print_json(topology_to_dict(facts))
    else:
        print_report(explain_topology(facts))
