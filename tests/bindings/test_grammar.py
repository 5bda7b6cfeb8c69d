"""Grammars over what a real model samples: enforced from the first token to the last, at any point they begin."""

from __future__ import annotations

import json
from collections.abc import Sequence

import pytest

pytest.importorskip("stratad._native", reason="the native module is not built")

from stratad import _native as native
from tests.support.gguf_models import write_model
from tests.support.native import load_plain

PROMPT = "The model says "


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> native.Model:
    return load_plain(write_model(tmp_path_factory.mktemp("model") / "tiny.gguf", vocabulary="bytes"))


class _Writer:
    """Samples token after token, each read by the model before the next."""

    def __init__(self, model: native.Model, prompt: str = PROMPT) -> None:
        self._model = model
        self._context = native.Context(model, context_tokens=1024, batch_tokens=64)
        self._position = 0
        self._decode(model.tokenize(prompt, add_special=False, parse_special=False))

    def _decode(self, tokens: Sequence[int]) -> None:
        batch = native.Batch()
        for index, token in enumerate(tokens):
            batch.add(token, self._position + index, 0, index == len(tokens) - 1)
        self._context.decode(batch)
        self._position += len(tokens)

    def write(self, sampler: native.Sampler, most_tokens: int = 400) -> tuple[str, bool]:
        """The text, and whether it came to its end."""
        said = b""
        for _ in range(most_tokens):
            token = sampler.sample(self._context)
            if self._model.is_end_of_generation(token):
                return said.decode("utf-8", errors="replace"), True
            said += self._model.token_bytes(token)
            self._decode([token])
        return said.decode("utf-8", errors="replace"), False


def _sampler(model: native.Model, seed: int = 1, *, letters: str = "", **grammar: object) -> native.Sampler:
    """A sampler that takes `letters` only, where some are given, and ends where it must."""
    others = set(range(model.token_count)) - set(letters.encode()) if letters else set()
    forbidden = [(token, -50.0 if token == model.eos_token else -1e9) for token in sorted(others)]
    return native.Sampler(
        model, temperature=1.5, seed=seed, logit_bias=forbidden, grammar=native.Grammar(**grammar)
    )


SCHEMA = {
    "type": "object",
    "properties": {
        "kind": {"enum": ["near", "far"]},
        "count": {"type": "integer", "minimum": 3, "maximum": 17},
        "tags": {
            "type": "array",
            "items": {"type": "string", "pattern": "^[a-z]{1,4}$"},
            "minItems": 1,
            "maxItems": 2,
        },
    },
    "required": ["kind", "count", "tags"],
    "additionalProperties": False,
}


@pytest.mark.parametrize("seed", range(5))
def test_what_is_sampled_by_a_schema_is_a_value_of_it_and_then_ends(model: native.Model, seed: int) -> None:
    text, has_ended = _Writer(model).write(
        _sampler(model, seed, text=native.grammar_of_schema(json.dumps(SCHEMA)))
    )
    assert has_ended
    value = json.loads(text)
    assert list(value) == ["kind", "count", "tags"]
    assert value["kind"] in ("near", "far")
    assert 3 <= value["count"] <= 17
    assert 1 <= len(value["tags"]) <= 2
    assert all(1 <= len(tag) <= 4 and tag.islower() for tag in value["tags"])


def test_a_grammar_begins_in_the_prompt_where_it_says_so(model: native.Model) -> None:
    grammar = 'root ::= "says " [ab] "."'
    text, has_ended = _Writer(model).write(_sampler(model, text=grammar, prefix="says "))
    assert text in ("a.", "b.")
    assert has_ended
    with pytest.raises(ValueError, match="does not begin with the end of the prompt"):
        _sampler(model, text=grammar, prefix="said ")


@pytest.mark.parametrize(
    "trigger", [{"trigger_words": ["e"]}, {"trigger_patterns": ["[ei]"]}, {"trigger_patterns": [".(e)"]}]
)
def test_a_lazy_grammar_holds_only_from_its_trigger_on(
    model: native.Model, trigger: dict[str, object]
) -> None:
    sampler = _sampler(model, letters="abceixy123", text='root ::= [ei] "xy" [0-9]', **trigger)
    text, has_ended = _Writer(model).write(sampler)
    assert has_ended
    free, mark, held = text.partition(text[-4:])
    assert mark[0] in "ei"
    assert (mark[1:3], mark[3].isdigit(), held) == ("xy", True, "")
    assert len(free) > 0


def test_nothing_triggers_a_grammar_while_the_model_thinks(model: native.Model) -> None:
    def write(**thinking: object) -> str:
        text = 'root ::= "e" "!"'
        sampler = _sampler(model, letters="abcdef!", text=text, trigger_words=["e"], **thinking)
        return _Writer(model).write(sampler, 200)[0]

    assert write().endswith("e!")
    # It thinks from the prompt's end on, until a mark that never comes.
    thinking = write(thinking_start="says ", thinking_ends=["</never>"], prefix="says ")
    assert "e" in thinking
    assert not thinking.endswith("e!")
    ended = write(thinking_start="says ", thinking_ends=["a"], prefix="says ")
    assert ended.endswith("e!")
    assert "a" in ended[: ended.index("e!")]


def test_a_trigger_inside_a_token_that_goes_on_otherwise_was_none(model: native.Model) -> None:
    """`<|start|>` is one token: its s triggers the grammar, and what follows does not fit."""
    others = set(range(model.token_count)) - {*b"ab", 257}
    biases = [(token, -1e9) for token in sorted(others)]
    grammar = native.Grammar('root ::= "s!"', trigger_words=["s"])
    sampler = native.Sampler(model, temperature=1.5, seed=1, logit_bias=biases, grammar=grammar)
    text, has_ended = _Writer(model).write(sampler, 60)
    assert not has_ended
    assert set(text) <= {"a", "b"} | set("<|start|>")


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_where_no_token_fits_sampling_fails_and_nothing_else_does(
    model: native.Model, temperature: float
) -> None:
    """llama.cpp itself would end the process here."""
    writer = _Writer(model)
    dead_end = native.Sampler(model, temperature=temperature, grammar=native.Grammar(r'root ::= "\x00"'))
    with pytest.raises(native.GrammarDeadEnd, match="no token of this model fits"):
        writer.write(dead_end)
    assert writer.write(_sampler(model, text='root ::= "ok"')) == ("ok", True)


def test_a_schema_that_no_grammar_can_hold_is_named() -> None:
    with pytest.raises(ValueError, match="#/properties/a: unrecognized type thing"):
        native.grammar_of_schema('{"type": "object", "properties": {"a": {"type": "thing"}}}')
    with pytest.raises(ValueError, match="nested too deeply"):
        native.grammar_of_schema('{"items":' * 300 + "{}" + "}" * 300)
