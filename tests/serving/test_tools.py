"""Tools, thinking and their streams over HTTP, in what models of several families write."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import httpx
import openai
import pytest
from openai.lib.streaming.chat import ChatCompletionStreamState

pytest.importorskip("stratad._native", reason="the native module is not built")

from tests.serving.support.scripted_runner import ScriptedRunner
from tests.serving.support.served import MODEL, serve
from tests.support.native_build import llama_source

HI = [{"role": "user", "content": "Hi"}]
TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "find",
            "description": "Finds",
            "parameters": {
                "type": "object",
                "properties": {"word": {"type": "string"}},
                "required": ["word"],
            },
        },
    },
    {"type": "function", "function": {"name": "stop"}},
]


def _template(name: str) -> str:
    return Path(llama_source(), "models", "templates", f"{name}.jinja").read_text(encoding="utf-8")


def _runner(template: str | None, pieces: Sequence[str]) -> ScriptedRunner:
    written = [piece.encode() for piece in pieces]
    return ScriptedRunner(
        lambda prompt: written,
        chat_template=None if template is None else _template(template),
        context_tokens=8192,
        batch_tokens=512,
    )


def _stream(client: openai.OpenAI, **body: object) -> openai.types.chat.ChatCompletion:
    """The whole answer as the client's own helper joins it."""
    state = ChatCompletionStreamState()
    for chunk in client.chat.completions.create(model=MODEL, messages=HI, stream=True, **body):
        state.handle_chunk(chunk)
    return state.get_final_completion()


QWEN = [
    "<think>", "\nWhich", " word? 🦊\n", "</th", "ink>\n\n", "Let me", " look.\n<tool", "_call>\n",
    '{"name": "fi', 'nd", "argu', 'ments": {"word": "f', 'ö"}}\n</tool_call>\n<tool_call>\n{"name": "stop", ',
    '"arguments": {}}\n</tool_call>',
]  # fmt: skip


def test_an_answer_has_thinking_text_and_calls_in_openais_shape() -> None:
    with serve(_runner("Qwen-Qwen3-0.6B", QWEN)) as served:
        answer = served.client().chat.completions.create(model=MODEL, messages=HI, tools=TOOLS)
    (choice,) = answer.choices
    assert choice.finish_reason == "tool_calls"
    assert choice.message.reasoning_content.strip() == "Which word? 🦊"
    assert choice.message.content.strip() == "Let me look."
    assert [call.function.name for call in choice.message.tool_calls] == ["find", "stop"]
    assert json.loads(choice.message.tool_calls[0].function.arguments) == {"word": "fö"}
    assert json.loads(choice.message.tool_calls[1].function.arguments) == {}


def test_its_stream_joins_to_the_same() -> None:
    with serve(_runner("Qwen-Qwen3-0.6B", QWEN)) as served:
        whole = served.client().chat.completions.create(model=MODEL, messages=HI, tools=TOOLS).choices[0]
        streamed = _stream(served.client(), tools=TOOLS).choices[0]
    assert streamed.finish_reason == "tool_calls"
    assert streamed.message.content == whole.message.content
    assert streamed.message.reasoning_content == whole.message.reasoning_content
    for left, right in zip(streamed.message.tool_calls, whole.message.tool_calls, strict=True):
        assert left.function.name == right.function.name
        assert left.function.arguments == right.function.arguments


def test_the_chunks_of_a_call_begin_with_id_and_name_and_go_on_with_arguments() -> None:
    with serve(_runner("Qwen-Qwen3-0.6B", QWEN)) as served:
        chunks = list(
            served.client().chat.completions.create(model=MODEL, messages=HI, tools=TOOLS, stream=True)
        )
    deltas = [call for chunk in chunks for call in chunk.choices[0].delta.tool_calls or []]
    heads = [call for call in deltas if call.id]
    assert [(call.index, call.type, call.function.name) for call in heads] == [
        (0, "function", "find"),
        (1, "function", "stop"),
    ]
    assert all(call.function.name is None for call in deltas if not call.id)
    assert len(deltas) > len(heads), "the arguments came in pieces"
    # Nothing of the marks is ever shown.
    shown = "".join(chunk.choices[0].delta.content or "" for chunk in chunks)
    assert "<" not in shown


def test_without_tools_the_form_of_a_call_is_text() -> None:
    with serve(_runner("Qwen-Qwen3-0.6B", ["<tool_call>", "x"])) as served:
        answer = served.client().chat.completions.create(model=MODEL, messages=HI).choices[0]
    assert answer.message.content == "<tool_call>x"
    assert answer.message.tool_calls is None
    assert answer.finish_reason == "stop"


def test_a_call_cut_by_the_limit_ends_by_length_with_what_there_is() -> None:
    with serve(_runner("Qwen-Qwen3-0.6B", QWEN)) as served:
        answer = served.client().chat.completions.create(model=MODEL, messages=HI, tools=TOOLS, max_tokens=11)
        with pytest.raises(openai.LengthFinishReasonError) as cut:
            _stream(served.client(), tools=TOOLS, max_tokens=11)
    (call,) = answer.choices[0].message.tool_calls
    assert answer.choices[0].finish_reason == "length"
    assert call.function.arguments.startswith('{"word": "f') or call.function.arguments == "{"
    streamed = cut.value.completion.choices[0].message.tool_calls[0]
    assert streamed.function.arguments == call.function.arguments


CHANNELS = [
    "<|channel|>", "analysis", "<|message|>", "Hm.", "<|end|>", "<|start|>", "assistant", "<|channel|>", "final",
    "<|message|>", "Yes", ".",
]  # fmt: skip


def test_marks_that_are_tokens_without_text_are_read() -> None:
    """gpt-oss: channels are control tokens, which give no text of their own."""
    runner = _runner(
        "openai-gpt-oss-120b",
        CHANNELS,
    )
    vocabulary = runner.vocabulary
    marks = {"<|channel|>", "<|message|>", "<|end|>", "<|start|>"}
    tokens = {mark: vocabulary.token_of(mark.encode()) for mark in marks}
    plain_bytes, plain_tokenize = vocabulary.token_bytes, vocabulary.tokenize
    vocabulary.token_bytes = lambda token: b"" if token in tokens.values() else plain_bytes(token)
    vocabulary.tokenize = lambda text, **how: (
        [tokens[text]] if text in tokens and how["parse_special"] else plain_tokenize(text, **how)
    )
    with serve(runner) as served:
        answer = served.client().chat.completions.create(model=MODEL, messages=HI).choices[0]
    assert (answer.message.reasoning_content, answer.message.content) == ("Hm.", "Yes.")


@pytest.mark.parametrize(("choice", "is_lazy"), [("auto", True), ("required", False)])
def test_the_grammar_holds_at_once_or_from_the_call_on(choice: str, is_lazy: bool) -> None:
    with serve(_runner("Qwen-Qwen3-0.6B", QWEN)) as served:
        served.client().chat.completions.create(model=MODEL, messages=HI, tools=TOOLS, tool_choice=choice)
        (sampling,) = served.runner.samplings
    assert sampling.grammar is not None
    assert bool(sampling.grammar.trigger_words) == is_lazy
    assert sampling.grammar.prefix == "<|im_start|>assistant\n"
    assert sampling.grammar.thinking_ends == ("</think>",)


def test_a_choice_of_none_holds_nothing_and_shows_the_tools_all_the_same() -> None:
    with serve(_runner("Qwen-Qwen3-0.6B", ["Hi"])) as served:
        served.client().chat.completions.create(model=MODEL, messages=HI, tools=TOOLS, tool_choice="none")
        (sampling,), (prompt,) = served.runner.samplings, served.runner.prompts
    assert sampling.grammar is None
    assert b'"find"' in prompt


def test_a_named_tool_is_the_only_one_in_the_grammar_and_one_of_all_in_the_prompt() -> None:
    named = {"type": "function", "function": {"name": "stop"}}
    with serve(_runner("Qwen-Qwen3-0.6B", QWEN)) as served:
        served.client().chat.completions.create(model=MODEL, messages=HI, tools=TOOLS, tool_choice=named)
        (sampling,), (prompt,) = served.runner.samplings, served.runner.prompts
    assert "stop" in sampling.grammar.text
    assert "find" not in sampling.grammar.text
    assert b'"find"' in prompt


def test_earlier_calls_and_results_stand_in_the_prompt_as_the_template_writes_them() -> None:
    messages = [
        *HI,
        {
            "role": "assistant",
            "content": None,
            "tool_calls": [
                {"id": "1", "type": "function", "function": {"name": "find", "arguments": '{"word": "x"}'}}
            ],
        },
        {"role": "tool", "tool_call_id": "1", "content": "Nothing."},
    ]
    with serve(_runner("Qwen-Qwen3-0.6B", ["Oh."])) as served:
        served.client().chat.completions.create(model=MODEL, messages=messages, tools=TOOLS)
        (prompt,) = served.runner.prompts
    assert b'<tool_call>\n{"name": "find", "arguments": {"word": "x"}}\n</tool_call>' in prompt
    assert b"<tool_response>\nNothing.\n</tool_response>" in prompt


PLAIN_TEMPLATE = "{% for m in messages %}[{{ m.role }}] {{ m.content }}\n{% endfor %}>"
CALL = ['Sure.\n<tool_call>\n{"name": "find", ', '"arguments": {"word": "x"}}\n</tool_call>']


def test_a_template_without_tools_has_them_told_and_called_in_plain_text() -> None:
    runner = ScriptedRunner(
        lambda prompt: [piece.encode() for piece in CALL],
        chat_template=PLAIN_TEMPLATE,
        context_tokens=2048,
        batch_tokens=512,
    )
    result = {"role": "tool", "tool_call_id": "1", "content": "Nothing."}
    with serve(runner) as served:
        answer = served.client().chat.completions.create(model=MODEL, messages=HI, tools=TOOLS).choices[0]
        messages = [*HI, answer.message.model_dump(), result]
        served.client().chat.completions.create(model=MODEL, messages=messages, tools=TOOLS)
        served.client().chat.completions.create(model=MODEL, messages=HI, tools=TOOLS, tool_choice="none")
    assert answer.finish_reason == "tool_calls"
    assert answer.message.content.strip() == "Sure."
    assert json.loads(answer.message.tool_calls[0].function.arguments) == {"word": "x"}
    first, second, none = (prompt.decode() for prompt in runner.prompts)
    assert first.startswith("[system] You can call these functions:\n")
    assert '"name": "find"' in first
    assert first.endswith("\n[user] Hi\n>")
    assert (
        '[assistant] Sure.\n\n<tool_call>\n{"name": "find", "arguments": {"word": "x"}}\n</tool_call>'
        in second
    )
    assert "[user] <tool_response>\nNothing.\n</tool_response>" in second
    assert none == "[user] Hi\n>"


def test_thinking_can_be_turned_off_and_what_the_template_does_not_read_is_refused() -> None:
    with serve(_runner("Qwen-Qwen3-0.6B", ["Hi"])) as served:
        client = served.client()
        client.chat.completions.create(model=MODEL, messages=HI, reasoning_effort="none")
        off = {"chat_template_kwargs": {"enable_thinking": False}}
        client.chat.completions.create(model=MODEL, messages=HI, extra_body=off)
        first, second = served.runner.prompts
        odd = httpx.post(
            served.url + "/v1/chat/completions",
            json={"messages": HI, "chat_template_kwargs": {"thinking_budget": 3}},
        )
    assert first == second
    assert first.endswith(b"<think>\n\n</think>\n\n")
    assert odd.status_code == 400
    assert odd.json()["error"]["param"] == "chat_template_kwargs.thinking_budget"


def test_a_degree_of_reasoning_reaches_a_template_that_has_them() -> None:
    with serve(_runner("openai-gpt-oss-120b", ["<|channel|>final<|message|>Hi"])) as served:
        served.client().chat.completions.create(model=MODEL, messages=HI, reasoning_effort="high")
        assert b"Reasoning: high" in served.runner.prompts[0]


def test_likelihoods_come_once_each_with_the_deltas_of_an_answer_in_parts() -> None:
    with serve(_runner("Qwen-Qwen3-0.6B", QWEN)) as served:
        chunks = list(
            served.client().chat.completions.create(
                model=MODEL, messages=HI, tools=TOOLS, stream=True, logprobs=True
            )
        )
    likelihoods = [chunk.choices[0].logprobs for chunk in chunks if chunk.choices[0].logprobs]
    told = b"".join(bytes(token.bytes) for entry in likelihoods for token in entry.content)
    assert told == "".join(QWEN).encode()


def test_a_template_that_cannot_render_a_question_is_replaced_at_load() -> None:
    runner = ScriptedRunner(chat_template="{{ raise_exception('never') }}")
    with serve(runner) as served:
        served.client().chat.completions.create(model=MODEL, messages=HI)
    assert runner.prompts == [b"<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n"]
