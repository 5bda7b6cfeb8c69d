"""What OpenAI's clients ask, of the real daemon on the demo model: it knows no tools and no JSON, so all form comes
from the grammar.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from typing import Literal

import httpx
import openai
import pydantic
import pytest
from openai.lib.streaming.chat import ChatCompletionStreamState

from tests.serving.support.daemon_process import LIMIT_SECONDS, DaemonProcess, started

pytest.importorskip("stratad._native", reason="the native module is not built")

from stratad.daemon.main import demo_model_path

MESSAGES = [{"role": "user", "content": "It is a truth universally acknowledged, that"}]
WALK = {
    "type": "function",
    "function": {
        "name": "take_a_walk",
        "description": "Goes for a walk",
        "parameters": {
            "type": "object",
            "properties": {
                "place": {"type": "string", "enum": ["Meryton", "Netherfield"]},
                "miles": {"type": "integer", "minimum": 1, "maximum": 9},
            },
            "required": ["place", "miles"],
            "additionalProperties": False,
        },
    },
}
DANCE = {
    "type": "function",
    "function": {
        "name": "dance",
        "parameters": {
            "type": "object",
            "properties": {"partner": {"enum": ["Mr. Bingley", "Mr. Darcy"]}},
            "required": ["partner"],
        },
    },
}
LETTER = {
    "type": "object",
    "properties": {
        "from": {"enum": ["Jane", "Elizabeth"]},
        "pages": {"type": "integer", "minimum": 10, "maximum": 99},
        "sealed": {"type": "boolean"},
    },
    "required": ["from", "pages", "sealed"],
    "additionalProperties": False,
}
SAMPLING = {"model": "tiny", "max_tokens": 200, "seed": 3}


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DaemonProcess]:
    with started(tmp_path_factory.mktemp("openai"), demo_model_path()) as process:
        process.wait_for("READY=1")
        yield process


@pytest.fixture
def client(daemon: DaemonProcess) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(
        base_url=daemon.endpoint + "/v1", api_key="unused", max_retries=0, timeout=LIMIT_SECONDS
    ) as opened:
        yield opened


def _schema_format(schema: dict[str, object], *, strict: bool) -> dict[str, object]:
    return {"type": "json_schema", "json_schema": {"name": "letter", "schema": schema, "strict": strict}}


def _require_letter(text: str | None) -> None:
    letter = json.loads(text or "")
    assert set(letter) == {"from", "pages", "sealed"}
    assert letter["from"] in ("Jane", "Elizabeth")
    assert 10 <= letter["pages"] <= 99
    assert isinstance(letter["sealed"], bool)


@pytest.mark.parametrize("strict", [True, False])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_json_schema_holds_the_answer(client: openai.OpenAI, strict: bool, temperature: float) -> None:
    answer = client.chat.completions.create(
        messages=MESSAGES,
        temperature=temperature,
        response_format=_schema_format(LETTER, strict=strict),
        **SAMPLING,
    )
    _require_letter(answer.choices[0].message.content)
    assert answer.choices[0].finish_reason == "stop"


def test_a_streamed_answer_is_held_as_well_and_is_the_same(client: openai.OpenAI) -> None:
    form = _schema_format(LETTER, strict=True)
    whole = client.chat.completions.create(messages=MESSAGES, response_format=form, **SAMPLING)
    stream = client.chat.completions.create(messages=MESSAGES, response_format=form, stream=True, **SAMPLING)
    chunks = list(stream)
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks)
    _require_letter(text)
    assert text == whole.choices[0].message.content
    assert chunks[-1].choices[0].finish_reason == "stop"
    assert len(chunks) > 5, "it came in pieces"


def test_the_clients_own_parsing_of_a_pydantic_model_works(client: openai.OpenAI) -> None:
    class Visit(pydantic.BaseModel):
        guest: Literal["Mr. Collins", "Lady Catherine"]
        hours: Literal[1, 2, 3]

    parsed = client.chat.completions.parse(messages=MESSAGES, response_format=Visit, **SAMPLING)
    visit = parsed.choices[0].message.parsed
    assert isinstance(visit, Visit)


def test_a_json_object_is_json_or_was_cut_by_the_limit(client: openai.OpenAI) -> None:
    answer = client.chat.completions.create(
        messages=MESSAGES, response_format={"type": "json_object"}, temperature=0, **SAMPLING
    )
    choice = answer.choices[0]
    assert (choice.message.content or "").startswith("{")
    if choice.finish_reason == "stop":
        assert isinstance(json.loads(choice.message.content or ""), dict)


def test_a_plain_completion_takes_a_schema_too(daemon: DaemonProcess) -> None:
    body = {"prompt": "Dear", "response_format": _schema_format(LETTER, strict=True), "max_tokens": 200}
    response = httpx.post(daemon.endpoint + "/v1/completions", json=body, timeout=LIMIT_SECONDS)
    choice = response.json()["choices"][0]
    _require_letter(choice["text"])
    assert choice["finish_reason"] == "stop"


def test_a_required_tool_is_called_by_a_model_that_knows_none(client: openai.OpenAI) -> None:
    answer = client.chat.completions.create(
        messages=MESSAGES,
        tools=[WALK, DANCE],
        tool_choice="required",
        parallel_tool_calls=False,
        **SAMPLING,
    )
    choice = answer.choices[0]
    assert choice.finish_reason == "tool_calls"
    assert choice.message.content is None
    (call,) = choice.message.tool_calls
    assert call.type == "function"
    arguments = json.loads(call.function.arguments)
    if call.function.name == "dance":
        assert arguments["partner"] in ("Mr. Bingley", "Mr. Darcy")
    else:
        assert call.function.name == "take_a_walk"
        assert arguments["place"] in ("Meryton", "Netherfield")
        assert 1 <= arguments["miles"] <= 9


@pytest.mark.parametrize("name", ["take_a_walk", "dance"])
def test_a_named_tool_is_the_one_called_also_in_a_stream(client: openai.OpenAI, name: str) -> None:
    state = ChatCompletionStreamState()
    chunks = 0
    for chunk in client.chat.completions.create(
        messages=MESSAGES,
        tools=[WALK, DANCE],
        tool_choice={"type": "function", "function": {"name": name}},
        parallel_tool_calls=False,
        stream=True,
        **SAMPLING,
    ):
        state.handle_chunk(chunk)
        chunks += bool(chunk.choices and chunk.choices[0].delta.tool_calls)
    answer = state.get_final_completion()
    (call,) = answer.choices[0].message.tool_calls
    assert answer.choices[0].finish_reason == "tool_calls"
    assert call.id
    assert call.function.name == name
    assert json.loads(call.function.arguments)
    assert chunks > 2, "the arguments came in pieces"


def test_a_conversation_with_calls_and_results_goes_on(client: openai.OpenAI) -> None:
    first = client.chat.completions.create(
        messages=MESSAGES, tools=[DANCE], tool_choice="required", parallel_tool_calls=False, **SAMPLING
    )
    called = first.choices[0].message
    result = {"role": "tool", "tool_call_id": called.tool_calls[0].id, "content": "He declined."}
    second = client.chat.completions.create(
        messages=[*MESSAGES, called.model_dump(), result], tools=[DANCE], tool_choice="none", **SAMPLING
    )
    assert second.choices[0].message.content
    assert second.choices[0].message.tool_calls is None
    alone = client.chat.completions.create(messages=MESSAGES, **SAMPLING)
    # The call and its result are both there: longer than the arguments alone.
    added = second.usage.prompt_tokens - alone.usage.prompt_tokens
    assert added > len(called.tool_calls[0].function.arguments) // 4


def test_a_tool_that_may_be_called_leaves_the_model_free(client: openai.OpenAI) -> None:
    free = client.chat.completions.create(messages=MESSAGES, tools=[WALK], temperature=0, **SAMPLING)
    assert free.choices[0].message.content
    assert free.choices[0].finish_reason in ("stop", "length")


def test_several_async_clients_get_what_they_asked_for(daemon: DaemonProcess) -> None:
    async def ask() -> list[openai.types.chat.ChatCompletion]:
        async with openai.AsyncOpenAI(
            base_url=daemon.endpoint + "/v1", api_key="unused", max_retries=0, timeout=LIMIT_SECONDS
        ) as client:
            held = client.chat.completions.create(
                messages=MESSAGES, response_format=_schema_format(LETTER, strict=True), **SAMPLING
            )
            called = client.chat.completions.create(
                messages=MESSAGES,
                tools=[DANCE],
                tool_choice="required",
                parallel_tool_calls=False,
                **SAMPLING,
            )
            return list(await asyncio.gather(held, called))

    held, called = asyncio.run(ask())
    _require_letter(held.choices[0].message.content)
    assert called.choices[0].message.tool_calls[0].function.name == "dance"


def test_an_async_stream_of_a_call_is_read_by_the_clients_own_helper(daemon: DaemonProcess) -> None:
    async def ask() -> str:
        async with (
            openai.AsyncOpenAI(
                base_url=daemon.endpoint + "/v1", api_key="unused", max_retries=0, timeout=LIMIT_SECONDS
            ) as client,
            client.chat.completions.stream(
                messages=MESSAGES,
                tools=[DANCE],
                tool_choice="required",
                parallel_tool_calls=False,
                **SAMPLING,
            ) as stream,
        ):
            async for _ in stream:
                pass
            final = await stream.get_final_completion()
            return final.choices[0].message.tool_calls[0].function.arguments

    assert json.loads(asyncio.run(ask()))["partner"] in ("Mr. Bingley", "Mr. Darcy")


def test_a_schema_that_cannot_be_held_is_refused_with_its_place(client: openai.OpenAI) -> None:
    odd = {
        "type": "object",
        "properties": {"a": {"type": "array", "items": {"type": "string"}, "uniqueItems": True}},
    }
    with pytest.raises(openai.BadRequestError, match="#/properties/a: the keyword 'uniqueItems'") as refused:
        client.chat.completions.create(
            messages=MESSAGES, response_format=_schema_format(odd, strict=True), **SAMPLING
        )
    assert refused.value.code == "unsupported_schema"
    assert refused.value.param == "response_format.json_schema.schema"


def test_a_schema_too_large_for_a_grammar_is_refused_and_named(client: openai.OpenAI) -> None:
    nested = {"type": "string", "pattern": "^[a-z]{2001}$"}
    with pytest.raises(openai.BadRequestError, match="grammar cannot be used") as refused:
        client.chat.completions.create(
            messages=MESSAGES, response_format=_schema_format(nested, strict=False), **SAMPLING
        )
    assert refused.value.param == "response_format"


def test_a_tool_too_large_for_a_grammar_is_refused_and_named_also_beside_a_form_of_text(
    client: openai.OpenAI,
) -> None:
    word = {"type": "object", "properties": {"word": {"type": "string", "pattern": "^[a-z]{2001}$"}}}
    tool = {"type": "function", "function": {"name": "spell", "parameters": {**word, "required": ["word"]}}}
    with pytest.raises(openai.BadRequestError, match="grammar cannot be used") as refused:
        client.chat.completions.create(
            messages=MESSAGES,
            tools=[tool],
            tool_choice="required",
            response_format={"type": "text"},
            **SAMPLING,
        )
    assert refused.value.param == "tools"


def test_a_grammar_that_no_token_fits_ends_its_own_request_only(daemon: DaemonProcess) -> None:
    """Four in a row: as failures of the engine they would have ended the daemon."""
    for _ in range(4):
        body = {"prompt": "Dear", "grammar": 'root ::= "\\x00"', "max_tokens": 5}
        refused = httpx.post(daemon.endpoint + "/v1/completions", json=body, timeout=LIMIT_SECONDS)
        assert refused.status_code == 400, refused.text
        assert refused.json()["error"]["param"] == "grammar"
    good = httpx.post(
        daemon.endpoint + "/v1/completions",
        json={"prompt": "Dear", "grammar": 'root ::= "Sir"', "max_tokens": 20},
        timeout=LIMIT_SECONDS,
    )
    assert good.json()["choices"][0]["text"] == "Sir"
    assert good.json()["choices"][0]["finish_reason"] == "stop"


def test_sampling_parameters_do_what_they_say(client: openai.OpenAI) -> None:
    def text(**changes: object) -> str:
        asked = {"prompt": "She was", "max_tokens": 12, "temperature": 1.0, "model": "tiny", **changes}
        return client.completions.create(**asked).choices[0].text

    assert text(seed=5) == text(seed=5)
    assert text(seed=5) != text(seed=6)
    greedy = text(temperature=0)
    assert text(temperature=0, stop=greedy[4:8]) == greedy[: greedy.index(greedy[4:8])]
    capped = client.chat.completions.create(
        model="tiny", messages=MESSAGES, temperature=0, max_completion_tokens=3
    )
    assert (capped.usage.completion_tokens, capped.choices[0].finish_reason) == (3, "length")


def test_what_the_template_lacks_is_shown(daemon: DaemonProcess) -> None:
    reasons = httpx.get(daemon.endpoint + "/status", timeout=LIMIT_SECONDS).json()["reasons"]
    assert "tools-in-plain-text" in [reason["code"] for reason in reasons]
