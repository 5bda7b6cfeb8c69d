"""Order, cancelling, deadlines, failures and shutdown of requests, through HTTP."""

from __future__ import annotations

import json
import socket
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from threading import Event
from urllib.parse import urlsplit

import httpx
import openai
import pytest

from tests.serving.support.scripted_runner import ScriptedRunner
from tests.serving.support.served import LIMIT_SECONDS, MODEL, Served, serve, wait_until

PLAIN = "/v1/completions"


def _ask(served: Served, prompt: str) -> httpx.Response:
    return httpx.post(served.url + PLAIN, json={"prompt": prompt}, timeout=LIMIT_SECONDS)


def _in_flight(served: Served) -> int:
    status = served.engine.status()
    return status.waiting + status.running


def _finish_count(served: Served, reason: str) -> int:
    return dict(served.engine.status().finish_reasons).get(reason, 0)


def test_requests_are_answered_one_by_one_in_the_order_they_came() -> None:
    runner = ScriptedRunner(holds_steps=True)
    with serve(runner) as served, ThreadPoolExecutor() as pool:
        answers: list[Future[httpx.Response]] = []
        for index in range(4):
            answers.append(pool.submit(_ask, served, f"p{index}"))
            in_flight = index + 1
            wait_until(lambda count=in_flight: _in_flight(served) == count)
        assert served.engine.status().running == 1
        runner.release()
        assert [answer.result().status_code for answer in answers] == [200] * 4
    assert runner.prompts == [b"p0", b"p1", b"p2", b"p3"]


def test_a_request_beyond_the_queue_is_429_with_a_time_to_wait() -> None:
    runner = ScriptedRunner(holds_steps=True)
    with serve(runner, max_queue=1) as served, ThreadPoolExecutor() as pool:
        running = pool.submit(_ask, served, "running")
        runner.wait_until_step(1)
        waiting = pool.submit(_ask, served, "waiting")
        wait_until(lambda: served.engine.status().waiting == 1)
        with pytest.raises(openai.RateLimitError) as refused:
            served.client().completions.create(model=MODEL, prompt="one too many")
        runner.release()
        assert (running.result().status_code, waiting.result().status_code) == (200, 200)
    assert int(refused.value.response.headers["retry-after"]) >= 1
    assert refused.value.code == "queue_full"


@pytest.mark.parametrize("is_stream", [True, False])
def test_a_client_that_leaves_ends_its_request_within_one_step(is_stream: bool) -> None:
    runner = ScriptedRunner(lambda prompt: [b"x"] * 200, holds_steps=True)
    with serve(runner) as served:
        leave = _start_and_leave(served, runner, is_stream)
        wait_until(lambda: served.engine.status().running == 1)
        steps_before = runner.step_count
        leave()
        # The step that was held when the client left may end, and no other begins.
        wait_until(lambda: _grant_and_look(served, runner))
        assert runner.step_count <= steps_before + 1
        runner.release()
        assert _ask(served, "next").status_code == 200


def _start_and_leave(served: Served, runner: ScriptedRunner, is_stream: bool) -> Callable[[], None]:
    """Starts a request and gives what closes its connection."""
    connection = _send_without_reading(served, {"prompt": "p", "stream": is_stream})
    if is_stream:
        runner.grant_steps(1)
        assert connection.recv(1) == b"H", "the beginning of the answer"
    runner.wait_until_step(1)
    return connection.close


def _send_without_reading(served: Served, body: dict[str, object]) -> socket.socket:
    """A connection with a request sent; a socket closes at once where a client library may keep it."""
    address = urlsplit(served.url)
    content = json.dumps(body).encode()
    head = f"POST {PLAIN} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(content)}\r\n\r\n"
    connection = socket.create_connection((address.hostname, address.port), timeout=LIMIT_SECONDS)
    connection.sendall(head.encode() + content)
    return connection


def _grant_and_look(served: Served, runner: ScriptedRunner) -> bool:
    """Lets the held step end once the engine has heard of the client's leaving."""
    if any(generation.is_cancelled for generation in served.engine._requests._running):
        runner.grant_steps(1)
    return _finish_count(served, "cancelled") == 1


def test_a_client_that_leaves_the_queue_is_never_computed() -> None:
    runner = ScriptedRunner(holds_steps=True)
    with serve(runner) as served, ThreadPoolExecutor() as pool:
        running = pool.submit(_ask, served, "first")
        runner.wait_until_step(1)
        connection = _send_without_reading(served, {"prompt": "left"})
        wait_until(lambda: served.engine.status().waiting == 1)
        connection.close()
        wait_until(lambda: served.engine.status().waiting == 0)
        runner.release()
        assert running.result().status_code == 200
    assert runner.prompts == [b"first"]


def test_a_slow_reader_does_not_hold_up_the_next_request() -> None:
    runner = ScriptedRunner(lambda prompt: [b"\x01" * 10_000] * 200)
    body = {"prompt": "slow", "stream": True}
    # 2 MB may wait unread; as JSON (\u0001) they are 12 MB, more than the socket buffers hold.
    # Nobody reads them until the second answer is there.
    with serve(runner) as served, httpx.stream("POST", served.url + PLAIN, json=body, timeout=20) as slow:
        assert _ask(served, "quick").status_code == 200
        assert _finish_count(served, "stop") == 2
        assert sum(len(text) for text in slow.iter_text()) > 200 * 60_000


@pytest.mark.parametrize(
    ("path", "prompt"),
    [
        ("/v1/completions", {"prompt": "abcd"}),
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": "abcd"}]}),
    ],
)
def test_a_schema_that_takes_long_to_convert_does_not_hold_up_others(
    path: str, prompt: dict[str, object]
) -> None:
    schema = {"type": "json_schema", "json_schema": {"name": "s", "schema": {"type": "object"}}}
    with serve() as served, ThreadPoolExecutor() as pool:
        asked, go_on = Event(), Event()
        convert = served.service.chat.grammar_of_schema

        def slow_conversion(given: Mapping[str, object]) -> str:
            asked.set()
            assert go_on.wait(LIMIT_SECONDS)
            return convert(given)

        served.service.chat.grammar_of_schema = slow_conversion  # type: ignore[method-assign]
        body = {**prompt, "response_format": schema}
        answer = pool.submit(httpx.post, served.url + path, json=body, timeout=LIMIT_SECONDS)
        try:
            assert asked.wait(LIMIT_SECONDS)
            assert httpx.get(served.url + "/health").json() == {"status": "ready"}
            assert not answer.done()
        finally:
            go_on.set()
        assert answer.result().status_code == 200


def test_a_request_past_its_deadline_is_504_and_so_is_one_that_waited_for_it() -> None:
    runner = ScriptedRunner(holds_steps=True)
    with serve(runner, request_timeout_seconds=0.2) as served, ThreadPoolExecutor() as pool:
        running, waiting = pool.submit(_ask, served, "a"), pool.submit(_ask, served, "b")
        wait_until(lambda: _in_flight(served) == 2)
        already_seconds = served.engine.stalled_seconds()
        wait_until(lambda: served.engine.stalled_seconds() - already_seconds > 0.3)
        runner.release()
        assert {running.result().status_code, waiting.result().status_code} == {504}
        assert running.result().json()["error"]["code"] == "timeout"
        assert _finish_count(served, "timeout") == 2


def test_a_native_failure_is_500_and_the_engine_goes_on() -> None:
    runner = ScriptedRunner()
    with serve(runner) as served:
        # What this one leaves in the memory must not be taken for granted after the failure.
        assert _ask(served, "p").status_code == 200
        runner.failures.append(RuntimeError("llama_decode returned -3"))
        failed = _ask(served, "p")
        assert _ask(served, "p").status_code == 200
        assert _finish_count(served, "engine_failure") == 1
    assert failed.status_code == 500
    assert failed.json()["error"]["code"] == "engine_failure"
    assert "llama_decode" not in failed.text, "what went wrong inside is for the log"


def test_a_failure_in_a_stream_that_has_begun_is_an_error_event() -> None:
    runner = ScriptedRunner(holds_steps=True)
    with serve(runner) as served:
        stream = served.client().completions.create
        runner.grant_steps(1)
        chunks = stream(model=MODEL, prompt="p", stream=True)
        assert next(iter(chunks)).choices[0].text == "He"
        runner.failures.append(RuntimeError("broken"))
        runner.release()
        with pytest.raises(openai.APIError, match="engine failed"):
            list(chunks)


def test_an_engine_that_fails_again_and_again_says_so() -> None:
    runner = ScriptedRunner()
    with serve(runner) as served:
        runner.failures.extend(RuntimeError("bad memory") for _ in range(3))
        statuses = [_ask(served, "p").status_code for _ in range(4)]
        health = httpx.get(served.url + "/health")
        assert not served.service.is_progressing()
    assert statuses == [500] * 4
    assert (health.status_code, health.json()["status"]) == (503, "failed")


def test_draining_finishes_what_runs_and_refuses_what_comes() -> None:
    runner = ScriptedRunner(holds_steps=True)
    with serve(runner) as served, ThreadPoolExecutor() as pool:
        running, waiting = pool.submit(_ask, served, "a"), pool.submit(_ask, served, "b")
        wait_until(lambda: _in_flight(served) == 2)
        served.service.draining()
        refused = _ask(served, "late")
        health = httpx.get(served.url + "/health")
        assert not served.engine.drain(0.01), "two requests are still there"
        runner.release()
        assert served.engine.drain(LIMIT_SECONDS)
        assert {running.result().status_code, waiting.result().status_code} == {200}
    assert refused.status_code == 503
    assert (health.status_code, health.json()["status"]) == (503, "draining")


def test_closing_ends_what_is_left_with_503() -> None:
    runner = ScriptedRunner(holds_steps=True)
    with serve(runner) as served, ThreadPoolExecutor() as pool:
        running, waiting = pool.submit(_ask, served, "a"), pool.submit(_ask, served, "b")
        wait_until(lambda: _in_flight(served) == 2)
        closing = pool.submit(served.engine.close)
        wait_until(lambda: served.engine._requests.is_closed)
        runner.release()
        closing.result()
        assert {running.result().status_code, waiting.result().status_code} == {503}
