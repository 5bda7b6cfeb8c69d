"""The only module of the planner that opens files: a read-only view of /sys and /proc under any root.

The root is `/` on a live machine or the directory of a captured tree. A file that is missing, unreadable or
no regular file is None: machines differ in what they have, and only the caller knows what absence means.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import Protocol

# /proc/cpuinfo of a 1024-CPU machine has about 2 MiB; everything else is far smaller. A captured tree may be
# hostile or damaged, so no file is read past this.
LARGEST_FILE_BYTES = 16 * 1024 * 1024


class MachineFiles(Protocol):
    """Files of one machine by their absolute path there; tests keep a machine in memory."""

    def text(self, path: str) -> str | None:
        """Give a file's text without surrounding blanks, or None when it cannot be read."""

    def names(self, path: str) -> tuple[str, ...] | None:
        """Give the sorted names in a directory, or None when there is no such directory."""

    def has(self, path: str) -> bool:
        """Say whether the path exists."""

    def link_name(self, path: str) -> str | None:
        """Give the last part of a symbolic link's target, or None."""


class Tree:
    """The machine files under a directory: `/` itself or a captured tree."""

    __slots__ = ("_root",)

    def __init__(self, root: Path) -> None:
        self._root = str(root).rstrip("/")

    def text(self, path: str) -> str | None:
        """Give a file's text without surrounding blanks, or None when it cannot be read.

        O_NONBLOCK and the type check keep a pipe or device in a captured tree from blocking the reader.
        """
        content = self.content(path)
        return None if content is None else content.decode("utf-8", errors="replace").strip().strip("\x00")

    def content(self, path: str) -> bytes | None:
        """Give a file's bytes, for the firmware's tables; None when it cannot be read."""
        try:
            descriptor = os.open(self._root + path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        except (OSError, ValueError):
            return None
        try:
            return _read_all(descriptor) if stat.S_ISREG(os.fstat(descriptor).st_mode) else None
        except OSError:
            return None
        finally:
            os.close(descriptor)

    def names(self, path: str) -> tuple[str, ...] | None:
        """Give the sorted names in a directory, or None when there is no such directory."""
        try:
            return tuple(sorted(os.listdir(self._root + path)))  # noqa: PTH208 - hundreds of times, names only
        except (OSError, ValueError):
            return None

    def has(self, path: str) -> bool:
        """Say whether the path exists (a dangling link does not)."""
        try:
            return Path(self._root + path).exists()
        except (OSError, ValueError):
            return False

    def link_name(self, path: str) -> str | None:
        """Give the last part of a symbolic link's target, as sysfs names a device's driver, or None."""
        try:
            return Path(self._root + path).readlink().name
        except (OSError, ValueError):
            return None


def _read_all(descriptor: int) -> bytes:
    chunks: list[bytes] = []
    wanted_bytes = LARGEST_FILE_BYTES
    # sysfs files give at most one page a read; a short read is not the end.
    while wanted_bytes > 0 and (chunk := os.read(descriptor, min(wanted_bytes, 65_536))):
        chunks.append(chunk)
        wanted_bytes -= len(chunk)
    return b"".join(chunks)
