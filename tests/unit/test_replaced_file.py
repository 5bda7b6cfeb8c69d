from __future__ import annotations

import os
import resource
import signal
from pathlib import Path

import pytest

from stratad.replaced_file import replaced_file


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_a_reader_has_the_old_content_until_all_of_the_new_is_there(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_text("old")
    with replaced_file(path) as file:
        file.write(b"new")
        file.flush()
        assert path.read_text() == "old"
    assert path.read_text() == "new"
    assert names(tmp_path) == ["file"]


@pytest.mark.parametrize("error", [OSError, KeyboardInterrupt])
def test_what_interrupts_the_writing_leaves_the_old_content_and_no_draft(
    tmp_path: Path, error: type[BaseException]
) -> None:
    path = tmp_path / "file"
    path.write_text("old")
    with pytest.raises(error), replaced_file(path) as file:
        file.write(b"half of the n")
        raise error
    assert path.read_text() == "old"
    assert names(tmp_path) == ["file"]


def test_a_file_that_does_not_fit_leaves_the_old_content_and_no_draft(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_text("old")
    former_limit = resource.getrlimit(resource.RLIMIT_FSIZE)
    former_handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4, former_limit[1]))
    try:
        with pytest.raises(OSError, match="too large"), replaced_file(path) as file:
            file.write(b"more than four bytes")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, former_limit)
        signal.signal(signal.SIGXFSZ, former_handler)
    assert path.read_text() == "old"
    assert names(tmp_path) == ["file"]


@pytest.mark.parametrize("mode", [0o644, 0o600])
def test_the_content_has_its_mode_whatever_the_umask_and_is_private_before(tmp_path: Path, mode: int) -> None:
    path, draft = tmp_path / "file", tmp_path / "draft"
    # One that a crash left behind, open to everybody.
    draft.touch()
    draft.chmod(0o666)
    former_umask = os.umask(0o077)
    try:
        with replaced_file(path, mode, draft.name) as file:
            file.write(b"text")
            assert draft.stat().st_mode & 0o777 == 0o600
    finally:
        os.umask(former_umask)
    assert path.stat().st_mode & 0o777 == mode


def test_a_draft_that_was_left_behind_is_taken_over_and_gives_nothing(tmp_path: Path) -> None:
    path = tmp_path / "file"
    (tmp_path / "draft").write_text("much more than what is written now")
    with replaced_file(path, draft_name="draft") as file:
        file.write(b"new")
    assert path.read_text() == "new"
    assert names(tmp_path) == ["file"]


def test_a_draft_that_is_a_link_is_not_followed(tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    victim.write_text("precious")
    (tmp_path / "draft").symlink_to(victim)
    with pytest.raises(OSError, match="symbolic"), replaced_file(tmp_path / "file", draft_name="draft"):
        pytest.fail("it was opened")
    assert victim.read_text() == "precious"
    assert names(tmp_path) == ["draft", "victim"]
