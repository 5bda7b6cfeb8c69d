"""Requests to a daemon, against a real HTTP server that answers what each test wants."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest

from stratad.client import Remedies, Request, ask_json
from stratad.errors import ConfigurationError, DaemonError

REMEDIES = Remedies(otherwise="look at it", unauthorized="name a key")


@contextmanager
def answering(
    status: int, body: bytes, headers: tuple[tuple[str, str], ...] = (), length: int | None = None
) -> Iterator[tuple[str, list[tuple[str, str, str | None, bytes]]]]:
    """A server's address, and the requests that it got: method, path, content type and body."""
    got: list[tuple[str, str, str | None, bytes]] = []

    class Answers(BaseHTTPRequestHandler):
        def answer(self) -> None:
            sent = self.rfile.read(int(self.headers.get("Content-Length", 0)))
            got.append((self.command, self.path, self.headers.get("Content-Type"), sent))
            self.send_response(status)
            self.send_header("Content-Length", str(len(body) if length is None else length))
            for name, value in headers:
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(body)

        do_GET = do_POST = answer

        def log_message(self, format: str, *arguments: object) -> None:
            """Nothing."""

    with HTTPServer(("127.0.0.1", 0), Answers) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}", got
        finally:
            server.shutdown()
            thread.join()


def test_a_body_goes_as_json_and_the_answer_comes_as_an_object() -> None:
    with answering(200, b'{"text": "well"}') as (endpoint, got):
        assert ask_json(endpoint, Request("POST", "/v1/completions", {"prompt": "x"})) == {"text": "well"}
        assert ask_json(endpoint, Request("GET", "/status")) == {"text": "well"}
    [post, get] = got
    assert (*post[:3], json.loads(post[3])) == (
        "POST",
        "/v1/completions",
        "application/json",
        {"prompt": "x"},
    )
    assert get == ("GET", "/status", None, b"")


@pytest.mark.parametrize("body", [b"<html>hello</html>", b"[1]", b"\xff"])
def test_another_answer_than_an_object_is_an_error_that_says_so(body: bytes) -> None:
    with answering(200, body) as (endpoint, _), pytest.raises(DaemonError) as refusal:
        ask_json(endpoint, Request("GET", "/status"), REMEDIES)
    assert "no JSON object" in refusal.value.because
    assert refusal.value.remedy == "look at it"


def test_a_refusal_is_told_in_the_daemons_own_words_with_its_status_and_when_to_come_back() -> None:
    body = b'{"error": {"message": "the queue is full"}}'
    with (
        answering(429, body, (("Retry-After", "7"),)) as (endpoint, _),
        pytest.raises(DaemonError) as refusal,
    ):
        ask_json(endpoint, Request("GET", "/status"), REMEDIES)
    assert refusal.value.tried == f"asking the daemon at {endpoint} for /status"
    assert refusal.value.because == "the queue is full"
    assert dict(refusal.value.values) == {"http_status": 429, "retry_after_seconds": "7"}
    assert refusal.value.remedy == "look at it"


@pytest.mark.parametrize("body", [b"", b"[]", b'{"error": "text"}'])
def test_a_refusal_without_words_is_told_by_its_reason_and_a_missing_key_has_its_own_remedy(
    body: bytes,
) -> None:
    with answering(401, body) as (endpoint, _), pytest.raises(DaemonError) as refusal:
        ask_json(endpoint, Request("GET", "/status"), REMEDIES)
    assert (refusal.value.because, refusal.value.remedy) == ("Unauthorized", "name a key")


def test_an_answer_that_breaks_off_is_an_error() -> None:
    with answering(200, b'{"text": ', length=100) as (endpoint, _), pytest.raises(DaemonError) as refusal:
        ask_json(endpoint, Request("GET", "/status"), REMEDIES)
    assert "IncompleteRead" in refusal.value.because


def test_where_nobody_listens_is_an_error() -> None:
    with answering(200, b"{}") as (endpoint, _):
        pass
    with pytest.raises(DaemonError) as refusal:
        ask_json(endpoint, Request("GET", "/status"), REMEDIES)
    assert "refused" in refusal.value.because


@pytest.mark.parametrize("endpoint", ["ftp://host", "localhost", "http://", "http://[", "http://host:port"])
def test_what_is_no_address_is_a_wrong_setting(endpoint: str) -> None:
    with pytest.raises(ConfigurationError):
        ask_json(endpoint, Request("GET", "/status"))
