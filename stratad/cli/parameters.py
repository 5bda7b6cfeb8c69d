"""Option types: sizes and roots as users write them."""

from __future__ import annotations

import re
from pathlib import Path

import click

_UNIT_BYTES = {"": 1, "k": 1024, "m": 1024**2, "g": 1024**3, "t": 1024**4}
_DECIMAL_UNIT_BYTES = {"kb": 10**3, "mb": 10**6, "gb": 10**9, "tb": 10**12}
_SIZE = re.compile(r"(\d{1,15}(?:\.\d{1,6})?)\s*([a-z]*)", re.IGNORECASE)
LARGEST_SIZE_BYTES = 1 << 60
LIVE_ROOT = Path("/")


def byte_size(ctx: click.Context, param: click.Parameter, value: str | None) -> int | None:
    """Give the bytes of a size option, as click's `callback`: "44GiB", "4g", "1048576".

    g, gib and G are 1024**3; gb is 10**9, as drives are sold.

    Raises:
        click.BadParameter: When the text is no size.
    """
    if value is None:
        return None
    match = _SIZE.fullmatch(value.strip())
    unit_bytes = _unit_bytes(match[2].lower()) if match else None
    if match is None or unit_bytes is None:
        raise click.BadParameter(f"{value!r} is not a size; write 44GiB, 4g or a number of bytes")
    size_bytes = int(match[1]) * unit_bytes if "." not in match[1] else round(float(match[1]) * unit_bytes)
    if size_bytes > LARGEST_SIZE_BYTES:
        raise click.BadParameter(f"{value!r} is larger than any machine")
    return size_bytes


def _unit_bytes(unit: str) -> int | None:
    if unit in _DECIMAL_UNIT_BYTES:
        return _DECIMAL_UNIT_BYTES[unit]
    return _UNIT_BYTES.get("" if unit in ("b", "bytes") else unit.removesuffix("ib"))


def root_option(command: click.decorators.FC) -> click.decorators.FC:
    """Add `--root` to a command; its function takes `root`."""
    return click.option(
        "--root",
        type=click.Path(path_type=Path, exists=True),
        default=LIVE_ROOT,
        help="Read the machine from a directory with sys/ and proc/, or from an archive of `stratactl capture`.",
    )(command)
