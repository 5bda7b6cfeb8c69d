"""`stratactl explain`: what a reason's code means and what to do about it."""

from __future__ import annotations

import difflib

import click

from planner import REASON_CODES, ReasonCode
from stratad.cli.output import json_option, print_json, print_report
from stratad.errors import ConfigurationError


@click.command()
@click.argument("code", required=False)
@json_option
def explain(code: str | None, as_json: bool) -> None:
    """Tell what CODE means, as `stratactl plan` and the journal show it in brackets; without CODE list all.

    docs/REASONS.md holds the same table, docs/DOCTOR.md the codes of `stratactl doctor`.
    """
    if code is None:
        _list_all(as_json)
        return
    row = REASON_CODES.get(code) or _doctor_row(code)
    if row is None:
        raise _unknown(code)
    if as_json:
        print_json({"code": code, "meaning": row.meaning, "action": row.action or None})
        return
    lines = [f"code      {code}", f"means     {row.meaning}"]
    lines.append(f"do        {row.action or 'Nothing: it says why something was chosen.'}")
    print_report("\n".join(lines) + "\n")


def _doctor_row(code: str) -> ReasonCode | None:
    """Give a check of `stratactl doctor` in the shape of a reason; its remedies name this machine's numbers."""
    # The checks are needed for their own codes only.
    from stratad.doctor import CHECKS

    check = next((check for check in CHECKS if check.code == code), None)
    if check is None:
        return None
    return ReasonCode(
        f"a check of the doctor: {check.question} {check.why}",
        f"Run `stratactl doctor`; {check.documentation} says more.",
    )


def _list_all(as_json: bool) -> None:
    if as_json:
        codes = [
            {"code": name, "meaning": row.meaning, "action": row.action or None}
            for name, row in REASON_CODES.items()
        ]
        print_json({"codes": codes})
        return
    for name, row in REASON_CODES.items():
        click.echo(f"{name}\n    {row.meaning}")


def _unknown(code: str) -> ConfigurationError:
    near = difflib.get_close_matches(code, REASON_CODES, n=1)
    return ConfigurationError(
        tried=f"explaining {code}",
        because="no reason has this code",
        remedy=f"did you mean {near[0]}?" if near else "run `stratactl explain` for the list",
        summary="the code is not known",
    )
