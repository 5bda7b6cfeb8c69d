"""Which stratad this is."""

from __future__ import annotations

from importlib import metadata


def stratad_version() -> str:
    """The installed version; "source" for a checkout that is not installed."""
    try:
        return metadata.version("stratad")
    except metadata.PackageNotFoundError:
        return "source"
