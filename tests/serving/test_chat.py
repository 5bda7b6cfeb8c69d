"""Chat and plain completions through the real openai client."""

from __future__ import annotations

import openai
import pytest

from stratad.runner.protocol import Grammar
from tests.serving.support.scripted_runner import ScriptedRunner
from tests.serving.support.served import MODEL, serve

MESSAGES = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hi"}]


def test_a_chat_answer_has_text_usage_and_timings() -> None:
    with serve() as served:
        answer = served.client().chat.completions.create(model=MODEL, messages=MESSAGES)
    assert answer.choices[0].message.content == "Hello!"
    assert answer.choices[0].message.role == "assistant"
    assert answer.choices[0].finish_reason == "stop"
    assert answer.usage.completion_tokens == 4
    assert answer.usage.prompt_tokens == answer.timings["prompt_n"]
    assert answer.timings["predicted_n"] == 4
    assert answer.timings["prompt_ms"] >= 0


def test_the_prompt_is_the_messages_in_the_models_own_template() -> None:
    template = "{{ bos_token }}{% for m in messages %}[{{ m.role }}] {{ m.content }}{% endfor %}>"
    with serve(ScriptedRunner(chat_template=template)) as served:
        served.client().chat.completions.create(model=MODEL, messages=MESSAGES)
        assert served.runner.prompts == [b"[system] Be brief.[user] Hi>"]
        # The template wrote the start token; the vocabulary must not add a second one.
        assert served.runner.memories[0].count(256) == 1


def test_a_stream_gives_the_same_text_and_ends_with_usage() -> None:
    with serve() as served:
        chunks = list(
            served.client().chat.completions.create(
                model=MODEL, messages=MESSAGES, stream=True, stream_options={"include_usage": True}
            )
        )
    assert chunks[0].choices[0].delta.role == "assistant"
    assert [c.choices[0].delta.content for c in chunks[1:-2]] == ["He", "llo", "!"]
    assert chunks[-2].choices[0].finish_reason == "stop"
    assert chunks[-2].timings["predicted_n"] == 4
    assert chunks[-1].choices == []
    assert chunks[-1].usage.completion_tokens == 4
    assert len({chunk.id for chunk in chunks}) == 1


def test_a_stream_without_the_option_has_no_usage() -> None:
    with serve() as served:
        chunks = list(served.client().chat.completions.create(model=MODEL, messages=MESSAGES, stream=True))
    assert all(chunk.usage is None for chunk in chunks)
    assert chunks[-1].choices[0].finish_reason == "stop"


def test_a_plain_completion_takes_text_or_tokens() -> None:
    with serve() as served:
        client = served.client()
        assert client.completions.create(model=MODEL, prompt="abc").choices[0].text == "Hello!"
        assert client.completions.create(model=MODEL, prompt=[97, 98]).choices[0].text == "Hello!"
        assert client.completions.create(model=MODEL, prompt=["abc"]).choices[0].text == "Hello!"
        streamed = client.completions.create(model=MODEL, prompt="abc", stream=True)
        assert "".join(chunk.choices[0].text for chunk in streamed) == "Hello!"
        assert served.runner.prompts == [b"abc", b"ab", b"abc", b"abc"]


def test_max_tokens_ends_the_answer_by_length() -> None:
    with serve() as served:
        answer = served.client().completions.create(model=MODEL, prompt="abc", max_tokens=2)
        chat = served.client().chat.completions.create(
            model=MODEL, messages=MESSAGES, max_completion_tokens=1
        )
    assert (answer.choices[0].text, answer.choices[0].finish_reason) == ("Hello", "length")
    assert (chat.choices[0].message.content, chat.choices[0].finish_reason) == ("He", "length")


def test_an_answer_that_fills_the_context_ends_by_length() -> None:
    runner = ScriptedRunner(lambda prompt: [b"x"] * 1000, context_tokens=16)
    with serve(runner) as served:
        answer = served.client().completions.create(model=MODEL, prompt="abc")
    assert answer.choices[0].finish_reason == "length"
    # Start token and three bytes are the prompt; the last token needs no place in the context.
    assert answer.usage.completion_tokens == 16 - 4 + 1


@pytest.mark.parametrize("stop", ["END", ["nothing", "END"]])
def test_a_stop_string_across_tokens_ends_the_text_before_it(stop: str | list[str]) -> None:
    runner = ScriptedRunner(lambda prompt: [b"one E", b"N", b"x E", b"ND", b" two"])
    with serve(runner) as served:
        streamed = served.client().completions.create(model=MODEL, prompt="p", stop=stop, stream=True)
        chunks = list(streamed)
    assert "".join(chunk.choices[0].text for chunk in chunks) == "one ENx "
    assert chunks[-1].choices[0].finish_reason == "stop"


@pytest.mark.parametrize(("max_tokens", "reason"), [(2, "length"), (9, "stop")])
def test_text_held_back_for_a_stop_string_comes_out_when_the_answer_ends(
    max_tokens: int, reason: str
) -> None:
    runner = ScriptedRunner(lambda prompt: [b"one ", b"EN"])
    with serve(runner) as served:
        answer = served.client().completions.create(
            model=MODEL, prompt="p", stop="END", max_tokens=max_tokens
        )
    assert (answer.choices[0].text, answer.choices[0].finish_reason) == ("one EN", reason)


def test_a_character_split_over_tokens_arrives_whole() -> None:
    text = "grün 東京 🦊 ok"
    runner = ScriptedRunner(lambda prompt: [bytes([byte]) for byte in text.encode()])
    with serve(runner) as served:
        chunks = list(served.client().completions.create(model=MODEL, prompt="p", stream=True))
    assert "".join(chunk.choices[0].text for chunk in chunks) == text
    assert not any("�" in chunk.choices[0].text for chunk in chunks)


def test_sampling_parameters_reach_the_sampler() -> None:
    with serve() as served:
        served.client().completions.create(
            model=MODEL,
            prompt="p",
            temperature=0.5,
            top_p=0.25,
            seed=7,
            frequency_penalty=1.5,
            presence_penalty=-1,
            logit_bias={"12": -100, "3": 5},
            extra_body={
                "top_k": 3,
                "min_p": 0.125,
                "repeat_penalty": 1.25,
                "repeat_last_n": 9,
                "grammar": "g",
            },
        )
        sampling = served.runner.samplings[0]
    assert (sampling.temperature, sampling.top_p, sampling.top_k, sampling.min_p) == (0.5, 0.25, 3, 0.125)
    assert (sampling.frequency_penalty, sampling.presence_penalty) == (1.5, -1)
    assert (sampling.repeat_penalty, sampling.penalty_last_tokens) == (1.25, 9)
    assert (sampling.seed, sampling.grammar) == (7, Grammar("g"))
    assert sampling.logit_bias == ((3, 5.0), (12, -100.0))


def test_a_prompt_that_begins_like_the_last_one_is_computed_from_where_they_part() -> None:
    with serve() as served:
        client = served.client()
        client.completions.create(model=MODEL, prompt="The quick brown fox", max_tokens=1)
        again = client.completions.create(model=MODEL, prompt="The quick brown cat", max_tokens=1)
        same = client.completions.create(model=MODEL, prompt="The quick brown cat", max_tokens=1)
    common = 1 + len("The quick brown ")
    assert again.usage.prompt_tokens_details.cached_tokens == common
    assert again.timings["cache_n"] == common
    assert again.usage.prompt_tokens == 1 + len("The quick brown cat")
    # The last token is always computed: its logits give the first token of the answer.
    assert same.timings["prompt_n"] == 1
    assert served.runner.prompts[1] == b"The quick brown cat"


def test_memory_that_cannot_be_cut_starts_over() -> None:
    runner = ScriptedRunner()
    runner.truncate_failure = RuntimeError("recurrent")
    with serve(runner) as served:
        client = served.client()
        client.completions.create(model=MODEL, prompt="abcd", max_tokens=1)
        again = client.completions.create(model=MODEL, prompt="abxy", max_tokens=1)
    assert again.timings["cache_n"] == 0
    assert runner.prompts[1] == b"abxy"


def test_a_long_prompt_is_computed_in_batches() -> None:
    runner = ScriptedRunner(batch_tokens=8)
    with serve(runner) as served:
        served.client().completions.create(model=MODEL, prompt="x" * 20, max_tokens=1)
    assert runner.call_sizes == [8, 8, 5]


def test_models_lists_the_one_model() -> None:
    with serve() as served:
        assert [model.id for model in served.client().models.list()] == [MODEL]


def test_an_unknown_model_is_404() -> None:
    with serve() as served, pytest.raises(openai.NotFoundError) as refused:
        served.client().completions.create(model="other", prompt="p")
    assert refused.value.param == "model"
    assert refused.value.code == "model_not_found"
