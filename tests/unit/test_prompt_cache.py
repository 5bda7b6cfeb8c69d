"""The prompt cache: what it finds, what it keeps within its limit, and what it gives back."""

from __future__ import annotations

import mmap
import random
from collections.abc import Sequence

import pytest

from stratad.engine import prompt_cache
from stratad.engine.prompt_cache import PromptCache, SavedPrompt, whole_pages
from stratad.runner.protocol import StateShape

PAGE = mmap.PAGESIZE


def _save(
    cache: PromptCache, tokens: Sequence[int], *, pages: int = 1, first_cut: int = 0
) -> SavedPrompt | None:
    """An entry that takes so many pages, and one more for its tokens."""
    return cache.make_room(tokens, StateShape((pages - 1) * PAGE + 1, first_cut))


def _held(cache: PromptCache) -> list[list[int]]:
    return [entry.tokens.tolist() for entry in cache.entries]


def test_the_entry_that_spares_most_of_the_prompt_is_found() -> None:
    cache = PromptCache(100 * PAGE)
    for tokens in ([1, 2], [1, 2, 3, 9], [7]):
        _save(cache, tokens)
    best = cache.best([1, 2, 3, 4, 5])
    assert best is not None
    assert (best[0].tokens.tolist(), best[1]) == ([1, 2, 3, 9], 3)
    assert cache.best([8, 1, 2]) is None
    assert PromptCache(0).best([1, 2]) is None


def test_one_token_of_the_prompt_is_always_left_to_compute() -> None:
    cache = PromptCache(100 * PAGE)
    _save(cache, [1, 2, 3])
    assert [cache.best(prompt) and cache.best(prompt)[1] for prompt in ([1, 2, 3], [1, 2, 3, 4])] == [2, 3]  # type: ignore[index]
    assert cache.best([1]) is None


def test_memory_that_cannot_be_cut_is_found_as_a_whole_only() -> None:
    cache = PromptCache(100 * PAGE)
    _save(cache, [1, 2, 3], first_cut=3)
    assert cache.best([1, 2, 9, 9]) is None
    assert cache.best([1, 2, 3]) is None
    best = cache.best([1, 2, 3, 4])
    assert best is not None
    assert best[1] == 3


def test_what_fits_exactly_is_kept_and_one_byte_more_is_not() -> None:
    cache = PromptCache(3 * PAGE)
    assert _save(cache, [1], pages=3) is None
    assert cache.entries == []
    assert _save(cache, [1], pages=2) is not None
    assert (cache.size_bytes, cache.evictions) == (3 * PAGE, 0)


def test_the_longest_unused_go_first() -> None:
    cache = PromptCache(6 * PAGE)
    for token in (1, 2, 3):
        _save(cache, [token])
    assert cache.holds([1])
    _save(cache, [4])
    assert _held(cache) == [[1], [3], [4]]
    _save(cache, [5], pages=3)
    assert _held(cache) == [[4], [5]]
    assert cache.evictions == 3


def test_one_that_is_about_to_be_used_is_spared() -> None:
    cache = PromptCache(4 * PAGE)
    first = _save(cache, [1])
    _save(cache, [2])
    cache.make_room([3], StateShape(1, 0), spared=first)
    assert _held(cache) == [[1], [3]]
    assert cache.make_room([4], StateShape(2 * PAGE, 0), spared=first) is None


def test_a_longer_one_replaces_its_own_beginning_where_it_can_be_cut_there() -> None:
    cache = PromptCache(100 * PAGE)
    _save(cache, [1, 2])
    _save(cache, [1, 2, 3, 4])
    assert _held(cache) == [[1, 2, 3, 4]]
    _save(cache, [1, 2, 3, 4, 5], first_cut=5)
    assert _held(cache) == [[1, 2, 3, 4], [1, 2, 3, 4, 5]]
    assert cache.evictions == 0


def test_it_knows_what_it_holds_already() -> None:
    cache = PromptCache(100 * PAGE)
    _save(cache, [1, 2, 3])
    _save(cache, [7, 8, 9], first_cut=3)
    assert [cache.holds(tokens) for tokens in ([1, 2], [1, 2, 3], [1, 2, 3, 4])] == [True, True, False]
    assert [cache.holds(tokens) for tokens in ([7, 8], [7, 8, 9])] == [False, True]


def test_there_are_only_so_many_entries(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prompt_cache, "MAX_ENTRIES", 3)
    cache = PromptCache(100 * PAGE)
    for token in range(5):
        _save(cache, [token])
    assert _held(cache) == [[2], [3], [4]]


def test_the_limit_holds_whatever_comes_and_every_page_is_counted() -> None:
    random_source = random.Random(5)
    cache = PromptCache(40 * PAGE)
    for _ in range(500):
        tokens = [random_source.randrange(3) for _ in range(random_source.randrange(1, 9))]
        entry = _save(cache, tokens, pages=random_source.randrange(1, 45))
        if entry is not None:
            with entry.state() as state:
                state[:] = bytes([len(tokens)]) * len(state)
        assert cache.size_bytes <= cache.limit_bytes
        assert cache.size_bytes == sum(
            whole_pages(one.state_bytes) + whole_pages(one.tokens.nbytes) for one in cache.entries
        )
        for one in cache.entries:
            with one.state() as state:
                assert bytes(state[-1:]) == bytes([len(one.tokens)])
