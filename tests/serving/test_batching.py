"""Several requests side by side: order, cadence, failures, reuse of slots, and answers that nobody else changes."""

from __future__ import annotations

import itertools
import queue
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager

import httpx
import pytest

from stratad.engine.engine import Engine, Ticket
from stratad.engine.generation import Event, Failed, Finished, GenerationRequest, QueueFull, TextPiece
from stratad.engine.status import EngineSettings
from stratad.metrics.registry import Metrics
from stratad.runner.protocol import SamplingParameters
from tests.serving.support.scripted_runner import RememberingRunner, ScriptedRunner
from tests.serving.support.served import LIMIT_SECONDS, MODEL, Served, serve, wait_until

PLAIN = "/v1/completions"
CHUNK_TOKENS = 4


class Asked:
    """A request that was submitted, and what it is told."""

    def __init__(
        self, engine: Engine, prompt: str, max_tokens: int | None = None, *, client: str = ""
    ) -> None:
        self._events: queue.Queue[Event] = queue.Queue()
        request = GenerationRequest(prompt, SamplingParameters(temperature=0.0), max_tokens, client=client)
        self.ticket: Ticket = engine.submit(request, self._events.put)

    def end(self) -> tuple[str, Finished | Failed]:
        """The whole text, and how it ended."""
        text = ""
        while isinstance(event := self._events.get(timeout=LIMIT_SECONDS), TextPiece):
            text += event.text
        return text, event

    def text(self) -> str:
        """The whole text of an answer that must be complete."""
        text, end = self.end()
        assert isinstance(end, Finished), end
        return text

    def cached_tokens(self) -> int:
        """How many tokens of the prompt of a complete answer were there already."""
        end = self.end()[1]
        assert isinstance(end, Finished), end
        return end.timings.cached_tokens


@contextmanager
def _engine(runner: ScriptedRunner, *, max_queue: int = 64) -> Iterator[Engine]:
    engine = Engine(runner, EngineSettings(max_queue, LIMIT_SECONDS, None, CHUNK_TOKENS), Metrics(MODEL))
    engine.start()
    runner.forget_start()
    try:
        yield engine
    finally:
        runner.release()
        engine.close()


def _ask(served: Served, prompt: str) -> httpx.Response:
    return httpx.post(served.url + PLAIN, json={"prompt": prompt}, timeout=LIMIT_SECONDS)


def _start(engine: Engine, runner: ScriptedRunner, *asked: tuple[str, int]) -> list[Asked]:
    """Submits prompts with their numbers of tokens while the first one's first call is held, so that all run."""
    first, *others = asked
    started = [Asked(engine, *first)]
    runner.wait_until_step(1)
    started += [Asked(engine, *other) for other in others]
    runner.grant_steps(1)
    wait_until(lambda: engine.status().running == len(asked))
    return started


def test_as_many_requests_run_as_there_are_slots_and_the_others_wait() -> None:
    runner = ScriptedRunner(sequence_count=3, holds_steps=True)
    with serve(runner, max_queue=2) as served, ThreadPoolExecutor() as pool:
        answers: list[Future[httpx.Response]] = []
        for index in range(5):
            answers.append(pool.submit(_ask, served, f"p{index}"))
            in_flight = index + 1
            wait_until(lambda count=in_flight: sum(_in_flight(served)) == count)
        refused = _ask(served, "one too many")
        runner.grant_steps(1)
        wait_until(lambda: _in_flight(served) == (3, 2))
        runner.release()
        assert [answer.result().json()["choices"][0]["text"] for answer in answers] == ["Hello!"] * 5
        assert _in_flight(served) == (0, 0)
    assert (refused.status_code, refused.json()["error"]["code"]) == (429, "queue_full")
    assert {sequence for call in runner.calls for sequence, _ in call} == {0, 1, 2}
    assert runner.prompts[0] == b"p0"


def _in_flight(served: Served) -> tuple[int, int]:
    status = served.engine.status()
    return status.running, status.waiting


def test_running_answers_share_their_calls() -> None:
    runner = ScriptedRunner(lambda prompt: [b"x"] * 9, sequence_count=3, holds_steps=True)
    with _engine(runner) as engine:
        asked = _start(engine, runner, ("a", 9), ("b", 9), ("c", 9))
        runner.release()
        assert [one.text() for one in asked] == ["x" * 9] * 3
    assert ((0, 1), (1, 1), (2, 1)) in runner.calls
    assert engine.status().decode_steps < 3 * 8, "together they take fewer calls than one by one"


def test_a_long_prompt_is_computed_in_chunks_between_the_tokens_of_a_running_answer() -> None:
    runner = ScriptedRunner(lambda prompt: [b"x"] * 30, sequence_count=2, holds_steps=True, batch_tokens=32)
    with _engine(runner) as engine:
        asked = _start(engine, runner, ("a", 20), ("y" * 30, 1))
        runner.release()
        assert [one.text() for one in asked] == ["x" * 20, "x"]
    first_chunk = runner.calls.index(((1, CHUNK_TOKENS),))
    last_chunk = max(index for index, call in enumerate(runner.calls) if 1 in dict(call))
    assert last_chunk - first_chunk >= 2 * (30 // CHUNK_TOKENS) - 1
    between = runner.calls[first_chunk : last_chunk + 1]
    # Answer, chunk, answer, chunk ...: never two chunks without a token of the answer between them.
    assert all(0 in dict(call) or 0 in dict(after) for call, after in itertools.pairwise(between))
    assert max(dict(call).get(1, 0) for call in between) == CHUNK_TOKENS


def test_a_prompt_alone_is_computed_in_whole_batches_whatever_the_chunk() -> None:
    runner = ScriptedRunner(sequence_count=2, batch_tokens=16)
    with _engine(runner) as engine:
        Asked(engine, "y" * 40, 1).text()
    assert runner.call_sizes == [16, 16, 9]


def test_answers_stay_within_what_the_pool_computes() -> None:
    runner = ScriptedRunner(
        lambda prompt: [b"x"] * 9, sequence_count=5, holds_steps=True, pool_tokens=2, batch_tokens=32
    )
    with _engine(runner) as engine:
        asked = _start(engine, runner, *((f"{index}", 9) for index in range(5)))
        runner.release()
        assert [one.text() for one in asked] == ["x" * 9] * 5
    assert max(len(call) for call in runner.calls) == 2


def test_an_answer_is_the_same_alone_and_among_others() -> None:
    prompts = [f"{'long ' * index}prompt {index}" for index in range(9)]
    with _engine(RememberingRunner()) as engine:
        alone = [Asked(engine, prompt, 12).text() for prompt in prompts]
    assert len(set(alone)) == len(prompts)
    for sequence_count in (2, 4, 16):
        with _engine(RememberingRunner(sequence_count=sequence_count)) as engine:
            for _ in range(3):
                asked = [Asked(engine, prompt, 12) for prompt in prompts]
                assert [one.text() for one in asked] == alone
            assert engine.status().running == 0


def test_one_that_leaves_ends_within_one_step_and_the_others_go_on() -> None:
    runner = ScriptedRunner(
        lambda prompt: [b"x"] * 200, sequence_count=2, holds_steps=True, context_tokens=512
    )
    with _engine(runner) as engine:
        leaving, staying = _start(engine, runner, ("a", 100), ("b", 50))
        calls_before = len(runner.calls)
        leaving.ticket.cancel()
        runner.release()
        assert staying.text() == "x" * 50
        assert dict(engine.status().finish_reasons) == {"cancelled": 1, "length": 1}
    # What was held when it left may end: a call for answers and one for a prompt.
    assert not any(0 in dict(call) for call in runner.calls[calls_before + 2 :])


def test_a_free_place_is_taken_while_others_run() -> None:
    runner = ScriptedRunner(lambda prompt: [b"x"] * 200, sequence_count=2, holds_steps=True)
    with _engine(runner) as engine:
        long_one, short_one = _start(engine, runner, ("a", 60), ("b", 2))
        late = Asked(engine, "c", 2)
        assert engine.status().waiting == 1
        runner.release()
        assert (short_one.text(), late.text(), long_one.text()) == ("xx", "xx", "x" * 60)
    joint = [call for call in runner.calls if len(call) == 2]
    assert joint, "the late one ran beside the long one"


@pytest.mark.parametrize("can_be_cut", [True, False])
def test_a_request_that_fails_takes_no_other_along(can_be_cut: bool) -> None:
    poison = "Z"
    runner = RememberingRunner(sequence_count=4)
    with _engine(runner) as engine:
        alone = [Asked(engine, prompt, 12).text() for prompt in ("a", "bb", "ccc")]
    runner = RememberingRunner(sequence_count=4, holds_steps=True)
    runner.poison = {ord(poison)}
    if not can_be_cut:
        runner.truncate_failure = RuntimeError("recurrent")
    with _engine(runner) as engine:
        # One token of its prompt is left beside the others' answers, so that it fails in their call.
        asked = _start(
            engine, runner, ("a", 12), ("bb", 12), ("y" * (CHUNK_TOKENS * 2 - 1) + poison, 12), ("ccc", 12)
        )
        runner.release()
        (first, second, failed, third) = [one.end() for one in asked]
        status = engine.status()
        assert Asked(engine, "after", 3).text()
    assert [first[0], second[0], third[0]] == alone
    assert isinstance(failed[1], Failed)
    assert failed[1].error.code == "engine_failure"
    assert status.failure is None
    assert dict(status.finish_reasons) == {"engine_failure": 1, "length": 3}


def test_many_failing_requests_do_not_break_an_engine_that_answers_others() -> None:
    runner = RememberingRunner(sequence_count=2, holds_steps=True, context_tokens=1024)
    runner.poison = {ord("Z")}
    with _engine(runner) as engine:
        long_one, *failing = _start(engine, runner, ("a", 300), ("Z", 5))
        failing += [Asked(engine, "Z", 5) for _ in range(5)]
        runner.release()
        assert all(isinstance(one.end()[1], Failed) for one in failing)
        assert len(long_one.text()) == 300
        assert engine.status().failure is None


def test_a_follow_up_goes_to_the_slot_of_its_conversation() -> None:
    runner = ScriptedRunner(sequence_count=3)
    with _engine(runner) as engine:
        for beginning in ("first talk", "second talk", "third talk"):
            assert Asked(engine, beginning, 1).cached_tokens() == 0
        runner.calls.clear()
        assert Asked(engine, "second talk goes on", 1).cached_tokens() == 1 + len("second talk")
        assert Asked(engine, "first talk goes on", 1).cached_tokens() == 1 + len("first talk")
        assert runner.calls == [((1, len(" goes on")),), ((0, len(" goes on")),)]
        status = engine.status()
    assert status.cached_tokens == 2 + len("second talk") + len("first talk")
    assert status.held_tokens == sum(len(memory) for memory in runner.memories)


def test_usage_and_metrics_tell_reused_tokens_and_slots() -> None:
    with serve(ScriptedRunner(sequence_count=2)) as served:
        client = served.client()
        client.completions.create(model=MODEL, prompt="The quick brown fox", max_tokens=1)
        again = client.completions.create(model=MODEL, prompt="The quick brown fox jumps", max_tokens=1)
        text = httpx.get(served.url + "/metrics").text
        decode = httpx.get(served.url + "/status").json()["decode"]
    cached = 1 + len("The quick brown fox")
    assert again.usage.prompt_tokens_details.cached_tokens == cached
    assert f'stratad_prompt_tokens_cached_total{{model_name="{MODEL}"}} {cached}.0' in text
    assert f'stratad_slots{{model_name="{MODEL}"}} 2.0' in text
    assert f'stratad_held_tokens{{model_name="{MODEL}"}} {cached + len(" jumps")}.0' in text
    assert (decode["slots"], decode["prompt_tokens_cached"]) == (2, cached)


def test_a_slow_reader_does_not_hold_up_those_beside_it() -> None:
    runner = ScriptedRunner(lambda prompt: [b"\x01" * 10_000] * 200, sequence_count=2)
    body = {"prompt": "slow", "stream": True}
    # 2 MB may wait unread; as JSON (\u0001) they are 12 MB, more than the socket buffers hold.
    # Nobody reads them until the others' answers are there.
    with serve(runner) as served, httpx.stream("POST", served.url + PLAIN, json=body, timeout=20) as slow:
        assert [_ask(served, f"quick {index}").status_code for index in range(3)] == [200] * 3
        assert sum(len(text) for text in slow.iter_text()) > 200 * 60_000


def test_draining_and_closing_reach_all_that_run() -> None:
    runner = ScriptedRunner(lambda prompt: [b"x"] * 200, sequence_count=2, holds_steps=True)
    with _engine(runner) as engine:
        asked = _start(engine, runner, ("a", 20), ("b", 20))
        assert not engine.drain(0.01)
        with ThreadPoolExecutor() as pool:
            closing = pool.submit(engine.close)
            wait_until(lambda: engine._requests.is_closed)
            runner.release()
            closing.result()
        ends = [one.end()[1] for one in asked]
    assert [end.error.code for end in ends if isinstance(end, Failed)] == ["unavailable"] * 2


def test_the_queue_holds_as_many_as_configured_beyond_the_slots() -> None:
    runner = ScriptedRunner(sequence_count=2, holds_steps=True)
    with _engine(runner, max_queue=0) as engine:
        asked = _start(engine, runner, ("a", 3), ("b", 3))
        with pytest.raises(QueueFull):
            Asked(engine, "c")
        runner.release()
        assert all(one.text() for one in asked)


def test_a_client_that_floods_neither_starves_nor_crowds_out_another() -> None:
    runner = ScriptedRunner(lambda prompt: [b"x"] * 9, sequence_count=1, holds_steps=True)
    with _engine(runner, max_queue=4) as engine:
        flood = [Asked(engine, f"f{index}", 3, client="flood") for index in range(5)]
        with pytest.raises(QueueFull):
            Asked(engine, "f5", 3, client="flood")
        other = Asked(engine, "o", 3, client="other")
        runner.release()
        assert other.text() == "xxx"
        ends = [one.end()[1] for one in flood]
    assert [isinstance(end, Finished) for end in ends] == [True] * 4 + [False]
    assert isinstance(ends[4], Failed)
    assert ends[4].error.code == "queue_full"
    served = [prompt.decode() for prompt in runner.prompts]
    assert served[:2] == ["f0", "o"], "the other one is next, though four came before it"


def test_one_that_waits_past_its_deadline_is_told_while_others_still_run() -> None:
    runner = ScriptedRunner(lambda prompt: [b"x"] * 9, sequence_count=1, holds_steps=True)
    with _engine(runner) as engine:
        running = Asked(engine, "a", 9)
        runner.wait_until_step(1)
        waiting = Asked(engine, "b", 9)
        # As if it had come long ago: others may have had their turn before it.
        waiting.ticket._generation.submitted_seconds -= 2 * LIMIT_SECONDS
        runner.grant_steps(2)
        late = waiting.end()[1]
        assert isinstance(late, Failed)
        assert (late.error.code, engine.status().running, engine.status().waiting) == ("timeout", 1, 0)
        runner.release()
        assert running.text() == "x" * 9
