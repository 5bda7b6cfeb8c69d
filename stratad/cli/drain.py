"""`stratactl drain`: an orderly end of the running daemon, or a pause."""

from __future__ import annotations

import time
from typing import Any

import click

from stratad.cli.daemon_access import (
    DaemonAddress,
    ask_json,
    daemon_options,
    get_json,
    running_daemon,
)
from stratad.cli.output import json_option, print_json
from stratad.client import Request
from stratad.errors import DaemonError

# stratad.server.authorization.ADMINISTRATION_HEADER; importing it would bring the whole server.
_HEADER = "X-Stratad-Administration"
_PATH = "/admin/drain"
_PAUSE_SECONDS = 0.2
# After its requests have ended, the daemon gives its answers out and frees its memory.
_CLOSE_SECONDS = 60.0


@click.command()
@click.option("--stay", is_flag=True, help="Stay, and refuse requests, until `stratactl drain --undo`.")
@click.option("--undo", is_flag=True, help="Take requests again after --stay.")
@click.option("--no-wait", is_flag=True, help="Do not wait for running requests.")
@daemon_options
@json_option
def drain(address: DaemonAddress, stay: bool, undo: bool, no_wait: bool, as_json: bool) -> int:
    """Refuse new requests, let running ones end, then stop the daemon.

    New requests get 503 with Retry-After at once. Running ones have server.drain_seconds; then they are cut off.
    systemd does not start a daemon again that has ended this way. For root and the daemon's user only.

    Exit status 1: the daemon cannot be reached, does not serve, or has not come to an end in time.
    """
    if stay and undo:
        raise click.UsageError("--stay and --undo exclude each other")
    answer = _ask(address, "DELETE" if undo else "POST", None if undo else {"stay": stay})
    status = 0
    if not undo and not no_wait:
        status, answer = _wait_until_empty(address, answer) if stay else _wait_until_gone(address, answer)
    if as_json:
        print_json(answer)
    else:
        click.echo(_text(answer))
    return status


def _ask(address: DaemonAddress, method: str, body: dict[str, object] | None) -> dict[str, Any]:
    from stratad.state.runtime_directory import read_administration_token

    token = read_administration_token(running_daemon(address).directory)
    return ask_json(address, Request(method, _PATH, body, {_HEADER: token}))


def _wait_until_empty(address: DaemonAddress, answer: dict[str, Any]) -> tuple[int, dict[str, Any]]:
    """Waits until no request is left, as long as an exit would wait for them."""
    end_seconds = time.monotonic() + answer["drain_seconds"]
    while answer["requests_running"] + answer["requests_waiting"] > 0:
        if time.monotonic() >= end_seconds:
            return 1, answer
        time.sleep(_PAUSE_SECONDS)
        document = get_json(address, "/status")
        decode = document["decode"] or {"requests_running": 0, "requests_waiting": 0}
        counts = {name: decode[name] for name in ("requests_running", "requests_waiting")}
        answer = {**answer, "state": document["state"], **counts}
    return 0, answer


def _wait_until_gone(address: DaemonAddress, answer: dict[str, Any]) -> tuple[int, dict[str, Any]]:
    """Waits until the daemon has taken its address back, or does not live any more."""
    from stratad.state.runtime_directory import is_running

    try:
        running = running_daemon(address)
    except DaemonError:
        return 0, {**answer, "state": "stopped", "requests_running": 0, "requests_waiting": 0}
    end_seconds = time.monotonic() + answer["drain_seconds"] + _CLOSE_SECONDS
    while is_running(running):
        if time.monotonic() >= end_seconds:
            return 1, answer
        time.sleep(_PAUSE_SECONDS)
    return 0, {**answer, "state": "stopped", "requests_running": 0, "requests_waiting": 0}


def _text(answer: dict[str, Any]) -> str:
    left = f"{answer['requests_running']} running, {answer['requests_waiting']} waiting"
    return f"state     {answer['state']}\nrequests  {left}"
