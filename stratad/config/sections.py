"""The sections of the configuration file.

Frozen dataclasses; every field carries its description, from which the configuration reference is generated.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Literal

from pydantic import ConfigDict, Field

# JSON mode of a strict adapter takes a TOML value's own type and nothing converted from it, except
# what JSON lacks: lists become tuples, text becomes a path.
_STRICT = ConfigDict(extra="forbid", strict=True)

PolicyChoice = Literal["auto", "off", "single-socket", "split", "interleave"]
Objective = Literal["decode", "prompt", "balanced"]
KernelChoice = Literal["auto", "avx512", "avx2", "ggml"]
Scope = Literal["auto", "experts", "weights"]
GpuMode = Literal["auto", "off", "on"]
DeviceFailure = Literal["exit", "cpu"]
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
    prompt_cache_bytes: Annotated[
        int | None,
        Field(
            ge=0,
            description="Host memory for prompts that had to leave their slot; 0 keeps none. "
            "Default: an eighth of what is left beside weights and slots, at most 8 GiB.",
        ),
    ] = None
    save_slots: Annotated[
        bool,
        Field(description="Save what slots and prompt cache hold when the daemon stops, for its next start."),
    ] = False
    save_slots_bytes: Annotated[
        int, Field(ge=0, description="Most bytes of disk that they take; the last used come first.")
    ] = 1024**3
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
            description="Largest batch that the pool computes; larger ones go to ggml. Default: what "
            "`stratactl bench` measured here, else any where the row kernels have panels for many tokens, else 8.",
        ),
    ] = None
    panel_tokens: Annotated[
        int | None,
        Field(
            ge=1,
            le=1_048_576,
            description="From how many tokens of one expert on its rows are multiplied in panels. Default: what "
            "`stratactl bench` measured here, else 8.",
        ),
    ] = None
    tile_tokens: Annotated[
        int | None,
        Field(
            ge=0,
            le=1_048_576,
            description="From how many tokens of one expert on tiles (AMX) take the place of panels; 0 for never. "
            "Default: what `stratactl bench` measured here, else never.",
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
class GpuSection:
    """`[gpu]`: what is computed on GPUs, and how their memory is used."""

    __pydantic_config__ = _STRICT

    mode: Annotated[
        GpuMode,
        Field(
            description="auto: everything but the experts on the GPUs that a backend offers; off: CPU alone; "
            "on: refuse to start without a GPU."
        ),
    ] = "auto"
    backend_path: Annotated[
        Path | None,
        Field(
            description="ggml backend module, or a folder of them; a relative path counts from this file's "
            "folder. Default: those that were built with stratad."
        ),
    ] = None
    pin_memory: Annotated[
        bool,
        Field(description="Register the arena with the GPU's runtime, which then reads weights in place."),
    ] = True
    devices: Annotated[
        tuple[str, ...],
        Field(description="Names of the GPUs to use, as ggml gives them. Default: all."),
    ] = ()
    layers: Annotated[
        int | None,
        Field(ge=0, le=10_000, description="Layers on the GPUs, the last ones first. Default: all."),
    ] = None
    vram_reserve_bytes: Annotated[
        int, Field(ge=0, description="Memory of each GPU that the expert cache leaves free.")
    ] = 1024**3
    cache: Annotated[
        int | Literal["auto", "off"],
        Field(
            description='Bytes of each GPU for hot experts; "auto": all that is free beside the reserve; "off".'
        ),
    ] = "auto"
    freeze_cache: Annotated[
        bool, Field(description="Fill the cache at the start and never change it, for benchmarks.")
    ] = False
    prefill_threshold: Annotated[
        int | Literal["auto"],
        Field(
            description='Calls of more tokens have their experts computed on the GPU; "auto": measured at start.'
        ),
    ] = "auto"
    on_failure: Annotated[
        DeviceFailure,
        Field(
            description="When a GPU fails: exit for the supervisor to restart, or serve on with the cpu alone."
        ),
    ] = "exit"


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
    api_keys_file: Annotated[
        Path | None,
        Field(
            description="File with one API key a line; with it, or systemd's credential, clients need a key. "
            "A relative path counts from this file's folder."
        ),
    ] = None
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
        float, Field(ge=0, description="How long SIGTERM and a drain let running requests finish.")
    ] = 30.0
    runtime_directory: Annotated[
        Path | None,
        Field(description="Where endpoint.json and plan.json lie. Default: systemd's, else one per user."),
    ] = None
    state_directory: Annotated[
        Path | None,
        Field(description="Where prompts are saved over a restart (model.save_slots). Default: systemd's."),
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
    need_key: Annotated[
        bool, Field(description="Where clients need an API key, scrapers of /metrics need one, too.")
    ] = True


@dataclass(frozen=True, slots=True)
class Configuration:
    """Everything the operator has set, with defaults filled in."""

    __pydantic_config__ = _STRICT

    model: ModelSection
    placement: PlacementSection = field(default_factory=PlacementSection)
    arena: ArenaSection = field(default_factory=ArenaSection)
    gpu: GpuSection = field(default_factory=GpuSection)
    server: ServerSection = field(default_factory=ServerSection)
    systemd: SystemdSection = field(default_factory=SystemdSection)
    metrics: MetricsSection = field(default_factory=MetricsSection)
