"""The real thing: every trial is a daemon of its own, started afresh, asked, and gone before the next one starts."""

from __future__ import annotations

import contextlib
import hashlib
import os
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import Path
from typing import Any

from planner import plan_to_json
from stratad.client import Request, ask_json
from stratad.config import (
    Configuration,
    GpuSection,
    MetricsSection,
    ModelSection,
    PlacementSection,
    ServerSection,
)
from stratad.config.writing import configuration_text
from stratad.errors import DaemonError, one_line
from stratad.gguf.model import ModelFacts
from stratad.gpu.expert_profile import FILE_NAME, read_profile
from stratad.state.recorded import BENCH_FILE_NAME
from stratad.tune.arms import PlannedArm
from stratad.tune.child_daemon import (
    ChildDaemon,
    log_path,
    runtime_directory,
    started_child,
    state_directory,
)
from stratad.tune.prompts import WARM_UP, Questions
from stratad.tune.trial import ArmFailed, Trial

# A model of several hundred gigabytes takes minutes to place and fill.
START_LIMIT_SECONDS = 1800.0
ANSWER_LIMIT_SECONDS = 1800.0
_WARM_UP_TOKENS = 16
_LOG_LINES = 6
_READ_BYTES = 1 << 24


class PageCache(StrEnum):
    """What of the model file lies in the page cache when an arm starts: nothing, or all that fits."""

    DROP = "drop"
    WARM = "warm"


@dataclass(frozen=True, slots=True)
class Setting:
    """What all trials have in common: the configuration, the model's files, the questions and the caches' states.

    `expert_profile` is what every start fills a GPU's cache by, as the service has recorded it; None without one. The
    cache is frozen then: experts that come and go would make starts unlike, and change the last bits of answers.
    `bench_record` is the service's bench.json, whose limits of batches every start takes.
    """

    configuration: Configuration
    model: ModelFacts
    questions: Questions
    page_cache: PageCache
    expert_profile: bytes | None = None
    bench_record: bytes | None = None


class DaemonEngine:
    """`TrialEngine` of this machine. Nothing of a trial is left when it has ended, however it ended."""

    def __init__(self, setting: Setting, arms: tuple[PlannedArm, ...]) -> None:
        self._setting = setting
        self._arms = {arm.name: arm for arm in arms}

    def try_arm(self, arm: str) -> Trial:
        """One fresh start. Raises ArmFailed with the daemon's own words."""
        prepare_page_cache(self._setting.model.paths, self._setting.page_cache)
        with tempfile.TemporaryDirectory(prefix="stratad-tune-") as name:
            folder = Path(name)
            try:
                with started_daemon(folder, self._arms[arm], self._setting) as child:
                    endpoint = child.wait_until_ready(START_LIMIT_SECONDS)
                    return _measured(endpoint, self._setting)
            except (DaemonError, OSError) as error:
                because = error.because if isinstance(error, DaemonError) else str(error)
                raise ArmFailed(f"{because}{_last_words(folder)}") from error


def trial_configuration(
    configuration: Configuration, arm: PlannedArm, folder: Path, *, is_cache_frozen: bool = False
) -> Configuration:
    """Give the child's settings: the user's, but for the arm's policy, its own address, and nothing that changes it.

    The plan itself goes in by STRATAD_PLAN, as `stratactl apply` would have left it. Pages that do not lie where the
    arm wants them, and a GPU that fails, fail the trial instead of making it another arm's.
    """
    placement: PlacementSection = replace(
        configuration.placement, policy=arm.plan.policy.value, workers=None, fallback="fail"
    )
    # Nothing of the user's server: its keys, addresses and limits are for its clients.
    server = ServerSection(
        port=0,
        drain_seconds=1.0,
        request_timeout_seconds=ANSWER_LIMIT_SECONDS,
        runtime_directory=runtime_directory(folder),
    )
    # Prompts saved by one start would be the next one's answer out of memory.
    model: ModelSection = replace(configuration.model, save_slots=False)
    metrics: MetricsSection = replace(configuration.metrics, placement_check_seconds=0.0)
    gpu: GpuSection = replace(
        configuration.gpu, on_failure="exit", freeze_cache=configuration.gpu.freeze_cache or is_cache_frozen
    )
    return replace(configuration, model=model, placement=placement, gpu=gpu, server=server, metrics=metrics)


def prepare_page_cache(paths: tuple[Path, ...], state: PageCache) -> None:
    """Brings the model files' page cache into the same state before every start: gone, or read once."""
    for path in paths:
        with path.open("rb", buffering=0) as file:
            if state is PageCache.DROP:
                os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
            else:
                while file.read(_READ_BYTES):
                    pass


def recorded_profile(state_directory: Path, model: ModelFacts) -> bytes | None:
    """Give the expert profile that the service has recorded of this model.

    None without one, where this user may not read it, and where it is of another model or format: a frozen cache
    would then hold whatever experts come first.
    """
    path = state_directory / FILE_NAME
    scores, _ = read_profile(path, model)
    return _recorded(path) if scores else None


def recorded_bench(state_directory: Path) -> bytes | None:
    """Give what `stratactl bench` recorded; None without it, or where this user may not read it."""
    return _recorded(state_directory / BENCH_FILE_NAME)


def _recorded(path: Path) -> bytes | None:
    try:
        return path.read_bytes()
    except OSError:
        return None


@contextlib.contextmanager
def started_daemon(folder: Path, arm: PlannedArm, setting: Setting) -> Iterator[ChildDaemon]:
    """The arm's daemon; it is gone at the end, whatever happens, and has written into `folder` only."""
    plan_path, config_path = folder / "plan.json", folder / "stratad.toml"
    plan_path.write_text(plan_to_json(arm.plan), encoding="utf-8")
    settings = trial_configuration(
        setting.configuration, arm, folder, is_cache_frozen=setting.expert_profile is not None
    )
    config_path.write_text(configuration_text(settings), encoding="utf-8")
    _fill_state_directory(state_directory(folder), setting)
    with started_child(
        folder, ("--config", str(config_path)), "the arm", {"STRATAD_PLAN": str(plan_path)}
    ) as child:
        yield child


def _fill_state_directory(state: Path, setting: Setting) -> None:
    """A start's own: it saves the profile when it ends, which must change neither the next start nor the service."""
    # The limits of batches that the service has: they are part of what is compared.
    recorded = {BENCH_FILE_NAME: setting.bench_record, FILE_NAME: setting.expert_profile}
    for name, content in recorded.items():
        if content is not None:
            state.mkdir(exist_ok=True)
            (state / name).write_bytes(content)


def _measured(endpoint: str, setting: Setting) -> Trial:
    _answer(endpoint, WARM_UP, _WARM_UP_TOKENS)
    answers = [
        _answer(endpoint, prompt, setting.questions.answer_tokens) for prompt in setting.questions.prompts
    ]
    timings = [answer["timings"] for answer in answers]
    # The first token falls out of the prompt: one step less than tokens.
    steps = sum(timing["predicted_n"] - 1 for timing in timings)
    decode_seconds = sum(timing["predicted_ms"] for timing in timings) / 1000
    prompt_seconds = sum(timing["prompt_ms"] for timing in timings) / 1000
    prompt_tokens = sum(timing["prompt_n"] for timing in timings)
    if steps < 1 or decode_seconds <= 0 or prompt_seconds <= 0 or prompt_tokens < 1:
        raise DaemonError("measuring the arm", "the answers end at once: there is nothing to measure")
    text = "\x00".join(answer["choices"][0]["text"] for answer in answers)
    placement = ask_json(endpoint, Request("GET", "/placement"))
    return Trial(
        decode_tokens_per_second=steps / decode_seconds,
        prompt_tokens_per_second=prompt_tokens / prompt_seconds,
        local_ratio=placement["worst_ratio"],
        answer_digest=hashlib.sha256(text.encode()).hexdigest()[:16],
        cached_tokens=sum(timing["cache_n"] for timing in timings),
        decode_steps=steps,
    )


def _answer(endpoint: str, prompt: str, token_count: int) -> Mapping[str, Any]:
    body = {"prompt": prompt, "max_tokens": token_count, "temperature": 0, "seed": 1}
    request = Request("POST", "/v1/completions", body)
    return ask_json(endpoint, request, answer_seconds=ANSWER_LIMIT_SECONDS)


def _last_words(folder: Path) -> str:
    """The end of the daemon's log, on one line."""
    try:
        lines = log_path(folder).read_text(encoding="utf-8", errors="replace").split("\n")
    except OSError:
        return ""
    said = " / ".join(one_line(line.strip()) for line in lines if line.strip()[:1] not in ("", "|"))
    words = said.split(" / ")[-_LOG_LINES:]
    return f"; its last words: {' / '.join(words)}" if said else ""
