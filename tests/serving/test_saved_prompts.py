"""Conversations go on after a restart where they were: with scripted runners, and with the real daemon."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import openai
import pytest

from stratad.engine.engine import Engine
from stratad.engine.saved_prompts import FILE_NAME, SavedPromptsPlace
from stratad.engine.seating import MeasuredRates
from stratad.engine.status import EngineSettings
from stratad.metrics.registry import Metrics
from tests.serving.support.daemon_process import LIMIT_SECONDS as DAEMON_LIMIT_SECONDS
from tests.serving.support.daemon_process import DaemonProcess, started
from tests.serving.support.scripted_runner import RememberingRunner
from tests.serving.support.served import LIMIT_SECONDS, MODEL
from tests.serving.test_batching import Asked

MEGABYTE = 1 << 20
PROMPTS = tuple(f"conversation number {index}, long enough to be worth it" for index in range(5))


@pytest.fixture(autouse=True)
def copying_pays(monkeypatch: pytest.MonkeyPatch) -> None:
    """As in test_prompt_cache.py."""
    monkeypatch.setattr(MeasuredRates, "pays", lambda self, tokens, size_bytes: tokens > 0)


@contextmanager
def _engine(
    folder: Path,
    *,
    cache_bytes: int = MEGABYTE,
    fingerprint: str = "one",
    slots: int = 2,
    limit: int = MEGABYTE,
) -> Iterator[Engine]:
    runner = RememberingRunner(context_tokens=1024, sequence_count=slots)
    runner.state_token_bytes = 4
    place = SavedPromptsPlace(folder, fingerprint, limit)
    settings = EngineSettings(64, LIMIT_SECONDS, None, 4, cache_bytes, place)
    engine = Engine(runner, settings, Metrics(MODEL))
    engine.start()
    runner.forget_start()
    try:
        yield engine
    finally:
        engine.close()


def _talk(folder: Path) -> list[str]:
    """Five conversations with two slots; gives the answers."""
    with _engine(folder) as engine:
        return [Asked(engine, prompt, 6).text() for prompt in PROMPTS]


@pytest.mark.parametrize(("cache_bytes", "kept"), [(MEGABYTE, 5), (0, 2)])
def test_slots_and_cache_are_back_after_a_restart(tmp_path: Path, cache_bytes: int, kept: int) -> None:
    answers = _talk(tmp_path)
    with _engine(tmp_path, cache_bytes=cache_bytes) as engine:
        loaded = engine.loaded_prompts
        assert (loaded.prompts, loaded.problem) == (5, None)
        expected = [0] * (5 - kept) + [len(prompt) + 6 for prompt in PROMPTS[5 - kept :]]
        # Those in slots first: without a cache, the others take them away.
        for index in reversed(range(5)):
            again = Asked(engine, PROMPTS[index] + answers[index] + " and on", 1)
            cached = again.cached_tokens()
            assert cached == expected[index] or (
                expected[index] == 0 and cached <= 1 + len("conversation number ")
            )


def test_the_answers_after_a_restart_are_those_without_one(tmp_path: Path) -> None:
    answers = _talk(tmp_path)
    follow_ups = [prompt + answer + " and on" for prompt, answer in zip(PROMPTS, answers, strict=True)]
    fresh = tmp_path / "fresh"
    fresh.mkdir()
    with _engine(fresh) as engine:
        alone = [Asked(engine, prompt, 9).text() for prompt in follow_ups]
    with _engine(tmp_path) as engine:
        assert [Asked(engine, prompt, 9).text() for prompt in follow_ups] == alone


def test_of_another_fingerprint_nothing_comes_back(tmp_path: Path) -> None:
    _talk(tmp_path)
    with _engine(tmp_path, fingerprint="two") as engine:
        assert engine.loaded_prompts.prompts == 0
        assert "another model" in (engine.loaded_prompts.problem or "")
        assert Asked(engine, PROMPTS[0], 6).cached_tokens() == 0


def test_what_was_read_before_the_damage_counts(tmp_path: Path) -> None:
    _talk(tmp_path)
    path = tmp_path / FILE_NAME
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)
    with _engine(tmp_path) as engine:
        assert (engine.loaded_prompts.prompts, engine.loaded_prompts.problem) == (4, "an entry is damaged")
        assert Asked(engine, PROMPTS[4], 6).text()


def test_the_limit_on_disk_keeps_the_last_used(tmp_path: Path) -> None:
    answers = _talk(tmp_path)
    size_bytes = (tmp_path / FILE_NAME).stat().st_size
    with _engine(tmp_path, limit=size_bytes // 2):
        pass
    assert (tmp_path / FILE_NAME).stat().st_size <= size_bytes // 2
    with _engine(tmp_path) as engine:
        assert 0 < engine.loaded_prompts.prompts < 5
        assert Asked(engine, PROMPTS[4] + answers[4] + "!", 1).cached_tokens() == len(PROMPTS[4]) + 6


# --- The real daemon ----------------------------------------------------------------------------------

native = pytest.importorskip("stratad._native", reason="the native module is not built")

from stratad.daemon.main import demo_model_path  # noqa: E402

SETTINGS = "slots = 2\nsave_slots = true\nprompt_cache_bytes = 67108864\n"
TALE = "It is a truth universally acknowledged, that a single man in possession of a good fortune, " * 6


def _complete(daemon: DaemonProcess, prompt: str, max_tokens: int = 12) -> tuple[str, int]:
    """The greedy text, and how many tokens of the prompt were there already."""
    client = openai.OpenAI(
        base_url=daemon.endpoint + "/v1", api_key="unused", max_retries=0, timeout=DAEMON_LIMIT_SECONDS
    )
    answer = client.completions.create(model="tiny", prompt=prompt, max_tokens=max_tokens, temperature=0)
    assert answer.usage is not None
    assert answer.usage.prompt_tokens_details is not None
    return answer.choices[0].text, answer.usage.prompt_tokens_details.cached_tokens or 0


@contextmanager
def _daemon(folder: Path, settings: str = SETTINGS) -> Iterator[DaemonProcess]:
    """A daemon in a folder of its own, with the state directory of all; stopped at the end."""
    state = folder / "state"
    with started(
        Path(tempfile.mkdtemp(dir=folder)),
        demo_model_path(),
        settings=settings,
        variables={"STATE_DIRECTORY": str(state)},
    ) as process:
        process.wait_for("READY=1")
        yield process
        assert process.terminate() == 0, process.log


def _codes(daemon: DaemonProcess) -> dict[str, str]:
    reasons = httpx.get(daemon.endpoint + "/status").json()["reasons"]
    return {reason["code"]: reason["message"] for reason in reasons}


def test_a_daemon_started_again_goes_on_from_the_prompts_of_the_last_one(tmp_path: Path) -> None:
    prompts = [f"{index}. {TALE}" for index in range(4)]
    with _daemon(tmp_path) as daemon:
        first = [_complete(daemon, prompt) for prompt in prompts]
        assert "saved-prompts-restored" not in _codes(daemon)
        # Two of the four are in slots; the others come out of the cache, here too, with the same answer.
        text, cached = _complete(daemon, prompts[0])
        assert (text, cached > 100) == (first[0][0], True)
    path = tmp_path / "state" / FILE_NAME
    assert path.stat().st_mode & 0o777 == 0o600
    with _daemon(tmp_path) as daemon:
        assert "saved-prompts-restored" in _codes(daemon)
        again = [_complete(daemon, prompt) for prompt in prompts]
        assert [text for text, _ in again] == [text for text, _ in first]
        assert all(cached > 100 for _, cached in again), again
        metrics = httpx.get(daemon.endpoint + "/metrics").text
        assert "stratad_prompt_cache_restores_total" in metrics
    # Another number of slots has another memory: nothing of it is used, and that is said.
    with _daemon(tmp_path, SETTINGS.replace("slots = 2", "slots = 1")) as daemon:
        assert "another model, build, number of slots" in _codes(daemon)["saved-prompts-ignored"]
        assert _complete(daemon, prompts[3]) == (first[3][0], 0)
    path.write_bytes(path.read_bytes()[:-10])
    with _daemon(tmp_path, SETTINGS.replace("slots = 2", "slots = 1")) as daemon:
        assert "not as long" in _codes(daemon)["saved-prompts-ignored"]
        assert _complete(daemon, prompts[3]) == (first[3][0], 0)


def test_without_a_place_it_says_so_and_serves(tmp_path: Path) -> None:
    (tmp_path / "state").write_text("a file, no folder")
    with _daemon(tmp_path) as daemon:
        assert "saved-prompts-not-possible" in _codes(daemon)
        assert _complete(daemon, "Once", 2)[0]
        assert json.loads(httpx.get(daemon.endpoint + "/health").text)["status"] == "ready"
