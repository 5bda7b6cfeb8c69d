"""The kernel's two ways to write a set of small numbers: lists ("0-3,8") and masks ("ff,0000000f")."""

from __future__ import annotations

import re
from collections.abc import Iterable

# The kernel's own limit is CONFIG_NR_CPUS, 8192 at most; nodes are fewer. A larger number in a file is
# damage, and expanding it would only fill memory.
LARGEST_ID = 8191
_HEXADECIMAL = re.compile(r"[0-9a-fA-F]{1,16}")


def parse_number(text: str | None, longest: int = 19) -> int | None:
    """Give a non-negative number in ASCII digits, or None for anything else, the kernel's -1 for unknown
    included.
    """
    is_number = text is not None and text.isascii() and text.isdecimal() and len(text) <= longest
    return int(text) if is_number and text is not None else None


def parse_id_list(text: str) -> tuple[int, ...] | None:
    """Give the ids of a kernel list such as "0-3,8", sorted, or None when the text is no such list.

    An empty list is a real answer (a node without CPUs) and gives ().
    """
    ids: set[int] = set()
    for part in text.strip().split(","):
        if not part.strip():
            continue
        first_text, dash, last_text = part.strip().partition("-")
        first = parse_number(first_text)
        last = parse_number(last_text) if dash else first
        if first is None or last is None:
            return None
        if last < first or last > LARGEST_ID:
            return None
        ids.update(range(first, last + 1))
    return tuple(sorted(ids))


def parse_id_mask(text: str) -> tuple[int, ...] | None:
    """Give the ids of a kernel mask such as "00000000,000000ff", sorted, or None when the text is no mask.

    Every word but the first has 32 bits whatever its number of digits: kernels have printed "0000,00000000".
    """
    words = text.strip().split(",")
    if not words or len(words) > (LARGEST_ID + 1) // 32:
        return None
    mask = 0
    for word in words:
        if not _HEXADECIMAL.fullmatch(word.strip()):
            return None
        value = int(word.strip(), 16)
        if value >= 1 << (64 if len(words) == 1 else 32):
            return None
        mask = mask << 32 | value
    return tuple(bit for bit in range(mask.bit_length()) if mask >> bit & 1)


def format_id_list(ids: Iterable[int]) -> str:
    """Give ids as the kernel writes them: sorted, without repeats, neighbours joined by a dash."""
    ranges: list[list[int]] = []
    for number in sorted(set(ids)):
        if ranges and number == ranges[-1][1] + 1:
            ranges[-1][1] = number
        else:
            ranges.append([number, number])
    return ",".join(str(first) if first == last else f"{first}-{last}" for first, last in ranges)
