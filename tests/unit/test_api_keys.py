"""API keys from files: what is a key, what is an error, and that no key is ever shown."""

from __future__ import annotations

from pathlib import Path

import pytest

from stratad.errors import ConfigurationError, render_error
from stratad.server.api_keys import CREDENTIAL_NAME, ApiKeys, read_key_files


def keys_in(path: Path, text: str) -> Path:
    path.write_text(text)
    path.chmod(0o600)
    return path


def test_a_file_has_one_key_a_line_and_comments(tmp_path: Path) -> None:
    path = keys_in(tmp_path / "keys", "# for the desk\nfirst-key\n\n  second-key  \r\n#third-key\n")
    keys = ApiKeys(read_key_files(path, None))
    known = {
        key: keys.accept(key) for key in ("first-key", "second-key", "third-key", "#third-key", "", "first")
    }
    assert known == {
        "first-key": True,
        "second-key": True,
        "third-key": False,
        "#third-key": False,
        "": False,
        "first": False,
    }


def test_without_a_file_and_without_a_credential_no_key_is_required(tmp_path: Path) -> None:
    assert not ApiKeys(read_key_files(None, None)).are_required
    assert not ApiKeys(read_key_files(None, tmp_path)).are_required


def test_systemds_credential_counts_beside_the_file(tmp_path: Path) -> None:
    keys_in(tmp_path / CREDENTIAL_NAME, "from-systemd\n")
    only = ApiKeys(read_key_files(None, tmp_path))
    both = ApiKeys(read_key_files(keys_in(tmp_path / "keys", "from-file\n"), tmp_path))
    assert (only.accept("from-systemd"), only.accept("from-file")) == (True, False)
    assert (both.accept("from-systemd"), both.accept("from-file")) == (True, True)


@pytest.mark.parametrize(
    ("content", "because"),
    [
        (b"", "it holds no key"),
        (b"# nothing\n\n", "it holds no key"),
        (b"fine\nsecret with blanks\n", "line 2 is no key"),
        (b"fine\nsecret\x07bell\n", "line 2 is no key"),
        (b"secret" + b"x" * 1024, "line 1 is no key"),
        ("fine\nsécret".encode(), "byte 6 is no ASCII character"),
        (b"secret\n" * 200_000, "it is too large"),
    ],
)
def test_a_file_that_is_no_key_file_is_an_error_that_shows_no_key(
    content: bytes, because: str, tmp_path: Path
) -> None:
    path = tmp_path / "keys"
    path.write_bytes(content)
    with pytest.raises(ConfigurationError) as raised:
        read_key_files(path, None)
    shown = render_error(raised.value)
    assert because in shown
    assert "openssl rand" in shown
    assert "secret" not in shown + repr(raised.value)
    assert raised.value.__cause__ is None, "a cause would be shown by a traceback, with the file's bytes"


def test_a_missing_file_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="No such file"):
        read_key_files(tmp_path / "none", None)


@pytest.mark.parametrize(("mode", "is_open"), [(0o600, False), (0o640, False), (0o644, True), (0o604, True)])
def test_a_file_that_others_can_read_is_noticed(mode: int, is_open: bool, tmp_path: Path) -> None:
    path = keys_in(tmp_path / "keys", "key\n")
    path.chmod(mode)
    assert [file.is_readable_by_others for file in read_key_files(path, None)] == [is_open]


def test_neither_keys_nor_files_hold_a_key_in_clear(tmp_path: Path) -> None:
    files = read_key_files(keys_in(tmp_path / "keys", "secret-key\n"), None)
    keys = ApiKeys(files)
    assert "secret-key" not in repr(files) + repr(vars(keys))


def test_every_key_is_compared_even_after_the_right_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    keys = ApiKeys(read_key_files(keys_in(tmp_path / "keys", "one\ntwo\nthree\n"), None))
    compared: list[bytes] = []

    def compare(known: bytes, given: bytes) -> bool:
        compared.append(known)
        return known == given

    monkeypatch.setattr("stratad.server.api_keys.hmac.compare_digest", compare)
    for key in ("one", "two", "three", "four"):
        compared.clear()
        assert keys.accept(key) == (key != "four")
        assert len(compared) == 3, "how long it takes would tell which key was right"


def test_replaced_keys_count_at_once_and_the_former_no_more(tmp_path: Path) -> None:
    keys = ApiKeys(read_key_files(keys_in(tmp_path / "keys", "old\n"), None))
    keys.replace(read_key_files(keys_in(tmp_path / "keys", "new\n"), None))
    assert (keys.accept("old"), keys.accept("new")) == (False, True)
