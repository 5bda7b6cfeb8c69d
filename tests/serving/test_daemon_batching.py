"""The real daemon on the demo model with several real clients at once: each gets the answer it gets alone."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Iterator

import httpx
import openai
import pytest

from tests.serving.support.daemon_process import LIMIT_SECONDS, DaemonProcess, started
from tests.serving.support.served import wait_until

pytest.importorskip("stratad._native", reason="the native module is not built")

from stratad.daemon.main import demo_model_path

SLOTS = 4
MAX_TOKENS = 24
# More than there are slots, short and long; the long one is computed in chunks between the others' tokens.
PROMPTS = (
    "The next morning, Elizabeth",
    "It is a truth",
    "Mr. Darcy had never been so",
    "She was " + "very happy and " * 40,
    "When they",
    "The whole party",
    "I am afraid, sir, that",
    "London in the winter",
)


@pytest.fixture(scope="module", params=["ggml", "auto"])
def daemon(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[DaemonProcess]:
    settings = f'slots = {SLOTS}\nchunk_tokens = 16\n[placement]\nkernels = "{request.param}"\n'
    with started(tmp_path_factory.mktemp("batching"), demo_model_path(), settings=settings) as process:
        process.wait_for("READY=1")
        yield process


def _client(daemon: DaemonProcess) -> openai.AsyncOpenAI:
    return openai.AsyncOpenAI(
        base_url=daemon.endpoint + "/v1", api_key="unused", max_retries=0, timeout=LIMIT_SECONDS
    )


async def _stream(client: openai.AsyncOpenAI, prompt: str, max_tokens: int = MAX_TOKENS) -> str:
    stream = await client.completions.create(
        model="tiny", prompt=prompt, max_tokens=max_tokens, temperature=0, stream=True
    )
    return "".join([chunk.choices[0].text async for chunk in stream])


async def _one_by_one(daemon: DaemonProcess) -> list[str]:
    async with _client(daemon) as client:
        return [await _stream(client, prompt) for prompt in PROMPTS]


async def _at_once(daemon: DaemonProcess) -> list[str]:
    async with _client(daemon) as client:
        return await asyncio.gather(*(_stream(client, prompt) for prompt in PROMPTS))


def _are_the_same(answers: list[str], alone: list[str]) -> bool:
    """Whether these are the answers given alone, but for rounding.

    How many rows share a call depends on when requests arrive, and moves last bits: one token in thousands is
    another, and the text after it. A mix-up of sequences changes nearly all, from their beginning on.
    """
    same = [one == other for one, other in zip(answers, alone, strict=True)]
    return sum(same) >= len(same) - 1


def _decode(daemon: DaemonProcess) -> dict[str, int]:
    document: dict[str, int] = httpx.get(daemon.endpoint + "/status").json()["decode"]
    return document


def test_greedy_streams_say_the_same_alone_and_at_once(daemon: DaemonProcess) -> None:
    alone = asyncio.run(_one_by_one(daemon))
    assert len(set(alone)) == len(PROMPTS)
    assert all(alone)
    for _ in range(2):
        before = _decode(daemon)
        assert _are_the_same(asyncio.run(_at_once(daemon)), alone)
        after = _decode(daemon)
        tokens = after["generation_tokens"] - before["generation_tokens"]
        assert after["decode_steps"] - before["decode_steps"] < tokens, "several answers shared their calls"
    assert (after["requests_running"], after["requests_waiting"], after["slots"]) == (0, 0, SLOTS)


def test_clients_that_leave_do_not_change_what_the_others_get(daemon: DaemonProcess) -> None:
    async def with_leavers() -> list[str]:
        async with _client(daemon) as client:
            staying = [asyncio.ensure_future(_stream(client, prompt)) for prompt in PROMPTS[:3]]
            for _ in range(4):
                stream = await client.completions.create(
                    model="tiny", prompt="Leaving", max_tokens=900, temperature=0, stream=True
                )
                await anext(aiter(stream))
                await stream.close()
            return await asyncio.gather(*staying)

    alone = asyncio.run(_one_by_one(daemon))
    assert _are_the_same(asyncio.run(with_leavers()), alone[:3])
    wait_until(lambda: _decode(daemon)["requests_running"] == 0)


def test_a_conversation_that_goes_on_is_computed_from_where_it_was(daemon: DaemonProcess) -> None:
    async def talk() -> tuple[int, int]:
        async with _client(daemon) as client:
            beginning = "Captain Wentworth was not the man " * 8
            first = await client.completions.create(model="tiny", prompt=beginning, max_tokens=1)
            others = [_stream(client, prompt, 8) for prompt in PROMPTS[: SLOTS - 1]]
            await asyncio.gather(*others)
            again = await client.completions.create(
                model="tiny", prompt=beginning + "to forget", max_tokens=1
            )
            assert first.usage is not None
            assert again.usage is not None
            assert again.usage.prompt_tokens_details is not None
            return first.usage.prompt_tokens, again.usage.prompt_tokens_details.cached_tokens or 0

    prompt_tokens, cached_tokens = asyncio.run(talk())
    assert prompt_tokens > 8
    assert prompt_tokens - 2 <= cached_tokens <= prompt_tokens


def test_likelihoods_are_the_models_own_and_rank_the_greedy_choice_first(daemon: DaemonProcess) -> None:
    client = openai.OpenAI(base_url=daemon.endpoint + "/v1", api_key="unused", max_retries=0)
    whole = client.completions.create(
        model="tiny", prompt=PROMPTS[0], max_tokens=8, temperature=0, logprobs=5
    )
    columns = whole.choices[0].logprobs
    assert columns is not None
    assert columns.tokens is not None
    assert columns.top_logprobs is not None
    assert columns.token_logprobs is not None
    assert "".join(columns.tokens) == whole.choices[0].text
    for token, likelihood, likeliest in zip(
        columns.tokens, columns.token_logprobs, columns.top_logprobs, strict=True
    ):
        assert likelihood == max(likeliest.values()) == likeliest[token]
        assert list(likeliest.values()) == sorted(likeliest.values(), reverse=True)
        assert sum(math.exp(value) for value in likeliest.values()) <= 1 + 1e-9
    # Temperature changes the choice, not what the model thinks of it.
    warm = client.completions.create(
        model="tiny", prompt=PROMPTS[0], max_tokens=1, temperature=5, seed=3, logprobs=5
    )
    assert warm.choices[0].logprobs is not None
    assert warm.choices[0].logprobs.top_logprobs is not None
    for token, likelihood in warm.choices[0].logprobs.top_logprobs[0].items():
        assert likelihood == pytest.approx(columns.top_logprobs[0][token], abs=0.1)
