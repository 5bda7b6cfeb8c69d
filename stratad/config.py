"""The configuration file and the environment: the only place where either is read.

The sections are frozen dataclasses; pydantic checks the file against them at this edge. Every field
carries its description, from which the configuration reference is generated.
"""

from __future__ import annotations

import difflib
import json
import os
import tempfile
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, is_dataclass, replace
from pathlib import Path
from typing import Annotated, Any, Literal, get_type_hints

from pydantic import ConfigDict, Field, TypeAdapter, ValidationError
from pydantic_core import ErrorDetails

from stratad.errors import ConfigurationError

# JSON mode of a strict adapter takes a TOML value's own type and nothing converted from it, except
# what JSON lacks: lists become tuples, text becomes a path.
_STRICT = ConfigDict(extra="forbid", strict=True)

# pydantic's names for the two findings that are not about a value.
_UNKNOWN = ("unexpected_keyword_argument", "extra_forbidden")
_MISSING = ("missing", "missing_argument")

PolicyChoice = Literal["auto", "off", "single-socket", "split", "interleave"]
Objective = Literal["decode", "prompt", "balanced"]
KernelChoice = Literal["auto", "avx512", "avx2", "ggml"]
Scope = Literal["auto", "experts", "weights"]
PlacementFallback = Literal["fail", "interleave", "single-socket", "degraded"]


@dataclass(frozen=True, slots=True)
class ModelSection:
    """`[model]`: which file to serve and how much of it at once."""

    __pydantic_config__ = _STRICT

    path: Annotated[Path, Field(description="GGUF file; a relative path counts from this file's folder.")]
    name: Annotated[
        str | None, Field(min_length=1, description="Name that clients use. Default: the file's name.")
    ] = None
    context_tokens: Annotated[
        int,
        Field(
            ge=16,
            description="Prompt and answer of one request; capped by what the model was trained for.",
        ),
    ] = 4096
    slots: Annotated[
        int,
        Field(
            ge=1,
            le=64,
            description="Requests computed side by side, each with context_tokens; fewer when memory is short.",
        ),
    ] = 4
    batch_tokens: Annotated[int, Field(ge=1, le=65536, description="Most tokens computed in one call.")] = 512
    chunk_tokens: Annotated[
        int,
        Field(
            ge=1,
            le=65536,
            description="Most prompt tokens computed between two tokens of the answers that run.",
        ),
    ] = 64
    threads: Annotated[
        int | None,
        Field(ge=1, description="Threads for what the pool does not compute. Default: the plan's workers."),
    ] = None


@dataclass(frozen=True, slots=True)
class PlacementSection:
    """`[placement]`: what the planner may choose and what happens when pages do not lie where planned."""

    __pydantic_config__ = _STRICT

    policy: Annotated[PolicyChoice, Field(description="Placement policy; auto lets the planner choose.")] = (
        "auto"
    )
    objective: Annotated[Objective, Field(description="Which speed the planner favours.")] = "decode"
    workers: Annotated[int | None, Field(ge=1, description="Pool workers. Default: the plan's.")] = None
    limit_ratio: Annotated[
        float, Field(ge=0.0, le=1.0, description="Least share of each slice's pages on its own node.")
    ] = 0.95
    fallback: Annotated[
        PlacementFallback,
        Field(description="Below the limit: fail, plan again with another policy, or serve as degraded."),
    ] = "fail"
    repair: Annotated[
        bool,
        Field(description="Move pages that lie elsewhere than planned to their node, also while serving."),
    ] = True
    spin_microseconds: Annotated[
        int, Field(ge=0, le=1_000_000, description="How long an idle worker spins before it sleeps.")
    ] = 50
    max_pool_tokens: Annotated[
        int | None,
        Field(
            ge=1,
            le=1_048_576,
            description="Largest batch that the pool computes; larger ones go to ggml. Default: any where the "
            "row kernels have panels for many tokens, else 8.",
        ),
    ] = None
    kernels: Annotated[
        KernelChoice,
        Field(
            description="Row kernels: the best this CPU has (auto), one instruction set, or ggml's dot products."
        ),
    ] = "auto"
    lock_memory: Annotated[
        bool | Literal["auto"],
        Field(
            description='true, false or "auto": lock the arena in RAM; auto does when the limit allows it.'
        ),
    ] = "auto"
    pin_check_seconds: Annotated[
        float, Field(ge=0, description="Time between checks that threads are on their CPUs; 0 never checks.")
    ] = 2.0
    test_slices: Annotated[
        int | None, Field(ge=1, le=64, description="Test mode: this many slices without placing anything.")
    ] = None


@dataclass(frozen=True, slots=True)
class ArenaSection:
    """`[arena]`: what lies in placed memory and is computed by the pool."""

    __pydantic_config__ = _STRICT

    scope: Annotated[
        Scope,
        Field(
            description="experts, or weights: attention, router and output head as well; "
            "auto takes weights when no GPU is in use."
        ),
    ] = "auto"


@dataclass(frozen=True, slots=True)
class ServerSection:
    """`[server]`: where it listens and how much it accepts."""

    __pydantic_config__ = _STRICT

    host: Annotated[str, Field(min_length=1, description="Address to listen on.")] = "127.0.0.1"
    port: Annotated[int, Field(ge=0, le=65535, description="Port; 0 takes any free one.")] = 8090
    unix_socket: Annotated[
        Path | None, Field(description="Listen on this socket instead of host and port.")
    ] = None
    allowed_hosts: Annotated[
        tuple[str, ...],
        Field(description="Host names, besides loopback's, that a request may be addressed to."),
    ] = ()
    max_queue: Annotated[
        int, Field(ge=0, le=100_000, description="Requests that may wait; more get 429.")
    ] = 32
    max_body_bytes: Annotated[int, Field(ge=1024, description="Largest request body; more gets 413.")] = (
        8 * 1024**2
    )
    request_timeout_seconds: Annotated[
        float, Field(gt=0, description="A request, waiting included, ends with an error after this.")
    ] = 3600.0
    max_tokens_default: Annotated[
        int | None,
        Field(ge=1, description="Answer length when a request names none. Default: to the context's end."),
    ] = None
    drain_seconds: Annotated[
        float, Field(ge=0, description="How long SIGTERM lets running requests finish.")
    ] = 30.0
    runtime_directory: Annotated[
        Path | None,
        Field(description="Where endpoint.json and plan.json lie. Default: systemd's, else one per user."),
    ] = None


@dataclass(frozen=True, slots=True)
class SystemdSection:
    """`[systemd]`: how the daemon talks to its supervisor."""

    __pydantic_config__ = _STRICT

    load_extension_seconds: Annotated[
        float, Field(ge=1, description="Every step of loading asks systemd for this much more time.")
    ] = 120.0
    stall_seconds: Annotated[
        float,
        Field(ge=1, description="A request without a new step for this long stops the watchdog's pings."),
    ] = 120.0


@dataclass(frozen=True, slots=True)
class MetricsSection:
    """`[metrics]`: what is measured while running."""

    __pydantic_config__ = _STRICT

    placement_check_seconds: Annotated[
        float, Field(ge=0, description="Time between checks of page placement; 0 checks at the start only.")
    ] = 60.0
    placement_sample_pages: Annotated[
        int, Field(ge=1, le=1_000_000, description="Pages of each slice that one check looks at.")
    ] = 4096


@dataclass(frozen=True, slots=True)
class Configuration:
    """Everything the operator has set, with defaults filled in."""

    __pydantic_config__ = _STRICT

    model: ModelSection
    placement: PlacementSection = field(default_factory=PlacementSection)
    arena: ArenaSection = field(default_factory=ArenaSection)
    server: ServerSection = field(default_factory=ServerSection)
    systemd: SystemdSection = field(default_factory=SystemdSection)
    metrics: MetricsSection = field(default_factory=MetricsSection)


@dataclass(frozen=True, slots=True)
class Environment:
    """What the environment tells the daemon; fields are None where it says nothing.

    `watchdog_microseconds` is None as well when systemd set it for another process (WATCHDOG_PID).
    `plan_path` names the plan that `stratactl apply` wrote; the unit's drop-in sets it (STRATAD_PLAN).
    """

    notify_socket: str | None = None
    watchdog_microseconds: int | None = None
    is_journal: bool = False
    runtime_directory: Path | None = None
    credentials_directory: Path | None = None
    plan_path: Path | None = None
    user_runtime_directory: Path | None = None
    temporary_directory: Path = Path("/tmp")


def read_environment(
    variables: Mapping[str, str] | None = None, process_id: int | None = None
) -> Environment:
    """The environment as the daemon understands it; tests pass `variables` and `process_id`.

    Source: sd_notify(3), sd_watchdog_enabled(3), systemd.exec(5) for the variables.
    """
    values = os.environ if variables is None else variables
    runtime = values.get("RUNTIME_DIRECTORY", "").split(":")[0]
    return Environment(
        notify_socket=values.get("NOTIFY_SOCKET") or None,
        watchdog_microseconds=_watchdog_microseconds(
            values, os.getpid() if process_id is None else process_id
        ),
        is_journal="JOURNAL_STREAM" in values,
        runtime_directory=Path(runtime) if runtime else None,
        credentials_directory=_optional_path(values.get("CREDENTIALS_DIRECTORY")),
        plan_path=_optional_path(values.get("STRATAD_PLAN")),
        user_runtime_directory=_optional_path(values.get("XDG_RUNTIME_DIR")),
        temporary_directory=Path(values.get("TMPDIR") or tempfile.gettempdir()),
    )


def child_environment(**changes: str) -> dict[str, str]:
    """The process's own variables with `changes`, for a child process."""
    return {**os.environ, **changes}


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
    """The same configuration with its model path made absolute from `folder`."""
    return replace(configuration, model=replace(configuration.model, path=folder / configuration.model.path))


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


def _watchdog_microseconds(values: Mapping[str, str], process_id: int) -> int | None:
    text = values.get("WATCHDOG_USEC", "")
    is_ours = values.get("WATCHDOG_PID", str(process_id)) == str(process_id)
    return int(text) if text.isdigit() and int(text) > 0 and is_ours else None


def _optional_path(text: str | None) -> Path | None:
    return Path(text) if text else None
