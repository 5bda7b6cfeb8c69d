"""Numbers as people read them."""

from __future__ import annotations

from collections.abc import Iterable

GIB = 1024**3
_UNITS = (("TiB", 1024**4), ("GiB", GIB), ("MiB", 1024**2), ("KiB", 1024))


def format_bytes(size_bytes: int) -> str:
    """Give a size with one decimal in the largest binary unit it fills: "44.0 GiB", "512 bytes"."""
    for name, unit_bytes in _UNITS:
        if abs(size_bytes) >= unit_bytes:
            return f"{size_bytes / unit_bytes:.1f} {name}"
    return f"{size_bytes} bytes"


def median(values: Iterable[float]) -> float:
    """Give the middle of some numbers, the mean of the middle two when they are even in number.

    `statistics` has one too, and its imports would take a third of a plan's time.
    """
    ordered = sorted(values)
    half = len(ordered) // 2
    return ordered[half] if len(ordered) % 2 else (ordered[half - 1] + ordered[half]) / 2


def count_of(number: int, noun: str) -> str:
    """Give "1 worker" or "3 workers"."""
    return f"{number} {noun}{'' if number == 1 else 's'}"
