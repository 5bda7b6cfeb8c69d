"""Looks at the daemon as text: a frame that fits a terminal, one line for a log, one document for a program."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import click

from planner.quantity import format_bytes
from stratad.cli.watch_look import Difference, Look, Progress, ratio

# A part of what the daemon says, as JSON values.
Document = Mapping[str, Any]

LABEL_COLUMNS = 10
_BAR_COLUMNS = 20
# No terminal is as small; what does not fit is cut off.
_FEWEST_ROWS, _FEWEST_COLUMNS = 4, 30

_STATE_COLOURS = {"ready": "green", "failed": "red", "unreachable": "red"}
_EFFECT_ORDER = {"rejects": 0, "warns": 1, "informs": 2, "chooses": 3}


@dataclass(frozen=True, slots=True)
class Terminal:
    """What the terminal can show."""

    columns: int
    rows: int
    has_colour: bool = False
    has_unicode: bool = True

    def style(self, text: str, colour: str | None) -> str:
        """The text in a colour, where there are colours."""
        return click.style(text, fg=colour) if self.has_colour and colour else text

    def cut(self, text: str) -> str:
        """The text as far as it fits a line."""
        mark = "…" if self.has_unicode else "~"
        return text if len(text) <= self.columns else text[: self.columns - 1] + mark


def frame(
    looks: Sequence[Look], error: str | None, clock: str, endpoint: str, terminal: Terminal
) -> list[str]:
    """The whole view, as many lines as fit: `looks` oldest first, `error` why the daemon does not answer now."""
    terminal = Terminal(
        max(_FEWEST_COLUMNS, terminal.columns),
        max(_FEWEST_ROWS, terminal.rows),
        terminal.has_colour,
        terminal.has_unicode,
    )
    if not looks or error is not None:
        last = looks[-1] if looks else None
        return list(_unreachable(last, error or "", clock, terminal))[: terminal.rows]
    later = looks[-1]
    difference = Difference(looks[-2] if len(looks) > 1 else None, later)
    lines = [_title(later.status, clock, endpoint, terminal)]
    body = list(_body(later, difference, looks, terminal))
    reasons = list(_reasons(later.status["reasons"], terminal))
    room = terminal.rows - len(lines) - len(body)
    lines += [terminal.cut(line) for line in body]
    lines += _fitting(reasons, room, terminal)
    return lines[: terminal.rows]


def _title(status: Document, clock: str, endpoint: str, terminal: Terminal) -> str:
    state = status["state"]
    left = f"stratad   {status['model']}: "
    right = f"  {endpoint}  {clock}"
    text = terminal.cut(f"{left}{state}")
    gap = terminal.columns - len(text) - len(right)
    shown = text.replace(f": {state}", f": {terminal.style(state, _STATE_COLOURS.get(state, 'yellow'))}")
    return shown + (" " * gap + right if gap >= 0 else "")


def _unreachable(last: Look | None, error: str, clock: str, terminal: Terminal) -> Iterator[str]:
    yield terminal.style(terminal.cut(f"stratad   not reachable  {clock}"), "red")
    yield from _wrapped("because", error, terminal)
    if last is not None:
        yield terminal.cut(_labelled("before", f"{last.status['model']}: {last.status['state']}"))
    yield _labelled("", "asking again; Ctrl-C ends")


def _body(later: Look, difference: Difference, looks: Sequence[Look], terminal: Terminal) -> Iterator[str]:
    status, progress = later.status, difference.progress()
    if status["plan"] is not None:
        yield _labelled("plan", f"{status['plan']['policy']}  (fingerprint {status['plan']['fingerprint']})")
    if status["state"] == "loading":
        yield from _loading(status, progress, terminal)
    if status["decode"] is not None:
        yield from _serving(later, progress, looks, terminal)
        yield ""
        yield from _table(
            ("slice", "node", "local", "wait", "drain", "read/s", "workers"),
            [
                (
                    row.slice_index,
                    row.nodes,
                    _percent(row.local_ratio),
                    _percent(row.wait_ratio),
                    _percent(row.drain_ratio),
                    _bytes(row.read_bytes_per_second),
                    "-" if row.workers is None else str(row.workers),
                )
                for row in difference.slices()
            ],
            terminal.rows // 3,
        )
        yield from _gpus(difference, terminal)
    nodes = [
        (row.node_id, _bytes(row.arena_bytes), _bytes(row.available_bytes), _bytes(row.total_bytes))
        for row in difference.nodes()
    ]
    yield ""
    yield from _table(("node", "arena", "available", "in all"), nodes, terminal.rows // 4)
    if status["placement"] is not None:
        yield ""
        yield _checked(status["placement"])


def _gpus(difference: Difference, terminal: Terminal) -> Iterator[str]:
    rows = [
        (
            row.gpu,
            _percent(row.hit_ratio),
            _percent(row.total_hit_ratio),
            f"{row.resident_experts} of {row.slots}" if row.slots else "-",
            _percent(row.wait_ratio),
            _percent(row.pool_ratio),
        )
        for row in difference.gpus()
    ]
    if rows:
        yield ""
        yield from _table(
            ("gpu", "VRAM hits", "in all", "experts", "wait", "pool"), rows, max(3, terminal.rows // 6)
        )


def _loading(status: Document, progress: Progress, terminal: Terminal) -> Iterator[str]:
    done = status["loaded_ratio"]
    left = ratio(1.0 - done, progress.loaded_rate)
    rest = "" if left is None else f", about {_duration(left)} left"
    yield _labelled("loading", f"{_bar(done, terminal)} {done:.0%}  {status['stage']}{rest}")


def _serving(later: Look, progress: Progress, looks: Sequence[Look], terminal: Terminal) -> Iterator[str]:
    decode = later.status["decode"]
    yield _labelled("decode", _decode_text(progress, decode) + "  " + _spark(looks, terminal))
    prompt = f"{_number(progress.prompt_rate)} tokens/s computed"
    if progress.reused_ratio is not None:
        prompt += f", {progress.reused_ratio:.0%} of prompts reused"
    yield _labelled("prompts", prompt)
    running, slots = decode["requests_running"], decode["slots"]
    capacity = later.value("stratad_queue_capacity")
    of_capacity = "" if capacity is None else f" of {capacity:.0f}"
    usage = _percent(later.value("stratad_kv_cache_usage_ratio"))
    yield _labelled(
        "slots",
        f"{_bar(running / slots, terminal, min(slots, _BAR_COLUMNS))} {running} of {slots} running, "
        f"{decode['requests_waiting']}{of_capacity} waiting, KV memory {usage}",
    )
    if progress.decode_share is not None and progress.prompt_share is not None:
        rest = max(0.0, 1.0 - progress.decode_share - progress.prompt_share)
        yield _labelled(
            "time",
            f"decode {progress.decode_share:.0%}, prompts {progress.prompt_share:.0%}, sampling and idle {rest:.0%}",
        )


def _decode_text(progress: Progress, decode: Document) -> str:
    if progress.tokens_rate is None:
        return "one look more"
    if progress.step_seconds is None:
        timings = decode["last_timings"]
        last = timings["predicted_per_second"] if timings else None
        return "idle" if last is None else f"idle; the last answer came at {last:.1f} tokens/s"
    return (
        f"{progress.tokens_rate:.1f} tokens/s, {_number(progress.steps_rate)} steps/s, "
        f"{progress.step_seconds * 1000:.1f} ms a step"
    )


def _spark(looks: Sequence[Look], terminal: Terminal) -> str:
    """Tokens a second over the looks so far, the newest at the right."""
    marks = "▁▂▃▄▅▆▇█" if terminal.has_unicode else "_.-=+*#@"
    rates = [
        Difference(earlier, later).rate("stratad_generation_tokens_total") or 0.0
        for earlier, later in itertools.pairwise(looks)
    ]
    # "decode    54.1 tokens/s, 27.0 steps/s, 18.5 ms a step  " stands before it.
    rates = rates[-max(0, terminal.columns - 60) :] if terminal.columns > 60 else []
    most = max(rates, default=0.0)
    return "".join(marks[round(rate / most * (len(marks) - 1))] for rate in rates) if most > 0 else ""


def _checked(placement: Document) -> str:
    worst = placement["worst_ratio"]
    numbers = "" if worst is None else f", worst {worst:.1%}, limit {placement['limit_ratio']:.1%}"
    return _labelled("checked", f"{_duration(placement['age_seconds'])} ago: {placement['verdict']}{numbers}")


def _reasons(reasons: Iterable[Document], terminal: Terminal) -> Iterator[list[str]]:
    """Each reason as its lines, the worst first."""
    for reason in sorted(reasons, key=lambda one: _EFFECT_ORDER.get(one["effect"], 9)):
        is_bad = reason["effect"] in ("warns", "rejects")
        lines = list(_wrapped(reason["effect"], f"{reason['code']}: {reason['message']}", terminal))
        if is_bad and reason["remedy"]:
            lines += _wrapped("", f"remedy: {reason['remedy']}", terminal)
        if is_bad:
            lines[0] = terminal.style(lines[0][:LABEL_COLUMNS], "yellow") + lines[0][LABEL_COLUMNS:]
        yield lines


def _fitting(reasons: list[list[str]], room: int, terminal: Terminal) -> list[str]:
    """As many reasons as there is room for, after an empty line, and how many are left."""
    lines: list[str] = []
    for index, reason in enumerate(reasons):
        is_last = index == len(reasons) - 1
        # One line above, and one below for what is left.
        if 1 + len(lines) + len(reason) + (not is_last) > room:
            if 1 + len(lines) + 2 <= room:
                # Its first line, which has the code, is better than nothing.
                lines.append(reason[0])
            lines.append(terminal.cut(_labelled("", f"{len(reasons) - index} more: `stratactl status`")))
            break
        lines += reason
    return ["", *lines] if lines and room > 1 else []


def _wrapped(label: str, text: str, terminal: Terminal) -> Iterator[str]:
    import textwrap

    width = terminal.columns - LABEL_COLUMNS
    for index, part in enumerate(textwrap.wrap(text, width, break_on_hyphens=False) or [""]):
        yield _labelled(label if index == 0 else "", part)


def _table(heads: tuple[str, ...], rows: Sequence[tuple[str, ...]], most_rows: int) -> Iterator[str]:
    """Columns at fixed places; rows beyond `most_rows` are counted, not shown."""
    if not rows:
        return
    widths = [max(len(head), *(len(row[index]) for row in rows)) for index, head in enumerate(heads)]
    widths[0] = max(widths[0], LABEL_COLUMNS - 2)
    most_rows = max(1, most_rows)
    shown = rows if len(rows) <= most_rows else rows[: most_rows - 1] or rows[:1]
    for row in (heads, *shown):
        yield "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
    if len(shown) < len(rows):
        yield _labelled("", f"{len(rows) - len(shown)} more")


def plain_line(looks: Sequence[Look], error: str | None, clock: str) -> str:
    """One look as one line, for files and pipes."""
    if error is not None:
        return f"{clock} unreachable {error}"
    later = looks[-1]
    status = later.status
    parts = [clock, status["state"]]
    if status["state"] == "loading":
        parts.append(f"stage={status['stage'].replace(' ', '-')} loaded={status['loaded_ratio']:.0%}")
    if status["decode"] is not None:
        difference = Difference(looks[-2] if len(looks) > 1 else None, later)
        progress, slices = difference.progress(), list(difference.slices())
        parts += [
            f"tokens/s={_number(progress.tokens_rate)}",
            f"prompt-tokens/s={_number(progress.prompt_rate)}",
            f"running={status['decode']['requests_running']}/{status['decode']['slots']}",
            f"waiting={status['decode']['requests_waiting']}",
            f"kv={_percent(later.value('stratad_kv_cache_usage_ratio'), gap='')}",
            f"wait={_percent(_most(row.wait_ratio for row in slices), gap='')}",
            f"drain={_percent(_most(row.drain_ratio for row in slices), gap='')}",
        ]
        parts += [f"{row.gpu}-hits={_percent(row.hit_ratio, gap='')}" for row in difference.gpus()]
    if status["placement"] is not None:
        parts.append(f"local={_percent(status['placement']['worst_ratio'], gap='')}")
    warnings = sorted({reason["code"] for reason in status["reasons"] if reason["effect"] == "warns"})
    if warnings:
        parts.append(f"warnings={','.join(warnings)}")
    return " ".join(parts)


def document(looks: Sequence[Look], time: str) -> dict[str, object]:
    """One look as JSON values: the daemon's status, and what happened since the look before."""
    later = looks[-1]
    difference = Difference(looks[-2] if len(looks) > 1 else None, later)
    return {
        "time": time,
        "elapsed_seconds": difference.elapsed_seconds,
        "progress": asdict(difference.progress()),
        "slices": [asdict(row) for row in difference.slices()],
        "gpus": [asdict(row) for row in difference.gpus()],
        "nodes": [asdict(row) for row in difference.nodes()],
        "status": later.status,
    }


def _labelled(label: str, text: str) -> str:
    return f"{label:<{LABEL_COLUMNS}}{text}".rstrip()


def _bar(share: float, terminal: Terminal, columns: int = _BAR_COLUMNS) -> str:
    full, empty = ("█", "░") if terminal.has_unicode else ("#", ".")
    filled = min(columns, round(share * columns))
    return full * filled + empty * (columns - filled)


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.1f}"


def _percent(share: float | None, gap: str = " ") -> str:
    return "-" if share is None else f"{share * 100:.1f}{gap}%"


def _bytes(size: float | None) -> str:
    return "-" if size is None else format_bytes(round(size))


def _duration(seconds: float) -> str:
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"


def _most(values: Iterable[float | None]) -> float | None:
    return max((value for value in values if value is not None), default=None)
