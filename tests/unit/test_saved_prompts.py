"""The file of saved prompts: whole or not at all, for one fingerprint, within its limit, never trusted when damaged."""

from __future__ import annotations

import os
import stat
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from stratad.engine import saved_prompts
from stratad.engine.saved_prompts import (
    FILE_NAME,
    PromptRecord,
    SavedPromptsPlace,
    SavedPromptsUnusable,
    StoredPrompt,
    load_prompts,
    save_prompts,
)

Prompt = tuple[list[int], int, bytes]
PROMPTS: tuple[Prompt, ...] = (
    ([1, 2, 300_000], 0, b"last used" * 50),
    ([7], 1, b"x"),
    ([5, 6], 2, b"older" * 99),
)


def _place(folder: Path, limit_bytes: int = 1 << 20, fingerprint: str = "this one") -> SavedPromptsPlace:
    return SavedPromptsPlace(folder, fingerprint, limit_bytes)


def _stored(prompts: Sequence[Prompt]) -> list[StoredPrompt]:
    def write(state: bytes, into: memoryview) -> None:
        into[:] = state

    return [
        StoredPrompt(
            PromptRecord(len(tokens), len(state), first_cut),
            np.array(tokens, dtype=np.int32),
            partial(write, state),
        )
        for tokens, first_cut, state in prompts
    ]


def _loaded(place: SavedPromptsPlace) -> list[Prompt]:
    found = []
    for record, _, prompt in load_prompts(place):
        state = bytearray(record.state_bytes)
        found.append((prompt.read(memoryview(state)).tolist(), record.first_cut, bytes(state)))
    return found


def test_what_was_saved_comes_back_the_longest_unused_first(tmp_path: Path) -> None:
    assert save_prompts(_place(tmp_path), _stored(PROMPTS)) == 3
    assert _loaded(_place(tmp_path)) == list(reversed(PROMPTS))
    assert [following for _, following, _ in load_prompts(_place(tmp_path))] == [2, 1, 0]


def test_nothing_saved_is_nothing_found(tmp_path: Path) -> None:
    assert _loaded(_place(tmp_path)) == []
    save_prompts(_place(tmp_path), [])
    assert _loaded(_place(tmp_path)) == []


def test_the_file_is_for_this_user_alone_and_no_draft_is_left(tmp_path: Path) -> None:
    old_mask = os.umask(0)
    try:
        save_prompts(_place(tmp_path), _stored(PROMPTS))
    finally:
        os.umask(old_mask)
    assert stat.S_IMODE((tmp_path / FILE_NAME).stat().st_mode) == 0o600
    assert [path.name for path in tmp_path.iterdir()] == [FILE_NAME]


def test_the_limit_counts_every_byte_of_the_file_and_the_last_used_come_first(tmp_path: Path) -> None:
    save_prompts(_place(tmp_path), _stored(PROMPTS))
    size_bytes = (tmp_path / FILE_NAME).stat().st_size
    assert save_prompts(_place(tmp_path, size_bytes), _stored(PROMPTS)) == 3
    assert save_prompts(_place(tmp_path, size_bytes - 1), _stored(PROMPTS)) == 2
    assert _loaded(_place(tmp_path)) == [PROMPTS[1], PROMPTS[0]]
    assert (tmp_path / FILE_NAME).stat().st_size <= size_bytes - 1
    assert save_prompts(_place(tmp_path, 0), _stored(PROMPTS)) == 0


def test_a_failed_save_leaves_the_former_file(tmp_path: Path) -> None:
    save_prompts(_place(tmp_path), _stored(PROMPTS[:1]))

    def fail(into: memoryview) -> None:
        raise OSError(28, "No space left on device")

    broken = StoredPrompt(PromptRecord(1, 10, 0), np.array([1], dtype=np.int32), fail)
    with pytest.raises(OSError, match="space"):
        save_prompts(_place(tmp_path), [*_stored(PROMPTS), broken])
    assert _loaded(_place(tmp_path)) == [PROMPTS[0]]
    assert [path.name for path in tmp_path.iterdir()] == [FILE_NAME]


def test_another_fingerprint_or_version_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save_prompts(_place(tmp_path), _stored(PROMPTS))
    with pytest.raises(SavedPromptsUnusable, match="another model, build, number of slots"):
        _loaded(_place(tmp_path, fingerprint="another one"))
    monkeypatch.setattr(saved_prompts, "_VERSION", 2)
    with pytest.raises(SavedPromptsUnusable, match="version is 1, this daemon reads 2"):
        _loaded(_place(tmp_path))


def test_no_changed_byte_and_no_cut_goes_unseen(tmp_path: Path) -> None:
    save_prompts(_place(tmp_path), _stored(PROMPTS))
    path = tmp_path / FILE_NAME
    whole = path.read_bytes()
    for position in range(len(whole)):
        path.write_bytes(whole[:position] + bytes([whole[position] ^ 0x10]) + whole[position + 1 :])
        with pytest.raises(SavedPromptsUnusable):
            _loaded(_place(tmp_path))
    for length in (0, 1, 20, len(whole) // 2, len(whole) - 1):
        path.write_bytes(whole[:length])
        with pytest.raises(SavedPromptsUnusable):
            _loaded(_place(tmp_path))
    path.write_bytes(whole + b"more")
    with pytest.raises(SavedPromptsUnusable, match="not as long"):
        _loaded(_place(tmp_path))


def test_something_else_at_its_place_is_refused(tmp_path: Path) -> None:
    save_prompts(_place(tmp_path), _stored(PROMPTS))
    path = tmp_path / FILE_NAME
    path.rename(tmp_path / "elsewhere")
    path.symlink_to("elsewhere")
    with pytest.raises(SavedPromptsUnusable, match="cannot be opened"):
        _loaded(_place(tmp_path))
    path.unlink()
    path.mkdir()
    with pytest.raises(SavedPromptsUnusable, match="not a file"):
        _loaded(_place(tmp_path))
    # And no link is followed when saving, either.
    path.rmdir()
    (tmp_path / "prompts.bin.draft").symlink_to("elsewhere")
    with pytest.raises(OSError, match="symbolic"):
        save_prompts(_place(tmp_path), _stored(PROMPTS))
