"""Who may ask the server for what: API keys, the administration, Host names and header sizes."""

from __future__ import annotations

import http.client
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import urlsplit

import httpx
import openai
import pytest

from stratad.server import Administration
from stratad.server.api_keys import ApiKeys, read_key_files
from stratad.server.authorization import ADMINISTRATION_HEADER
from stratad.server.limits import MAX_HEADER_BYTES
from tests.serving.support.scripted_runner import ScriptedRunner
from tests.serving.support.served import MODEL, Served, serve, wait_until

KEY = "a-right-key-0123456789"
TOKEN = "a-token"
TOKEN_HEADERS = {ADMINISTRATION_HEADER: TOKEN}
DRAIN = "/admin/drain"
PATHS = ("/health", "/", "/openapi.json", "/metrics", "/status", "/placement", "/v1/models", "/nowhere")


@contextmanager
def served_with_keys(folder: Path, **settings: object) -> Iterator[Served]:
    path = folder / "keys"
    path.write_text(f"# two clients\nanother-key\n{KEY}\n")
    with serve(api_keys=ApiKeys(read_key_files(path, None)), **settings) as served:  # type: ignore[arg-type]
        yield served


def statuses(served: Served, headers: dict[str, str] | None = None) -> dict[str, int]:
    return {path: httpx.get(served.url + path, headers=headers).status_code for path in PATHS}


def test_without_a_key_only_health_page_and_description_are_open(tmp_path: Path) -> None:
    with served_with_keys(tmp_path) as served:
        without = statuses(served)
        with_key = statuses(served, {"Authorization": f"Bearer {KEY}"})
    opened = {"/health": 200, "/": 200, "/openapi.json": 200}
    assert without == {path: opened.get(path, 401) for path in PATHS}
    assert with_key == {path: 404 if path == "/nowhere" else 200 for path in PATHS}


def test_metrics_can_be_opened_and_nothing_else_with_them(tmp_path: Path) -> None:
    with served_with_keys(tmp_path, metrics_need_key=False) as served:
        without = statuses(served)
    assert (without["/metrics"], without["/status"]) == (200, 401)


@pytest.mark.parametrize(
    "value",
    [
        "",
        KEY,
        f"Basic {KEY}",
        "Bearer",
        "Bearer wrong",
        f"Bearer {KEY}x",
        f"Bearer {KEY[:-1]}",
        f"Bearer {KEY} another-key",
        "Bearer #",
    ],
)
def test_a_wrong_header_is_401_in_openais_shape(value: str, tmp_path: Path) -> None:
    with served_with_keys(tmp_path) as served:
        refused = httpx.post(
            served.url + "/v1/completions", json={"prompt": "p"}, headers={"Authorization": value}
        )
        assert served.runner.prompts == []
    error = refused.json()["error"]
    assert refused.status_code == 401
    assert refused.headers["www-authenticate"] == 'Bearer realm="stratad"'
    assert error["type"] == "invalid_request_error"
    assert error["code"] in ("missing_api_key", "invalid_api_key")
    assert "right-key" not in refused.text


def test_the_real_client_passes_its_api_key(tmp_path: Path) -> None:
    with served_with_keys(tmp_path) as served:
        client = openai.OpenAI(base_url=f"{served.url}/v1", api_key=KEY, max_retries=0)
        assert client.completions.create(model=MODEL, prompt="p").choices[0].text == "Hello!"
        with pytest.raises(openai.AuthenticationError) as refused:
            client.with_options(api_key="wrong").completions.create(model=MODEL, prompt="p")
    assert refused.value.code == "invalid_api_key"


def test_no_answer_allows_another_origin() -> None:
    headers = {"Origin": "https://evil.example", "Access-Control-Request-Method": "POST"}
    with serve() as served:
        asked = httpx.options(served.url + "/v1/chat/completions", headers=headers)
        answered = httpx.get(served.url + "/status", headers=headers)
    assert asked.status_code == 405
    assert not [
        name for response in (asked, answered) for name in response.headers if "access-control" in name
    ]


def test_headers_at_the_limit_are_read_and_one_byte_more_is_431() -> None:
    with serve() as served:
        fits, too_large = (_with_header_bytes(served, MAX_HEADER_BYTES + more) for more in (0, 1))
        long_query = httpx.get(served.url + "/health?" + "q" * MAX_HEADER_BYTES)
    assert b" 200 " in fits
    assert b" 431 " in too_large
    assert b"headers_too_large" in too_large
    assert long_query.status_code == 431


def _with_header_bytes(served: Served, size_bytes: int) -> bytes:
    """The answer to a request whose path and headers have this size, sent in one piece."""
    address = urlsplit(served.url)
    fixed = ["Host: localhost", "Connection: close"]
    rest = size_bytes - len("/health") - sum(len(line) + 2 for line in fixed) - len("X: ") - 2
    lines = ["GET /health HTTP/1.1", *fixed, "X: " + "x" * rest, "", ""]
    with socket.create_connection((address.hostname, address.port), timeout=20) as connection:
        connection.sendall("\r\n".join(lines).encode())
        parts = []
        while part := connection.recv(4096):
            parts.append(part)
    return b"".join(parts)


# --- Administration -------------------------------------------------------------------------------------


@contextmanager
def administrated(
    runner: ScriptedRunner | None = None, **settings: object
) -> Iterator[tuple[Served, list[str]]]:
    stops: list[str] = []
    administration = Administration(TOKEN, lambda: stops.append("asked"), lambda: 30.0)
    with serve(runner, administration=administration, **settings) as served:  # type: ignore[arg-type]
        yield served, stops


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {ADMINISTRATION_HEADER: "wrong"},
        {ADMINISTRATION_HEADER: ""},
        {**TOKEN_HEADERS, "Origin": "http://localhost"},
        {**TOKEN_HEADERS, "X-Forwarded-For": "203.0.113.9"},
        {**TOKEN_HEADERS, "Forwarded": "for=203.0.113.9"},
        {**TOKEN_HEADERS, "Via": "1.1 proxy"},
        {**TOKEN_HEADERS, "X-Real-IP": "203.0.113.9"},
        {**TOKEN_HEADERS, "Host": "llm.example.net"},
    ],
)
def test_nobody_but_this_user_on_this_machine_drains(headers: dict[str, str]) -> None:
    with administrated(allowed_hosts=("llm.example.net",)) as (served, stops):
        for method in ("POST", "DELETE"):
            refused = httpx.request(method, served.url + DRAIN, headers=headers)
            assert refused.status_code == 403, refused.text
            assert TOKEN not in refused.text
        assert stops == []
        assert served.service.state.value == "ready"


def test_an_api_key_does_not_replace_the_token_and_is_wanted_beside_it(tmp_path: Path) -> None:
    administration = Administration(TOKEN, lambda: None, lambda: 30.0)
    with served_with_keys(tmp_path, administration=administration) as served:
        key = {"Authorization": f"Bearer {KEY}"}
        found = [
            httpx.post(served.url + DRAIN, headers=headers, json={"stay": True}).status_code
            for headers in (key, TOKEN_HEADERS, {**key, **TOKEN_HEADERS})
        ]
    assert found == [403, 401, 200]


def test_a_server_without_administration_drains_for_nobody() -> None:
    with serve() as served:
        refused = httpx.post(served.url + DRAIN, headers={ADMINISTRATION_HEADER: ""})
    assert (refused.status_code, refused.json()["error"]["code"]) == (403, "no_administration")


def test_a_placement_sample_is_not_passed_on_by_a_proxy() -> None:
    with serve() as served:
        assert httpx.get(served.url + "/placement").status_code == 200
        passed_on = httpx.get(served.url + "/placement", headers={"X-Forwarded-For": "203.0.113.9"})
    assert passed_on.status_code == 403


def test_a_drain_that_stays_ends_running_requests_refuses_new_ones_and_is_taken_back() -> None:
    runner = ScriptedRunner(lambda prompt: [b"a", b"b", b"c"], holds_steps=True)
    with administrated(runner) as (served, stops):
        runner.grant_steps(2)
        stream = served.client().completions.create(model=MODEL, prompt="p", stream=True)
        drained = httpx.post(served.url + DRAIN, headers=TOKEN_HEADERS, json={"stay": True}).json()
        assert drained == {
            "state": "draining",
            "requests_running": 1,
            "requests_waiting": 0,
            "drain_seconds": 30.0,
        }
        health = httpx.get(served.url + "/health")
        with pytest.raises(openai.InternalServerError) as refused:
            served.client().completions.create(model=MODEL, prompt="late")
        runner.release()
        text = "".join(chunk.choices[0].text for chunk in stream)
        wait_until(lambda: served.engine.status().running == 0)
        assert httpx.post(served.url + DRAIN, headers=TOKEN_HEADERS, json={"stay": True}).status_code == 200
        undone = httpx.delete(served.url + DRAIN, headers=TOKEN_HEADERS)
        assert served.client().completions.create(model=MODEL, prompt="again").choices[0].text == "abc"
    assert text == "abc", "what ran when the drain came is answered whole"
    assert (health.status_code, health.json()) == (503, {"status": "draining"})
    assert refused.value.status_code == 503
    assert refused.value.code == "unavailable"
    assert int(refused.value.response.headers["retry-after"]) >= 1
    assert undone.json()["state"] == "ready"
    assert stops == []


def test_a_drain_asks_for_an_orderly_end() -> None:
    with administrated() as (served, stops):
        for body in (None, {}, {"stay": False}):
            answer = httpx.post(served.url + DRAIN, headers=TOKEN_HEADERS, json=body)
            assert answer.status_code == 200, answer.text
    assert stops == ["asked"] * 3


def test_neither_a_loading_nor_a_stopping_daemon_is_paused_or_resumed() -> None:
    with administrated(is_loaded=False) as (served, _):
        loading = httpx.post(served.url + DRAIN, headers=TOKEN_HEADERS, json={"stay": True})
        served.make_ready()
        served.service.draining()
        stopping = httpx.delete(served.url + DRAIN, headers=TOKEN_HEADERS)
        again = httpx.post(served.url + DRAIN, headers=TOKEN_HEADERS, json={"stay": True})
        assert served.service.state.value == "draining"
    assert [answer.status_code for answer in (loading, stopping, again)] == [409, 409, 409]
    assert loading.json()["error"]["code"] == "not_serving"


@pytest.mark.parametrize("body", [b"[]", b"{", b'{"stay": "yes"}', b'{"stey": true}'])
def test_a_drain_with_a_wrong_body_changes_nothing(body: bytes) -> None:
    with administrated() as (served, stops):
        refused = httpx.post(served.url + DRAIN, headers=TOKEN_HEADERS, content=body)
        assert served.service.state.value == "ready"
    assert (refused.status_code, stops) == (400, [])


def test_a_request_without_a_host_of_this_machine_is_not_administrated() -> None:
    with administrated() as (served, stops):
        address = urlsplit(served.url)
        connection = http.client.HTTPConnection(address.hostname or "", address.port, timeout=20)
        connection.putrequest("POST", DRAIN, skip_host=True)
        connection.putheader("Host", "evil.example")
        connection.putheader(ADMINISTRATION_HEADER, TOKEN)
        connection.endheaders()
        assert connection.getresponse().status == 403
    assert stops == []
