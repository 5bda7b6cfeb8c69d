"""What the server refuses, with which status, and whether it names the reason."""

from __future__ import annotations

import http.client
import json
import socket
from urllib.parse import urlsplit

import httpx
import openai
import pytest

from tests.serving.support.scripted_runner import ScriptedRunner
from tests.serving.support.served import MODEL, serve

CHAT = "/v1/chat/completions"
PLAIN = "/v1/completions"
TOOLS = [{"type": "function", "function": {"name": "f"}}]


def _tool(parameters: dict[str, object]) -> dict[str, object]:
    return {"type": "function", "function": {"name": "f", "parameters": parameters}}


def _schema(schema: dict[str, object], **others: object) -> dict[str, object]:
    return {"type": "json_schema", "json_schema": {"name": "answer", "schema": schema, **others}}


HELLO = {"model": MODEL, "messages": [{"role": "user", "content": "Hi"}]}


@pytest.mark.parametrize(
    ("change", "parameter"),
    [
        ({"tools": [{"type": "custom", "custom": {"name": "f"}}]}, "tools.0"),
        ({"tools": [{"type": "function", "function": {"name": "a b"}}]}, "tools.0.function.name"),
        ({"tools": [{"type": "function", "function": {"name": "f"}}] * 2}, "tools"),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"tools": TOOLS, "tool_choice": {"type": "function", "function": {"name": "g"}}}, "tool_choice"),
        ({"tools": TOOLS, "grammar": 'root ::= "x"'}, "grammar"),
        ({"tools": TOOLS, "response_format": {"type": "json_object"}}, "response_format"),
        (
            {"tools": [_tool({"type": "object", "properties": {"a": {"type": "thing"}}})]},
            "tools.0.function.parameters",
        ),
        ({"reasoning_effort": "low"}, "reasoning_effort"),
        ({"reasoning_effort": "a lot"}, "reasoning_effort"),
        ({"chat_template_kwargs": {"enable_thinking": False}}, "chat_template_kwargs.enable_thinking"),
        ({"chat_template_kwargs": {"messages": []}}, "chat_template_kwargs.messages"),
        ({"functions": [{"name": "f"}]}, "functions"),
        ({"logprobs": 3}, "logprobs"),
        ({"logprobs": True, "top_logprobs": 21}, "top_logprobs"),
        ({"top_logprobs": 3}, "top_logprobs"),
        ({"n": 2}, "n"),
        ({"n": True}, "n"),
        ({"response_format": {"type": "xml"}}, "response_format.type"),
        ({"response_format": {"type": "json_schema"}}, "response_format"),
        ({"response_format": _schema({"type": "thing"})}, "response_format.json_schema.schema"),
        ({"response_format": _schema({"not": {}}, strict=True)}, "response_format.json_schema.schema"),
        ({"temprature": 1}, "temprature"),
        ({"temperature": "hot"}, "temperature"),
        ({"temperature": -1}, "temperature"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"max_tokens": 1.5}, "max_tokens"),
        ({"stop": 3}, "stop"),
        ({"stop": [""]}, "stop"),
        ({"stream": "yes"}, "stream"),
        ({"stream_options": {"include_usages": True}}, "stream_options.include_usages"),
        ({"logit_bias": {"x": 1}}, "logit_bias"),
        ({"messages": []}, "messages"),
        ({"messages": [{"role": "critic", "content": "x"}]}, "messages.0.role"),
        ({"messages": [{"role": "tool", "content": "x"}]}, "messages.0"),
        ({"messages": [{"role": "user", "content": "x", "tool_call_id": "1"}]}, "messages.0"),
        ({"messages": [{"role": "user", "content": None}]}, "messages.0"),
        (
            {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}]},
            "messages.0",
        ),
    ],
)
def test_a_parameter_that_is_wrong_or_unsupported_is_named(change: dict[str, object], parameter: str) -> None:
    with serve() as served:
        response = httpx.post(served.url + CHAT, json={**HELLO, **change})
        assert served.runner.prompts == []
    error = response.json()["error"]
    assert response.status_code == 400, error
    assert error["param"].startswith(parameter), error
    assert error["type"] == "invalid_request_error"


def test_parameters_that_ask_for_nothing_are_accepted() -> None:
    inactive = {
        "n": 1,
        "logprobs": False,
        "tools": None,
        "tool_choice": "none",
        "parallel_tool_calls": True,
        "reasoning_effort": "none",
        "response_format": {"type": "text"},
        "user": "me",
        "seed": None,
    }
    with serve() as served:
        assert httpx.post(served.url + CHAT, json={**HELLO, **inactive}).status_code == 200


@pytest.mark.parametrize(
    "body", [b"", b"{", b"[]", b"nul", b'"x"', b"\xff", b"[" * 100_000, b'{"temperature": NaN}']
)
def test_a_body_that_is_no_json_object_is_400(body: bytes) -> None:
    with serve() as served:
        response = httpx.post(served.url + CHAT, content=body)
    assert response.status_code == 400
    assert response.json()["error"]["code"] == "invalid_json"


def test_a_prompt_longer_than_the_context_is_refused_with_the_numbers() -> None:
    with serve(ScriptedRunner(context_tokens=32)) as served:
        fits = httpx.post(served.url + PLAIN, json={"prompt": "x" * 30})
        too_long = httpx.post(served.url + PLAIN, json={"prompt": "x" * 31})
        messages = [{"role": "user", "content": "x" * 31}]
        too_long_chat = httpx.post(served.url + CHAT, json={"messages": messages})
    assert fits.status_code == 200
    assert too_long_chat.json()["error"]["param"] == "messages"
    assert too_long.json()["error"]["param"] == "prompt"
    assert too_long.status_code == 400
    assert too_long.json()["error"]["code"] == "context_length_exceeded"
    assert "32 tokens" in too_long.json()["error"]["message"]
    assert "context holds 32" in too_long.json()["error"]["message"]


def test_token_ids_outside_the_vocabulary_are_refused() -> None:
    with serve() as served:
        last = served.runner.vocabulary.token_count - 1
        too_large = httpx.post(served.url + PLAIN, json={"prompt": [last + 1]})
        negative = httpx.post(served.url + PLAIN, json={"prompt": [-1]})
        allowed = httpx.post(served.url + PLAIN, json={"prompt": "p", "logit_bias": {str(last): 1}})
        biased = httpx.post(served.url + PLAIN, json={"prompt": "p", "logit_bias": {str(last + 1): 1}})
    assert (too_large.status_code, negative.status_code) == (400, 400)
    assert (allowed.status_code, biased.status_code) == (200, 400)
    assert biased.json()["error"]["param"] == "logit_bias"
    assert too_large.json()["error"]["param"] == "prompt"


def test_a_grammar_that_does_not_parse_is_refused_and_the_next_request_is_answered() -> None:
    with serve() as served:
        refused = httpx.post(served.url + PLAIN, json={"prompt": "p", "grammar": "broken", "stream": True})
        assert httpx.post(served.url + PLAIN, json={"prompt": "p"}).status_code == 200
    assert refused.status_code == 400
    assert refused.json()["error"]["param"] == "grammar"


def test_a_template_that_refuses_the_messages_is_400_with_its_words() -> None:
    template = "{% if messages | length > 1 %}{{ raise_exception('roles must alternate') }}{% endif %}x"
    with serve(ScriptedRunner(chat_template=template)) as served:
        response = httpx.post(served.url + CHAT, json={**HELLO, "messages": HELLO["messages"] * 2})
    assert response.status_code == 400
    assert "roles must alternate" in response.json()["error"]["message"]


def test_a_body_at_the_limit_is_read_and_one_byte_more_is_413() -> None:
    frame = len(json.dumps({"prompt": ""}))
    with serve(max_body_bytes=2048) as served:
        fits = httpx.post(served.url + PLAIN, content=json.dumps({"prompt": "x" * (2048 - frame)}))
        too_large = httpx.post(served.url + PLAIN, content=json.dumps({"prompt": "x" * (2049 - frame)}))
        # Without a length announced the limit holds as well.
        chunked = httpx.post(served.url + PLAIN, content=(b"x" * 512 for _ in range(5)))
    assert fits.status_code == 400, "too long for the context, but read"
    assert fits.json()["error"]["code"] == "context_length_exceeded"
    assert (too_large.status_code, chunked.status_code) == (413, 413)


def test_a_body_announced_as_too_large_is_refused_without_waiting_for_it() -> None:
    with serve(max_body_bytes=2048) as served:
        address = urlsplit(served.url)
        with socket.create_connection((address.hostname, address.port), timeout=20) as connection:
            head = f"POST {PLAIN} HTTP/1.1\r\nHost: localhost\r\nContent-Length: 2049\r\n\r\n"
            connection.sendall(head.encode())
            assert b" 413 " in connection.recv(200)


def test_while_loading_requests_and_health_are_503() -> None:
    with serve(is_loaded=False) as served:
        health = httpx.get(served.url + "/health")
        with pytest.raises(openai.InternalServerError) as refused:
            served.client().completions.create(model=MODEL, prompt="p")
    assert (health.status_code, health.json()["status"]) == (503, "loading")
    assert refused.value.status_code == 503
    assert refused.value.response.headers["retry-after"]
    assert refused.value.code == "unavailable"


def test_unknown_paths_and_methods_are_errors_in_openais_shape() -> None:
    with serve() as served:
        missing = httpx.get(served.url + "/v1/audio")
        wrong_method = httpx.get(served.url + CHAT)
    assert (missing.status_code, wrong_method.status_code) == (404, 405)
    assert "/v1/audio" in missing.json()["error"]["message"]
    assert wrong_method.headers["allow"] == "POST"


def _get_with_host(url: str, host: str) -> int:
    address = urlsplit(url)
    connection = http.client.HTTPConnection(address.hostname or "", address.port, timeout=20)
    connection.putrequest("GET", "/health", skip_host=True)
    connection.putheader("Host", host)
    connection.endheaders()
    return connection.getresponse().status


def test_only_this_machines_names_are_served_on_loopback() -> None:
    with serve() as served:
        good = [
            _get_with_host(served.url, host) for host in ("localhost:1", "127.0.0.1", "[::1]:80", "LOCALHOST")
        ]
        bad = [
            _get_with_host(served.url, host)
            for host in ("evil.example", "127.0.0.1.evil.example", "10.0.0.1")
        ]
    assert good == [200, 200, 200, 200]
    assert bad == [403, 403, 403]


def test_headers_without_end_are_cut_off() -> None:
    with serve() as served:
        address = urlsplit(served.url)
        with socket.create_connection((address.hostname, address.port), timeout=20) as connection:
            connection.sendall(b"GET /health HTTP/1.1\r\nHost: localhost\r\nX: " + b"x" * 40_000)
            assert b" 400 " in connection.recv(200)


def test_embeddings_are_refused_because_this_model_gives_none() -> None:
    with serve() as served, pytest.raises(openai.BadRequestError, match="gives no embeddings") as refused:
        served.client().embeddings.create(model=MODEL, input="text")
    assert (refused.value.param, refused.value.code) == ("model", "unsupported_endpoint")
