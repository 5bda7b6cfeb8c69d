"""The keys that clients of the API may present, from a file and from systemd's credential.

A file has one key a line; empty lines and lines that start with # do not count. Only digests are kept, so that no
key can reach a log, a traceback or a status page from here.
"""

from __future__ import annotations

import hashlib
import hmac
import stat
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from stratad.errors import ConfigurationError

# LoadCredential=stratad-api-keys:/some/file in the unit (systemd.exec(5)).
CREDENTIAL_NAME = "stratad-api-keys"

# The header line of a request has to hold a key.
_LONGEST_KEY = 1024
_LARGEST_FILE_BYTES = 1024**2


@dataclass(frozen=True, slots=True)
class KeyFile:
    """The digests of one file's keys; `is_readable_by_others` where any user of the machine may read it."""

    path: Path
    digests: tuple[bytes, ...]
    is_readable_by_others: bool


class ApiKeys:
    """The keys in force; without any, everybody may use the API. Safe from any thread."""

    def __init__(self, files: Sequence[KeyFile] = ()) -> None:
        self._digests = _digests_of(files)

    def replace(self, files: Sequence[KeyFile]) -> None:
        """These keys count from now on, and no other."""
        self._digests = _digests_of(files)

    @property
    def are_required(self) -> bool:
        """Whether a request needs a key."""
        return bool(self._digests)

    def accept(self, key: str) -> bool:
        """Whether `key` is one of them; takes as long whichever it is, and however much of it is right."""
        digest = _digest(key.encode("utf-8", errors="surrogateescape"))
        is_known = False
        for known in self._digests:
            is_known |= hmac.compare_digest(known, digest)
        return is_known


def read_key_files(configured: Path | None, credentials_directory: Path | None) -> tuple[KeyFile, ...]:
    """The configured file and the credential `stratad-api-keys`, as far as they are there.

    Raises:
        ConfigurationError: The configured file is missing, or one of them cannot be read, holds no key or a
            line that is no key. The message names the line, never its text.
    """
    files = [] if configured is None else [_read(configured)]
    if credentials_directory is not None and (credentials_directory / CREDENTIAL_NAME).exists():
        files.append(_read(credentials_directory / CREDENTIAL_NAME))
    return tuple(files)


def _read(path: Path) -> KeyFile:
    tried = f"reading the API keys in {path}"
    remedy = "put one key a line into a file that the daemon's user may read: openssl rand -hex 32 makes one"
    try:
        status = path.stat()
        if status.st_size > _LARGEST_FILE_BYTES:
            raise ConfigurationError(tried, "it is too large", {"size_bytes": status.st_size}, remedy)
        lines = path.read_text(encoding="ascii").splitlines()
    except OSError as error:
        raise ConfigurationError(tried, error.strerror or "it cannot be read", remedy=remedy) from error
    except UnicodeDecodeError as error:
        # The exception holds the file's bytes; it must not be shown as the cause.
        because = f"byte {error.start} is no ASCII character"
        raise ConfigurationError(tried, because, remedy=remedy) from None
    keys = []
    for number, line in enumerate(lines, start=1):
        key = line.strip()
        if not key or key.startswith("#"):
            continue
        if not key.isprintable() or " " in key or len(key) > _LONGEST_KEY:
            because = f"line {number} is no key: up to {_LONGEST_KEY} visible ASCII characters without blanks"
            raise ConfigurationError(tried, because, remedy=remedy)
        keys.append(key)
    if not keys:
        raise ConfigurationError(tried, "it holds no key", remedy=remedy)
    is_readable_by_others = bool(status.st_mode & stat.S_IROTH)
    return KeyFile(path, tuple(_digest(key.encode()) for key in keys), is_readable_by_others)


def _digests_of(files: Sequence[KeyFile]) -> tuple[bytes, ...]:
    return tuple(sorted({digest for file in files for digest in file.digests}))


def _digest(key: bytes) -> bytes:
    return hashlib.sha256(key).digest()
