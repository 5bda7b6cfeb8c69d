"""Unpacking archives that the tests know, with any Python 3.11."""

from __future__ import annotations

import tarfile
from pathlib import Path


def unpack(archive: tarfile.TarFile, folder: Path) -> None:
    """Unpacks everything. Debian 12's Python 3.11.2 has no filters yet; the archives are our own either way."""
    if hasattr(tarfile, "tar_filter"):
        archive.extractall(folder, filter="tar")
    else:
        archive.extractall(folder)
