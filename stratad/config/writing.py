"""A configuration as TOML: for a child daemon that is to run with other settings than the file's."""

from __future__ import annotations

import json
from dataclasses import fields
from pathlib import Path

from stratad.config.sections import Configuration


def configuration_text(configuration: Configuration) -> str:
    """Give the configuration as a TOML document; settings that are None have no line, as in a file."""
    lines = []
    for section in fields(configuration):
        lines.append(f"[{section.name}]")
        values = getattr(configuration, section.name)
        for setting in fields(values):
            value = getattr(values, setting.name)
            if value is not None:
                lines.append(f"{setting.name} = {_toml(value)}")
    return "\n".join(lines) + "\n"


def _toml(value: object) -> str:
    # JSON's texts, numbers, booleans and lists are TOML's too; but TOML's texts take no DEL as it is.
    if isinstance(value, Path):
        value = str(value)
    if isinstance(value, tuple):
        return "[" + ", ".join(_toml(item) for item in value) + "]"
    return json.dumps(value).replace("\x7f", "\\u007f")
