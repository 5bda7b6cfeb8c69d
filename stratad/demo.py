"""`make demo`: the main job once, for real, on the embedded model, with its figures at the end.

Plan, start `stratad demo` as a child process, wait until it says READY on a notification socket as systemd
would, stream a completion from its HTTP API, read placement and decode figures, stop it by SIGTERM. Any step
that fails makes the exit status 1.
"""

from __future__ import annotations

import http.client
import json
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

from planner import PlanRefused, explain_plan, explain_topology, make_plan
from stratad.cli.placement_text import placement_lines
from stratad.client import Request, ask_json, opened
from stratad.daemon.main import demo_configuration
from stratad.errors import DaemonError, StratadError, render_error
from stratad.gguf.model import read_model_facts
from stratad.plan.facts import PlanOptions, machine_facts, plan_request, refusal_error, total_context_tokens
from stratad.tune.child_daemon import ChildDaemon, log_path, started_child

# The demo model continues text in the manner of Jane Austen's novels (etc/demo/corpus.py).
PROMPT = "The next morning, Elizabeth"
_MAX_TOKENS = 96
# A loaded machine with two cores may take long to import and load; a hang is what this is for.
_START_LIMIT_SECONDS = 120.0
_STOP_LIMIT_SECONDS = 60.0


@dataclass(frozen=True, slots=True)
class StreamedAnswer:
    """What came out of the stream: the text's length and the timings of its last chunk."""

    characters: int
    timings: Mapping[str, Any]


def main() -> int:
    """Runs the demo and gives the exit status."""
    try:
        _show_plan()
        with (
            tempfile.TemporaryDirectory(prefix="stratad-demo-") as name,
            started_child(Path(name), ("demo",), "`stratad demo`") as child,
        ):
            endpoint = _wait_until_ready(child, Path(name))
            answer = _stream_completion(endpoint)
            _show_figures(endpoint, answer)
            _stop(child.process)
    except StratadError as error:
        click.echo(render_error(error), err=True)
        return 1
    click.echo("demo      finished: planned, placed, verified, served and stopped cleanly")
    return 0


def _show_plan() -> None:
    configuration = demo_configuration(0)
    model = read_model_facts(configuration.model.path)
    topology = machine_facts()
    options = PlanOptions(context_tokens=total_context_tokens(configuration, model))
    try:
        plan = make_plan(topology, plan_request(model, options))
    except PlanRefused as refusal:
        raise refusal_error(refusal) from refusal
    click.echo(explain_topology(topology) + explain_plan(plan), nl=False)


def _wait_until_ready(child: ChildDaemon, folder: Path) -> str:
    """Shows the daemon's progress until it is ready; gives its address."""
    try:
        return child.wait_until_ready(_START_LIMIT_SECONDS, lambda status: click.echo(f"daemon    {status}"))
    except DaemonError as error:
        click.echo(log_path(folder).read_text(encoding="utf-8", errors="replace"), err=True)
        raise DaemonError(error.tried, error.because, remedy="its log stands above") from error


def _stream_completion(endpoint: str) -> StreamedAnswer:
    """Prints the completion as it comes."""
    body = {"prompt": PROMPT, "stream": True, "max_tokens": _MAX_TOKENS, "temperature": 0.7, "seed": 1}
    click.echo(f"request   POST {endpoint}/v1/completions")
    click.echo(f"answer    {PROMPT}", nl=False)
    characters, timings = 0, None
    try:
        with opened(
            endpoint, Request("POST", "/v1/completions", body), answer_seconds=_START_LIMIT_SECONDS
        ) as response:
            for chunk in _chunks(response):
                text = chunk["choices"][0]["text"]
                characters += len(text)
                timings = chunk.get("timings", timings)
                click.echo(text, nl=False)
    finally:
        click.echo("")
    if timings is None or characters == 0:
        raise DaemonError("streaming a completion", "the stream ended without text or without timings")
    return StreamedAnswer(characters, timings)


def _chunks(response: http.client.HTTPResponse) -> Iterator[dict[str, Any]]:
    """The chunks of an event stream up to its regular end."""
    for line in response:
        content = line.decode().removeprefix("data: ").strip()
        if content == "[DONE]":
            return
        if content:
            chunk = json.loads(content)
            if "error" in chunk:
                raise DaemonError("streaming a completion", str(chunk["error"].get("message")))
            yield chunk
    raise DaemonError("streaming a completion", "the stream broke off")


def _show_figures(endpoint: str, answer: StreamedAnswer) -> None:
    """Prints where the pages lie and how fast it went."""
    placement = ask_json(endpoint, Request("GET", "/placement"))
    for line in placement_lines(placement):
        click.echo(line)
    if placement["verdict"] == "below-limit":
        raise DaemonError("verifying placement", "too few pages lie where the plan says")
    timings = answer.timings
    click.echo(
        f"decode    {timings['predicted_n']} tokens in {timings['predicted_ms']:.0f} ms, "
        f"{timings['predicted_per_second']:.1f} tokens/s; "
        f"prompt {timings['prompt_n']} tokens in {timings['prompt_ms']:.0f} ms"
    )


def _stop(process: subprocess.Popen[bytes]) -> None:
    process.send_signal(signal.SIGTERM)
    try:
        status = process.wait(_STOP_LIMIT_SECONDS)
    except subprocess.TimeoutExpired as error:
        raise DaemonError(
            "stopping the daemon by SIGTERM", f"it ran on for {_STOP_LIMIT_SECONDS:g} s"
        ) from error
    if status != 0:
        raise DaemonError("stopping the daemon by SIGTERM", f"its exit status was {status}")


if __name__ == "__main__":
    sys.exit(main())
