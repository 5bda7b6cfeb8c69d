"""The byte-level byte-pair vocabulary of the demo model.

It is the scheme that GGUF calls tokenizer model "gpt2" with pre-tokenizer "gpt-2": text is
cut by GPT-2's regular expression, each byte is written as one printable character (a space
becomes "Ġ"), and merges are applied by rank. Any text can be encoded; nothing is unknown.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import numpy
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

END_OF_TEXT = "<|endoftext|>"


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """The parts of a trained tokenizer that a GGUF file states."""

    tokens: tuple[str, ...]
    merges: tuple[str, ...]
    end_of_text_id: int


def train_tokenizer(chapters: Iterable[str], token_count: int) -> Tokenizer:
    """Give a tokenizer with `token_count` tokens, learned from the chapters."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=token_count,
        special_tokens=[END_OF_TEXT],
        # Every byte stays encodable, also those that the novels never use.
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator(chapters, trainer)
    return tokenizer


def load_or_train_tokenizer(path: Path, chapters: list[str], token_count: int) -> Tokenizer:
    """Give the tokenizer kept at `path`, and train and keep it first when it is missing."""
    if not path.is_file():
        train_tokenizer(chapters, token_count).save(str(path))
    return Tokenizer.from_file(str(path))


def vocabulary_of(tokenizer: Tokenizer) -> Vocabulary:
    """Give tokens in the order of their ids, and merges in the order of their ranks."""
    model = json.loads(tokenizer.to_str())["model"]
    tokens = sorted(model["vocab"], key=model["vocab"].__getitem__)
    # A merge is a pair in newer files of the library and one string in older ones.
    merges = [merge if isinstance(merge, str) else " ".join(merge) for merge in model["merges"]]
    return Vocabulary(tuple(tokens), tuple(merges), model["vocab"][END_OF_TEXT])


def encode_chapters(tokenizer: Tokenizer, chapters: list[str]) -> numpy.ndarray:
    """Give all chapters as one stream of token ids, an end of text before and after each.

    The mark in front makes a model that starts from nothing start a chapter.
    """
    end_of_text_id = tokenizer.token_to_id(END_OF_TEXT)
    stream = [end_of_text_id]
    for encoding in tokenizer.encode_batch(chapters):
        stream.extend(encoding.ids)
        stream.append(end_of_text_id)
    return numpy.array(stream, dtype=numpy.int64)
