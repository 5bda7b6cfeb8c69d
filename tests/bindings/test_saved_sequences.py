"""A restored sequence goes on with the bits of the one that was saved, in any slot, for every kind of memory."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest

from stratad import _native as native
from stratad.daemon.main import demo_model_path
from tests.support import gguf_models
from tests.support.native import load_placed, load_plain, make_pool

WINDOW = 128
FAMILIES = ("qwen3moe", "gpt-oss", "deepseek2", "mamba")
# gpt-oss attends within a window of 128 tokens: before it has moved, at its border, and long after.
LENGTHS = (60, WINDOW, WINDOW + 1, 300)
CONTEXT_TOKENS = 512


def _model(path: Path, family: str) -> native.Model:
    # The pool has nothing to do in a model without experts.
    return load_plain(path) if family == "mamba" else load_placed(path, make_pool(2, 2))


@pytest.fixture(scope="module", params=FAMILIES)
def family(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name


@pytest.fixture(scope="module")
def model(family: str, tmp_path_factory: pytest.TempPathFactory) -> native.Model:
    return _model(
        gguf_models.write_model(tmp_path_factory.mktemp("saved") / f"{family}.gguf", family), family
    )


@pytest.fixture(params=native.supported_kernels())
def kernels(request: pytest.FixtureRequest) -> Iterator[str]:
    name: str = request.param
    native.set_device_options(kernels=name)
    yield name
    # The default; tests that share the process count on it.
    native.set_device_options()


def _tokens(count: int, vocabulary: int = 300) -> list[int]:
    return [index * 7919 % vocabulary for index in range(count)]


def _feed(
    context: native.Context, sequence: int, tokens: Sequence[int], start: int, size: int
) -> npt.NDArray[np.float32]:
    """Computes the tokens from `start` on in calls of `size`, and gives the last one's logits."""
    batch = native.Batch()
    for begin in range(start, len(tokens), size):
        batch.clear()
        part = tokens[begin : begin + size]
        for index, token in enumerate(part):
            batch.add(token, begin + index, sequence, index == len(part) - 1)
        context.decode(batch)
    return context.logits(-1).copy()


def _continued(context: native.Context, sequence: int, start: int) -> list[npt.NDArray[np.float32]]:
    """Logits of ten single tokens and of a batch after them."""
    rows = [_feed(context, sequence, _tokens(start + step + 1), start + step, 1) for step in range(10)]
    return [*rows, _feed(context, sequence, _tokens(start + 40), start + 10, 30)]


def _saved(context: native.Context, sequence: int) -> bytearray:
    state = bytearray(context.state_bytes(sequence))
    context.save_state(sequence, state)
    return state


@pytest.mark.parametrize("length", LENGTHS)
def test_a_restored_sequence_goes_on_with_the_same_bits(
    model: native.Model, kernels: str, length: int
) -> None:
    context = native.Context(model, context_tokens=2 * CONTEXT_TOKENS, batch_tokens=64, sequence_count=2)
    _feed(context, 0, _tokens(length), 0, 64)
    state = _saved(context, 0)
    saved = _continued(context, 0, length)
    # Into a slot that was never used, into the one it came from, and into one that held something else.
    for sequence in (1, 0, 1):
        context.restore_state(sequence, state)
        restored = _continued(context, sequence, length)
        assert [np.array_equal(one, other) for one, other in zip(saved, restored, strict=True)] == [True] * 11
        context.forget(1)
        _feed(context, 1, _tokens(200, 97), 0, 64)


@pytest.mark.parametrize("length", LENGTHS)
def test_where_a_restored_sequence_can_be_cut_is_said_before(
    model: native.Model, family: str, length: int
) -> None:
    context = native.Context(model, context_tokens=2 * CONTEXT_TOKENS, batch_tokens=64, sequence_count=2)
    _feed(context, 0, _tokens(length), 0, 64)
    said, state = context.first_cut_when_restored(0), _saved(context, 0)
    expected = {"mamba": length, "gpt-oss": length - 1 if length > WINDOW else 0}.get(family, 0)
    assert said == expected
    for position in range(1, length + 1):
        context.restore_state(1, state)
        assert context.first_cut(1) == said
        assert context.cut(1, position) == (position >= said), position


def test_a_cut_restored_sequence_goes_on_like_the_cut_saved_one(model: native.Model, family: str) -> None:
    if family == "mamba":
        pytest.skip("recurrent memory cannot be cut")
    context = native.Context(model, context_tokens=2 * CONTEXT_TOKENS, batch_tokens=64, sequence_count=2)
    _feed(context, 0, _tokens(100), 0, 64)
    state = _saved(context, 0)
    context.restore_state(1, state)
    for sequence in (0, 1):
        assert context.cut(sequence, 50)
    assert all(map(np.array_equal, _continued(context, 0, 50), _continued(context, 1, 50)))


def test_the_demo_model_goes_on_with_the_same_bits(kernels: str) -> None:
    model = load_placed(demo_model_path(), make_pool(1, 1))
    tokens = model.tokenize(
        "It is a truth universally acknowledged, " * 20, add_special=True, parse_special=False
    )
    context = native.Context(model, context_tokens=2 * CONTEXT_TOKENS, batch_tokens=256, sequence_count=2)
    _feed(context, 0, tokens, 0, 256)
    context.restore_state(1, _saved(context, 0))
    for step in range(20):
        longer = [*tokens, *_tokens(step + 1, 200)]
        rows = [_feed(context, sequence, longer, len(longer) - 1, 1) for sequence in (0, 1)]
        assert np.array_equal(*rows)


def test_a_state_of_another_model_or_number_of_sequences_is_refused(tmp_path: Path) -> None:
    model = load_plain(gguf_models.write_model(tmp_path / "one.gguf"))
    other = load_plain(
        gguf_models.write_model(tmp_path / "other.gguf", shape=gguf_models.ModelShape(layer_count=3))
    )
    context = native.Context(model, context_tokens=256, sequence_count=2)
    _feed(context, 0, _tokens(30), 0, 30)
    state = _saved(context, 0)
    for stranger in (
        native.Context(other, context_tokens=256, sequence_count=2),
        native.Context(model, context_tokens=256, sequence_count=3),
    ):
        with pytest.raises(ValueError, match="does not belong"):
            stranger.restore_state(0, state)
        assert stranger.first_cut(0) == 0
