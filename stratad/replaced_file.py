"""Files that are replaced in one step: a reader, and a machine that loses power, has the old content or the new one."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO


@contextmanager
def replaced_file(path: Path, mode: int = 0o644, draft_name: str | None = None) -> Iterator[BinaryIO]:
    """A file to write that takes the place of `path` when the context ends well, and is gone when it does not.

    Args:
        path: What is replaced; its folder must be there.
        mode: The permissions that the content gets, whatever the umask; only its owner can read it before.
        draft_name: Its name beside `path` while it is written; None takes one of this process, so that two may write
            at once. A fixed name is for what one process writes: what a crash leaves behind goes with the next draft.

    Raises:
        OSError: The kernel refuses, the disk is full, or the draft's name is a link. The former file is whole then.
    """
    draft = path.with_name(draft_name or f".{path.name}.{os.getpid()}")
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC
    descriptor = os.open(draft, flags, mode & 0o600)
    try:
        with os.fdopen(descriptor, "wb") as file:
            # A draft that was left behind may be open to everybody.
            os.fchmod(descriptor, mode & 0o600)
            yield file
            file.flush()
            os.fchmod(descriptor, mode)
            os.fsync(descriptor)
        draft.replace(path)
    except BaseException:
        with suppress(OSError):
            draft.unlink()
        raise
