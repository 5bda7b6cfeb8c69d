"""`stratactl chat`: asks the model once, or in a conversation, and says how fast it went and where pages lie."""

from __future__ import annotations

import contextlib
import json
import sys
import unicodedata
from collections.abc import Generator, Mapping
from dataclasses import dataclass, field
from typing import Any

import click

from stratad.cli.daemon_access import DaemonAddress, daemon_options, get_json, opened
from stratad.cli.output import json_option, print_json, terminal_has_colour
from stratad.client import Request
from stratad.errors import DaemonError

_HELP = "An empty line, or Ctrl-D, ends it; Ctrl-C stops an answer; /new starts over."
_INTERRUPTED_STATUS = 130


@dataclass(slots=True)
class _Answer:
    """What has come of an answer so far; `thinking` is what the model's template marks as such."""

    text: str = ""
    thinking: str = ""
    finish_reason: str | None = None
    timings: Mapping[str, Any] | None = None
    is_stopped: bool = False


@dataclass(slots=True)
class _Conversation:
    """Turns so far, and where and how to ask for the next."""

    address: DaemonAddress
    sampling: Mapping[str, object]
    messages: list[dict[str, str]] = field(default_factory=list)

    def ask(self, question: str, *, shows: bool) -> _Answer:
        """The answer to `question`, shown as it comes where asked for; both are remembered.

        Ctrl-C stops the answer. A question that got no answer at all is forgotten.
        """
        self.messages.append({"role": "user", "content": question})
        answer = _Answer()
        try:
            # Closing the connection is what cancels the request.
            with contextlib.closing(self._chunks()) as chunks:
                for chunk in chunks:
                    _take(chunk, answer, shows=shows)
        except KeyboardInterrupt:
            answer.is_stopped = True
        finally:
            if shows:
                click.echo("")
            if answer.text:
                self.messages.append({"role": "assistant", "content": answer.text})
            else:
                self.messages.pop()
        return answer

    def _chunks(self) -> Generator[dict[str, Any], None, None]:
        """The chunks of the stream up to its regular end. Raises DaemonError when it breaks off."""
        body = {"messages": self.messages, "stream": True, **self.sampling}
        request = Request("POST", "/v1/chat/completions", body)
        # A request may wait in the queue, and a long prompt takes its time: only the user's patience is a limit.
        with opened(self.address, request, answer_seconds=None) as response:
            for line in response:
                content = line.decode("utf-8", errors="replace").removeprefix("data: ").strip()
                if content == "[DONE]":
                    return
                if content:
                    yield _checked(json.loads(content))
        raise DaemonError("reading an answer", "the stream broke off", remedy="look at the daemon's log")


@click.command()
@click.argument("question", required=False)
@click.option("--system", help="What the model is told before the first question.")
@click.option("--max-tokens", type=click.IntRange(min=1), help="Longest answer.")
@click.option("--temperature", type=click.FloatRange(min=0), help="0 takes the likeliest token each time.")
@daemon_options
@json_option
def chat(
    *,
    address: DaemonAddress,
    question: str | None,
    system: str | None,
    max_tokens: int | None,
    temperature: float | None,
    as_json: bool,
) -> int:
    """Ask the model QUESTION, or talk with it when there is none.

    What is piped into the command follows the question, or is the question. The answer goes to standard output,
    how fast it went and where the arena's pages lie to standard error. Ctrl-C stops an answer.
    """
    wanted = {"max_tokens": max_tokens, "temperature": temperature}
    sampling = {name: value for name, value in wanted.items() if value is not None}
    conversation = _Conversation(address, sampling)
    if system is not None:
        conversation.messages.append({"role": "system", "content": system})
    text = _question(question)
    if text is not None:
        return _ask_once(conversation, text, as_json=as_json)
    if as_json:
        raise click.UsageError("--json answers one question: give it as an argument or by a pipe")
    return _converse(conversation)


def _question(argument: str | None) -> str | None:
    """The one question: the argument, what is piped in, or both; None for a conversation."""
    piped = "" if sys.stdin is None or sys.stdin.isatty() else sys.stdin.read().strip()
    parts = [part for part in (argument, piped) if part]
    if not parts and (argument is not None or not (sys.stdin is not None and sys.stdin.isatty())):
        raise click.UsageError("there is no question: give it as an argument or by a pipe")
    return "\n\n".join(parts) or None


def _ask_once(conversation: _Conversation, question: str, *, as_json: bool) -> int:
    answer = conversation.ask(question, shows=not as_json)
    status = get_json(conversation.address, "/status")
    if as_json:
        print_json(
            {
                "answer": answer.text,
                "thinking": answer.thinking or None,
                "finish_reason": "stopped" if answer.is_stopped else answer.finish_reason,
                "timings": answer.timings,
                "placement": _placement(status),
            }
        )
    else:
        click.echo(_figures(answer, status), err=True)
    return _INTERRUPTED_STATUS if answer.is_stopped else 0


def _converse(conversation: _Conversation) -> int:
    """Questions and answers until an empty line or the end of the input."""
    # Importing it is what gives `input` its line editing.
    with contextlib.suppress(ImportError):
        import readline  # noqa: F401
    model = get_json(conversation.address, "/status")["model"]
    click.echo(f"{model}. {_HELP}", err=True)
    beginning = list(conversation.messages)
    while True:
        try:
            question = input("> ").strip()
        except EOFError:
            click.echo("")
            return 0
        except KeyboardInterrupt:
            click.echo("")
            continue
        if not question:
            return 0
        if question == "/new":
            conversation.messages[:] = beginning
            continue
        _answer_and_go_on(conversation, question)


def _answer_and_go_on(conversation: _Conversation, question: str) -> None:
    """One turn; a refusal (a full queue, a prompt too long) ends the turn and not the conversation."""
    from stratad.cli.output import print_error

    try:
        answer = conversation.ask(question, shows=True)
        click.echo(_figures(answer, get_json(conversation.address, "/status")), err=True)
    except DaemonError as error:
        print_error(error)


def _checked(chunk: dict[str, Any]) -> dict[str, Any]:
    if "error" in chunk:
        raise DaemonError(
            "reading an answer", str(chunk["error"].get("message")), remedy="look at the daemon's log"
        )
    return chunk


def _take(chunk: Mapping[str, Any], answer: _Answer, *, shows: bool) -> None:
    answer.timings = chunk.get("timings") or answer.timings
    for choice in chunk.get("choices", ()):
        thinking = choice["delta"].get("reasoning_content") or ""
        text = choice["delta"].get("content") or ""
        if shows:
            _show(thinking, text, is_first=not answer.text, has_thought=bool(answer.thinking))
        answer.thinking += thinking
        answer.text += text
        answer.finish_reason = choice.get("finish_reason") or answer.finish_reason


def _show(thinking: str, text: str, *, is_first: bool, has_thought: bool) -> None:
    """Writes the next piece. Thinking is for people who watch: a pipe gets the answer alone."""
    is_terminal = sys.stdout.isatty()
    if thinking and is_terminal:
        shown = _shown(thinking)
        click.echo(click.style(shown, dim=True) if terminal_has_colour() else shown, nl=False)
    if text:
        if is_terminal and is_first and (has_thought or thinking):
            click.echo("\n")
        click.echo(_shown(text), nl=False)
    if text or (thinking and is_terminal):
        sys.stdout.flush()


def _shown(text: str) -> str:
    """The model's text without what could draw on a terminal; into a pipe it goes as it is."""
    if not sys.stdout.isatty():
        return text
    return "".join(one for one in text if one in "\n\t" or unicodedata.category(one) != "Cc")


def _placement(status: Mapping[str, Any]) -> dict[str, Any]:
    plan, check = status["plan"] or {}, status["placement"] or {}
    return {
        "policy": plan.get("policy"),
        "local_ratio": check.get("worst_ratio"),
        "verdict": check.get("verdict"),
    }


def _figures(answer: _Answer, status: Mapping[str, Any]) -> str:
    """Two lines: how fast, and where the pages lie."""
    timings, placement = answer.timings, _placement(status)
    if timings is None:
        speed = "stopped" if answer.is_stopped else "no figures"
    else:
        rate = timings["predicted_per_second"]
        speed = f"{timings['predicted_n']} tokens" + ("" if rate is None else f", {rate:.1f} tokens/s")
        speed += f"; prompt {timings['prompt_n']} tokens in {timings['prompt_ms']:.0f} ms"
        speed += f", {timings['cache_n']} reused" if timings["cache_n"] else ""
    ratio = placement["local_ratio"]
    where = f"policy {placement['policy']}"
    where += "" if ratio is None else f", {ratio:.1%} of the arena's pages on planned nodes"
    return f"decode    {speed}\nplacement {where}"
