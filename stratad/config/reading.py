"""Reading the configuration file: pydantic checks it against the sections, and what it finds is explained."""

from __future__ import annotations

import difflib
import json
import tomllib
from collections.abc import Mapping
from dataclasses import fields, is_dataclass, replace
from pathlib import Path
from typing import Any, get_type_hints

from pydantic import TypeAdapter, ValidationError
from pydantic_core import ErrorDetails

from stratad.config.sections import Configuration
from stratad.errors import ConfigurationError

# pydantic's names for the two findings that are not about a value.
_UNKNOWN = ("unexpected_keyword_argument", "extra_forbidden")
_MISSING = ("missing", "missing_argument")


def load_configuration(path: Path) -> Configuration:
    """The configuration in the TOML file at `path`.

    Raises:
        ConfigurationError: The file cannot be read, is not TOML (with line and column), has an unknown
            key (with the nearest known one) or a value of the wrong type or range.
    """
    try:
        document = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigurationError(
            tried=f"reading {path}",
            because=error.strerror or str(error),
            remedy="name a readable file with --config; etc/stratad.toml is a commented example",
        ) from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigurationError(
            tried=f"parsing {path} as TOML",
            because=str(error),
            remedy="correct that place; text needs quotes, and a section starts with [name]",
        ) from error
    return parse_configuration(document, path)


def parse_configuration(document: Mapping[str, Any], path: Path) -> Configuration:
    """The configuration in a parsed TOML `document`; `path` names it in errors and anchors relative paths.

    Raises:
        ConfigurationError: As `load_configuration`.
    """
    try:
        # TOML dates are the one type JSON lacks; as text they fail the type check like any other text.
        configuration = TypeAdapter(Configuration).validate_json(json.dumps(document, default=str))
    except ValidationError as error:
        # A misspelt key makes its right name missing as well; the spelling is what helps.
        problems = sorted(error.errors(), key=lambda problem: problem["type"] in _MISSING)
        raise _explained(problems[0], path) from error
    return _anchored(configuration, path.resolve().parent)


def _anchored(configuration: Configuration, folder: Path) -> Configuration:
    """The same configuration with its paths made absolute from `folder`."""
    server, keys = configuration.server, configuration.server.api_keys_file
    gpu, backend = configuration.gpu, configuration.gpu.backend_path
    return replace(
        configuration,
        model=replace(configuration.model, path=folder / configuration.model.path),
        server=server if keys is None else replace(server, api_keys_file=folder / keys),
        gpu=gpu if backend is None else replace(gpu, backend_path=folder / backend),
    )


def _explained(problem: ErrorDetails, path: Path) -> ConfigurationError:
    """One pydantic finding as an operating error that names the key and the way out."""
    # A union reports each member under a location of its own, e.g. ("placement", "lock_memory", "bool").
    known_parts = [str(part) for part in problem["loc"]][:2]
    key = ".".join(known_parts)
    tried = f"reading {key} in {path}"
    if problem["type"] in _UNKNOWN:
        return ConfigurationError(tried, because="there is no such key", remedy=_nearest_key(known_parts))
    if problem["type"] in _MISSING:
        return ConfigurationError(
            tried, because="it is missing and has no default", remedy=f"set it. {_description(known_parts)}"
        )
    return ConfigurationError(
        tried,
        because=problem["msg"][:1].lower() + problem["msg"][1:],
        values={key: json.dumps(problem["input"], default=str)},
        remedy=f"correct it, or delete the line to take the default. {_description(known_parts)}",
    )


def _nearest_key(parts: list[str]) -> str:
    """The remedy for an unknown key: the nearest known one, wherever it belongs, or all that exist there."""
    known = _known_keys()
    by_name = difflib.get_close_matches(parts[-1], [key.split(".")[-1] for key in known], n=1, cutoff=0.75)
    if by_name:
        candidates = [key for key in known if key.split(".")[-1] == by_name[0]]
        return f"did you mean {difflib.get_close_matches('.'.join(parts), candidates, n=1, cutoff=0.0)[0]}?"
    siblings = sorted(key for key in known if key.rpartition(".")[0] == ".".join(parts[:-1]))
    return f"known there: {', '.join(siblings)}"


def _known_keys() -> list[str]:
    """Every section and every key as section.key."""
    keys = []
    for section in fields(Configuration):
        keys.append(section.name)
        section_type = get_type_hints(Configuration)[section.name]
        if is_dataclass(section_type):
            keys.extend(f"{section.name}.{setting.name}" for setting in fields(section_type))
    return keys


def _description(parts: list[str]) -> str:
    """What a setting means, from its declaration; empty for a section."""
    section_type = get_type_hints(Configuration).get(parts[0])
    if len(parts) < 2 or section_type is None:
        return "The section starts with its name in brackets." if section_type else ""
    metadata = getattr(get_type_hints(section_type, include_extras=True).get(parts[1]), "__metadata__", ())
    return f"{parts[1]}: {metadata[0].description}" if metadata else ""
