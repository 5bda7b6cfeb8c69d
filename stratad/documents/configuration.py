"""docs/CONFIGURATION.md, made from the sections of the configuration."""

from __future__ import annotations

import dataclasses
import types
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from pydantic.fields import FieldInfo

from stratad.config import Configuration

_HEAD = """\
# Configuration

Generated from `stratad/config/sections.py` by `pytest tests/golden --update-golden`; do not edit.

One TOML file, `/etc/stratad/stratad.toml` for the service, `--config FILE` otherwise. Only `model.path` is needed. An
unknown key, a wrong type or a value out of range is an error at the start that names the key and the nearest known one;
nothing is taken from environment variables. `etc/stratad.toml` is the same list as a file to begin with.

`systemctl reload stratad` (SIGHUP) reads it again; [SYSTEMD.md](SYSTEMD.md#while-it-runs) says which settings count at
once and which wait for a restart.
"""
# The limits that pydantic keeps as attributes of annotated types, and how to say them.
_LIMITS = (("ge", "at least"), ("gt", "above"), ("le", "at most"), ("lt", "below"))
_PLAIN_NAMES: Mapping[object, str] = {
    str: "text",
    int: "integer",
    float: "number",
    bool: "true or false",
    Path: "path",
}


def configuration_document() -> str:
    """Give the text of docs/CONFIGURATION.md."""
    hints = get_type_hints(Configuration)
    lines = [_HEAD]
    for section in dataclasses.fields(Configuration):
        lines += _section_lines(section.name, hints[section.name])
    return "\n".join(lines)


def _section_lines(name: str, section: type) -> Iterator[str]:
    summary = (section.__doc__ or "").partition("\n")[0]
    yield f"## [{name}]\n"
    yield summary[:1].upper() + summary[1:] if not summary.startswith("`[") else _sentence(summary)
    yield ""
    yield "| key | value | default | meaning |"
    yield "|---|---|---|---|"
    hints = get_type_hints(section, include_extras=True)
    for setting in dataclasses.fields(section):
        kind, info = _unwrapped(hints[setting.name])
        described = _kind_text(kind) + _range_text(info)
        default = _default_text(setting)
        yield f"| `{setting.name}` | {_cell(described)} | {default} | {_cell(info.description or '')} |"
    yield ""


def _sentence(summary: str) -> str:
    """Give the docstring's words behind "`[section]`: " as a sentence."""
    words = summary.partition(": ")[2]
    return words[:1].upper() + words[1:]


def _unwrapped(hint: object) -> tuple[object, FieldInfo]:
    kind, *metadata = get_args(hint)
    info = next(item for item in metadata if isinstance(item, FieldInfo))
    return kind, info


def _kind_text(kind: object) -> str:
    if get_origin(kind) is Literal:
        return ", ".join(f'`"{word}"`' for word in get_args(kind))
    if get_origin(kind) in (Union, types.UnionType):
        return " or ".join(_kind_text(part) for part in get_args(kind) if part is not type(None))
    if get_origin(kind) is tuple:
        return f"list of {_kind_text(get_args(kind)[0])}"
    return _PLAIN_NAMES.get(kind) or str(getattr(kind, "__name__", kind))


def _range_text(info: FieldInfo) -> str:
    found = [
        f"{words} {_number(getattr(rule, name))}"
        for rule in info.metadata
        for name, words in _LIMITS
        if hasattr(rule, name)
    ]
    return f", {', '.join(found)}" if found else ""


def _number(value: float) -> str:
    return f"{value:,}" if isinstance(value, int) else f"{value:g}"


def _default_text(setting: dataclasses.Field[Any]) -> str:
    if setting.default is dataclasses.MISSING:
        if setting.default_factory is not dataclasses.MISSING:
            return _toml(setting.default_factory())
        return "needed"
    return "-" if setting.default is None else _toml(setting.default)


def _toml(value: object) -> str:
    if isinstance(value, bool):
        return f"`{str(value).lower()}`"
    if isinstance(value, str | Path):
        return f'`"{value}"`'
    if isinstance(value, tuple):
        return f"`[{', '.join(_toml(item).strip('`') for item in value)}]`"
    return f"`{value}`"


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")
