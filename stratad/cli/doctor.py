"""`stratactl doctor`: looks for what stands in the way on this machine or a captured one."""

from __future__ import annotations

from pathlib import Path

import click

from stratad.cli.daemon_access import DaemonAddress, get_json
from stratad.cli.output import json_option, print_json, print_report
from stratad.cli.parameters import LIVE_ROOT, byte_size, root_option
from stratad.doctor import (
    LiveAnswers,
    PlacementVerdict,
    Question,
    examine,
    gather,
    report_document,
    report_text,
)
from stratad.errors import StratadError


@click.command()
@root_option
@click.option(
    "--config",
    type=click.Path(path_type=Path),
    help="Configuration that names the model; the installed one if it is there.",
)
@click.option(
    "--model", type=click.Path(path_type=Path), help="GGUF file to look at instead of the configured one."
)
@click.option(
    "--arena-bytes", callback=byte_size, metavar="SIZE", help="Look for room for so much instead of a model."
)
@click.option(
    "--all", "has_everything", is_flag=True, help="Also show what is fine and what could not be looked at."
)
@click.option("--strict", is_flag=True, help="Exit status 1 for warnings, too.")
@json_option
def doctor(
    *,
    root: Path,
    config: Path | None,
    model: Path | None,
    arena_bytes: int | None,
    has_everything: bool,
    strict: bool,
    as_json: bool,
) -> int:
    """Look for what keeps a model from its full speed on this machine, and say what to do about it.

    Nothing is changed. Exit status 0: nothing worse than a warning. 1: an error (with --strict: or a warning).
    3: no plan suits. 4: the running daemon's pages are below their limit.
    """
    live = _live_answers(config) if root == LIVE_ROOT else LiveAnswers()
    facts = gather(Question(root, config, model, arena_bytes), live)
    report = examine(facts)
    if as_json:
        print_json(report_document(report, is_strict=strict))
    else:
        print_report(report_text(report, facts.topology, has_everything=has_everything))
    return report.exit_status(is_strict=strict)


def _live_answers(config: Path | None) -> LiveAnswers:
    # Captured machines need neither the native module nor a subprocess.
    from stratad.doctor.live import live_answers

    return live_answers(_placement(config))


def _placement(config: Path | None) -> PlacementVerdict | None:
    """Give what the running daemon says of its pages; None when none answers."""
    try:
        document = get_json(DaemonAddress(None, None, config), "/placement")
    except StratadError:
        return None
    return PlacementVerdict(document["verdict"], document["worst_ratio"], document["limit_ratio"])
