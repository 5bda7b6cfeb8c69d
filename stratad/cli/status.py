"""`stratactl status`: what the running daemon does, in a few lines."""

from __future__ import annotations

from typing import Any

import click

from stratad.cli.daemon_access import DaemonAddress, daemon_options, get_json
from stratad.cli.output import json_option, print_json
from stratad.cli.placement_text import placement_lines


@click.command()
@daemon_options
@json_option
def status(address: DaemonAddress, as_json: bool) -> int:
    """Show the daemon's state, its plan with reasons and warnings, decode rate and page placement.

    Exit status 1 means that it cannot be reached.
    """
    document = get_json(address, "/status")
    if as_json:
        print_json(document)
    else:
        click.echo("\n".join(status_lines(document)))
    return 0


def status_lines(document: dict[str, Any]) -> list[str]:
    """The status document as lines for people."""
    lines = [f"state     {document['state']}{_loading(document)}", f"model     {document['model']}"]
    plan = document["plan"]
    if plan is not None:
        lines.append(f"plan      {plan['policy']}  (fingerprint {plan['fingerprint']})")
    if document["decode"] is not None:
        lines.extend(_decode_lines(document["decode"]))
    lines.extend(_expert_lines(document.get("experts")))
    if document["placement"] is not None:
        lines.extend(placement_lines(document["placement"]))
        lines.append(f"checked   {document['placement']['age_seconds']:.0f} s ago")
    for reason in document["reasons"]:
        lines.append(f"{reason['effect']:<9} {reason['code']}: {reason['message']}")
        if reason["remedy"]:
            lines.append(f"          remedy: {reason['remedy']}")
    return lines


def _expert_lines(experts: dict[str, Any] | None) -> list[str]:
    """What GPUs take off the CPUs; nothing without one."""
    if not experts or experts["hit_ratio"] is None:
        return []
    return [
        f"experts   {experts['hit_ratio']:.0%} of the router's choices were in VRAM, "
        f"{experts['cpu_share'] or 0:.0%} of their bytes were the CPUs'"
    ]


def _loading(document: dict[str, Any]) -> str:
    if document["state"] != "loading":
        return ""
    return f": {document['stage']}, {document['loaded_ratio']:.0%}"


def _decode_lines(decode: dict[str, Any]) -> list[str]:
    lines = [
        f"requests  {decode['requests_running']} running in {decode['slots']} slots, "
        f"{decode['requests_waiting']} waiting"
    ]
    rate = decode["decode_steps_per_second"]
    if rate is not None:
        lines.append(f"decode    {rate:.2f} steps/s over {decode['decode_steps']} steps")
    timings = decode["last_timings"]
    if timings is not None and timings["predicted_per_second"] is not None:
        lines.append(
            f"last      {timings['predicted_n']} tokens at {timings['predicted_per_second']:.2f} per second, "
            f"prompt {timings['prompt_n']} tokens in {timings['prompt_ms']:.0f} ms"
        )
    return lines
