"""The engine without HTTP: start, failures, progress for the watchdog, totals."""

from __future__ import annotations

import queue
from dataclasses import dataclass, field

import pytest

from stratad.engine.engine import Engine
from stratad.engine.generation import (
    EngineFailure,
    Event,
    Failed,
    Finished,
    GenerationRequest,
    NotAccepting,
    PromptTooLong,
    TextPiece,
    Timings,
)
from stratad.engine.status import EngineSettings
from stratad.runner.protocol import SamplingParameters
from tests.serving.support.scripted_runner import ScriptedRunner
from tests.serving.support.served import wait_until

LIMIT_SECONDS = 20.0


@dataclass(slots=True)
class RecordedLatency:
    """Durations as the engine reports them."""

    first_tokens: list[float] = field(default_factory=list)
    token_gaps: list[float] = field(default_factory=list)
    requests: list[float] = field(default_factory=list)

    def observe_first_token(self, seconds: float) -> None:
        self.first_tokens.append(seconds)

    def observe_token_gap(self, seconds: float) -> None:
        self.token_gaps.append(seconds)

    def observe_request(self, seconds: float) -> None:
        self.requests.append(seconds)


def _engine(runner: ScriptedRunner, *, max_tokens_default: int | None = None) -> Engine:
    return Engine(runner, EngineSettings(4, LIMIT_SECONDS, max_tokens_default), RecordedLatency())


def _ask(engine: Engine, prompt: str = "p", max_tokens: int | None = None) -> list[Event]:
    """All events of one request."""
    events: queue.Queue[Event] = queue.Queue()
    engine.submit(GenerationRequest(prompt, SamplingParameters(), max_tokens), events.put)
    received = [events.get(timeout=LIMIT_SECONDS)]
    while isinstance(received[-1], TextPiece):
        received.append(events.get(timeout=LIMIT_SECONDS))
    return received


def test_start_has_the_model_answer_on_its_own_thread_and_forgets_it() -> None:
    runner = ScriptedRunner()
    engine = _engine(runner)
    with pytest.raises(NotAccepting):
        _ask(engine)
    engine.start()
    assert len(runner.samplings) == 1
    assert runner.samplings[0].temperature == 0
    assert runner.memories == [[]]
    assert engine.status().generation_tokens == 0, "its own question is not counted"
    engine.close()


def test_a_model_that_does_not_answer_is_an_error_of_start() -> None:
    runner = ScriptedRunner()
    runner.failures.append(RuntimeError("no logits"))
    with pytest.raises(RuntimeError, match="no logits"):
        _engine(runner).start()


def test_a_thread_that_cannot_be_pinned_is_an_error_of_start() -> None:
    class Unpinnable(ScriptedRunner):
        def adopt_decode_thread(self) -> None:
            raise OSError(22, "Invalid argument")

    with pytest.raises(OSError, match="Invalid argument"):
        _engine(Unpinnable()).start()


def test_a_token_that_does_not_exist_is_no_answer() -> None:
    class Confused(ScriptedRunner):
        def sample(self, sampler: object, sequence: int) -> int:
            return -1

    with pytest.raises(EngineFailure, match="token -1"):
        _engine(Confused()).start()


def test_the_events_of_a_request_are_its_text_and_its_end() -> None:
    engine = _engine(ScriptedRunner())
    engine.start()
    *pieces, end = _ask(engine)
    engine.close()
    assert [piece.text for piece in pieces if isinstance(piece, TextPiece)] == ["He", "llo", "!"]
    assert isinstance(end, Finished)
    assert (end.reason, end.timings.predicted_tokens, end.prompt_tokens) == ("stop", 4, 2)


def test_the_default_length_holds_where_the_request_names_none() -> None:
    engine = _engine(ScriptedRunner(lambda prompt: [b"x"] * 50), max_tokens_default=5)
    engine.start()
    by_default, by_request = _ask(engine)[-1], _ask(engine, max_tokens=7)[-1]
    engine.close()
    assert isinstance(by_default, Finished)
    assert isinstance(by_request, Finished)
    assert (by_default.timings.predicted_tokens, by_request.timings.predicted_tokens) == (5, 7)


def test_a_prompt_that_fills_the_context_is_refused_with_both_numbers() -> None:
    engine = _engine(ScriptedRunner(context_tokens=8))
    engine.start()
    with pytest.raises(PromptTooLong) as refused:
        _ask(engine, "x" * 7)
    assert (refused.value.prompt_tokens, refused.value.context_tokens) == (8, 8)
    assert isinstance(_ask(engine, "x" * 6)[-1], Finished)
    engine.close()


def test_it_is_stalled_only_while_a_request_makes_no_step() -> None:
    runner = ScriptedRunner(holds_steps=True)
    engine = _engine(runner)
    engine.start()
    runner.forget_start()
    assert engine.stalled_seconds() == 0
    events: queue.Queue[Event] = queue.Queue()
    engine.submit(GenerationRequest("p", SamplingParameters()), events.put)
    runner.wait_until_step(1)
    wait_until(lambda: engine.stalled_seconds() > 0.05)
    runner.grant_steps(1)
    runner.wait_until_step(2)
    wait_until(lambda: engine.stalled_seconds() > 0)
    runner.release()
    wait_until(lambda: engine.status().running == 0)
    assert engine.stalled_seconds() == 0
    engine.close()


def test_a_failure_that_also_breaks_the_memory_is_final() -> None:
    class Broken(ScriptedRunner):
        is_broken = False

        def truncate(self, sequence: int, position: int) -> None:
            if self.is_broken:
                raise RuntimeError("device lost")
            super().truncate(sequence, position)

    runner = Broken()
    engine = _engine(runner)
    engine.start()
    runner.is_broken = True
    runner.failures.append(RuntimeError("decode failed"))
    assert isinstance(_ask(engine)[-1], Failed)
    wait_until(lambda: engine.status().failure is not None)
    with pytest.raises(EngineFailure, match="device lost"):
        _ask(engine)
    engine.close()


def test_durations_are_reported_once_for_each_token_and_request() -> None:
    latency = RecordedLatency()
    engine = Engine(ScriptedRunner(), EngineSettings(4, LIMIT_SECONDS, None), latency)
    engine.start()
    _ask(engine)
    _ask(engine, "q")
    engine.close()
    assert (len(latency.first_tokens), len(latency.token_gaps), len(latency.requests)) == (2, 6, 2)


def test_timings_have_llama_cpps_names_and_no_rate_without_a_measurement() -> None:
    document = Timings(3, 4, 0.5, 10, 2.0).as_document()
    assert document == {
        "cache_n": 3,
        "prompt_n": 4,
        "prompt_ms": 500.0,
        "prompt_per_token_ms": 125.0,
        "prompt_per_second": 8.0,
        "predicted_n": 10,
        "predicted_ms": 2000.0,
        "predicted_per_token_ms": 200.0,
        "predicted_per_second": 5.0,
    }
    assert Timings(0, 1, 0.0, 0, 0.0).as_document()["predicted_per_second"] is None


def test_closing_twice_and_closing_before_the_start_do_no_harm() -> None:
    never_started = _engine(ScriptedRunner())
    never_started.close()
    started = _engine(ScriptedRunner())
    started.start()
    started.close()
    started.close()
    with pytest.raises(NotAccepting):
        _ask(started)
