"""Prompts that had to leave their slot come back from host memory: when that pays, and never with another answer."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import httpx
import pytest

from stratad.engine.engine import Engine
from stratad.engine.seating import MeasuredRates
from stratad.engine.status import EngineSettings
from stratad.metrics.registry import Metrics
from tests.serving.support.scripted_runner import RememberingRunner, ScriptedRunner
from tests.serving.support.served import LIMIT_SECONDS, MODEL, serve
from tests.serving.test_batching import Asked

MEGABYTE = 1 << 20


@contextmanager
def _engine(runner: ScriptedRunner, prompt_cache_bytes: int = 64 * MEGABYTE) -> Iterator[Engine]:
    settings = EngineSettings(64, LIMIT_SECONDS, None, 4, prompt_cache_bytes)
    engine = Engine(runner, settings, Metrics(MODEL))
    engine.start()
    runner.forget_start()
    try:
        yield engine
    finally:
        engine.close()


@pytest.fixture(autouse=True)
def copying_pays(monkeypatch: pytest.MonkeyPatch) -> None:
    """A scripted runner computes in no time: measured rates say nothing here (tests/unit/test_seating.py has them)."""
    monkeypatch.setattr(MeasuredRates, "pays", lambda self, tokens, size_bytes: tokens > 0)


def _runner(sequence_count: int = 1) -> RememberingRunner:
    runner = RememberingRunner(context_tokens=1024, sequence_count=sequence_count)
    runner.state_token_bytes = 4
    return runner


FIRST, SECOND = "a first conversation, long enough", "something else altogether, and longer"


def test_a_prompt_that_lost_its_slot_comes_back_without_being_computed() -> None:
    runner = _runner()
    with _engine(runner) as engine:
        first = Asked(engine, FIRST, 5).text()
        Asked(engine, SECOND, 5).text()
        runner.calls.clear()
        again = Asked(engine, FIRST + first + " goes on", 3)
        # The last token of an answer is never computed, so it is not held.
        assert again.cached_tokens() == 1 + len(FIRST + first) - 1
        assert sum(runner.call_sizes) == 1 + len(" goes on") + 2
        status = engine.status()
    # The start token was there for the second one, too.
    assert status.cached_tokens == 1 + len(FIRST + first)
    cache = status.prompt_cache
    assert (cache.restores, cache.restored_tokens, cache.saves) == (1, len(FIRST + first), 2)
    assert cache.lookups == 3
    assert 0 < cache.size_bytes <= cache.limit_bytes


def test_the_answer_is_the_same_with_and_without_a_cache_and_whatever_its_size() -> None:
    prompts = [f"{FIRST} {index}" for index in range(3)] + [f"{SECOND} {index}" for index in range(3)]
    with _engine(_runner(), 0) as engine:
        alone = [Asked(engine, prompt, 12).text() for prompt in prompts]
        assert engine.status().prompt_cache.saves == 0
    for limit_bytes in (MEGABYTE // 8, MEGABYTE // 2, 64 * MEGABYTE):
        for sequence_count in (1, 2):
            runner = _runner(sequence_count=sequence_count)
            runner.state_token_bytes = 64
            with _engine(runner, limit_bytes) as engine:
                for _ in range(3):
                    assert [Asked(engine, prompt, 12).text() for prompt in prompts] == alone
                assert engine.status().prompt_cache.size_bytes <= limit_bytes


def test_memory_that_cannot_be_cut_comes_back_as_a_whole_only() -> None:
    runner = _runner()
    runner.truncate_failure = RuntimeError("recurrent")
    with _engine(runner) as engine:
        first = Asked(engine, FIRST, 5).text()
        Asked(engine, SECOND, 5).text()
        assert Asked(engine, FIRST + " another way", 3).cached_tokens() == 0
        assert Asked(engine, FIRST + first + " goes on", 3).cached_tokens() == len(FIRST + first)


def test_copying_that_does_not_pay_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    runner = _runner()
    with _engine(runner) as engine:
        Asked(engine, FIRST, 5).text()
        Asked(engine, SECOND, 5).text()
        assert engine.status().prompt_cache.saves == 1
        monkeypatch.setattr(MeasuredRates, "pays", lambda self, tokens, size_bytes: False)
        # The start token is in every slot.
        assert Asked(engine, FIRST, 5).cached_tokens() == 1
        status = engine.status().prompt_cache
        assert (status.saves, status.restores) == (1, 0)


def test_a_conversation_that_goes_on_in_its_slot_is_not_copied() -> None:
    runner = _runner()
    with _engine(runner) as engine:
        text = FIRST
        for _ in range(4):
            text += Asked(engine, text, 5).text()
        assert engine.status().prompt_cache.saves == 0


def test_a_better_entry_goes_to_the_longest_unused_slot_and_leaves_the_half_suitable_one_alone() -> None:
    start, other = "the same beginning of all of them, ", "nothing of the kind, and nowhere near it"
    runner = _runner(sequence_count=2)
    with _engine(runner) as engine:
        Asked(engine, start + "and this is one end", 2).text()
        Asked(engine, other, 2).text()
        # Takes the slot of the first, which is saved, and later one that suits half.
        Asked(engine, "a third one, which has to go somewhere", 2).text()
        Asked(engine, start + "quite another end", 2).text()
        holders = [index for index, memory in enumerate(runner.memories) if _text(memory).startswith(start)]
        assert len(holders) == 1
        half_suitable = list(runner.memories[holders[0]])
        again = Asked(engine, start + "and this is one end, and on", 2)
        assert again.cached_tokens() >= 1 + len(start + "and this is one end")
        assert runner.memories[holders[0]] == half_suitable


def _text(memory: list[int]) -> str:
    return bytes(token for token in memory if token < 256).decode()


def test_an_entry_that_cannot_be_restored_is_dropped_and_the_prompt_computed() -> None:
    runner = _runner()
    with _engine(runner) as engine:
        first = Asked(engine, FIRST, 5).text()
        Asked(engine, SECOND, 5).text()
        runner.restore_failures.append(ValueError("of another model"))
        again = Asked(engine, FIRST, 5)
        assert again.end()[0] == first
        assert engine.status().prompt_cache.restores == 0
        assert engine.status().failure is None


def test_a_failed_save_ends_its_request_only_and_leaves_no_entry() -> None:
    runner = _runner()
    with _engine(runner) as engine:
        first = Asked(engine, FIRST, 5).text()
        runner.save_failures.append(RuntimeError("out of memory"))
        assert Asked(engine, SECOND, 5).end()[1].error.code == "engine_failure"  # type: ignore[union-attr]
        assert engine.status().prompt_cache.entries == 0
        assert Asked(engine, FIRST, 5).text() == first


def test_metrics_and_status_show_it() -> None:
    runner = _runner()
    with serve(runner, prompt_cache_bytes=1 << 16) as served:
        client = served.client()
        for prompt in (FIRST, SECOND, FIRST):
            client.completions.create(model=MODEL, prompt=prompt, max_tokens=2)
        text = httpx.get(served.url + "/metrics").text
        decode = httpx.get(served.url + "/status").json()["decode"]
    assert f'stratad_prompt_cache_restores_total{{model_name="{MODEL}"}} 1.0' in text
    assert f'stratad_prompt_cache_limit_bytes{{model_name="{MODEL}"}} 65536.0' in text
    assert decode["prompt_cache_limit_bytes"] == 1 << 16
    assert f'stratad_prompt_cache_bytes{{model_name="{MODEL}"}} {float(decode["prompt_cache_bytes"])}' in text
