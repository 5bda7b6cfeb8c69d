"""Memory modules from the firmware's table (SMBIOS), which root may read below /sys/firmware/dmi."""

from __future__ import annotations

import re

from stratad.doctor.facts import MemoryModule

TABLE_PATH = "/sys/firmware/dmi/tables/DMI"
MEMORY_DEVICE = 17
END_OF_TABLE = 127
MIB = 1024**2
# Where the size is said to be in the extended field.
_EXTENDED = 0x7FFF
_UNKNOWN_SIZE = 0xFFFF
# NVDIMM-F, NVDIMM-P and persistent memory, from here on; what comes before is DRAM.
_FIRST_OTHER_TECHNOLOGY = 0x05


def memory_modules(table: bytes) -> tuple[MemoryModule, ...]:
    """Give every slot for a memory module, empty ones with 0 bytes; () when the table has none.

    Persistent memory and flash are left out: what counts is which channels feed the cores.

    Source: System Management BIOS reference specification, section 7.18 (memory device, type 17).
    """
    found = []
    offset = 0
    while offset + 4 <= len(table):
        kind, length = table[offset], table[offset + 1]
        end = table.find(b"\x00\x00", offset + max(length, 4))
        if length < 4 or end < 0 or kind == END_OF_TABLE:
            break
        if kind == MEMORY_DEVICE and (
            module := _module(table[offset : offset + length], table[offset + length : end])
        ):
            found.append(module)
        offset = end + 2
    return tuple(found)


def _module(fields: bytes, strings: bytes) -> MemoryModule | None:
    if len(fields) < 0x15:
        return None
    # Offset 0x28 came with version 3.2 of the specification; before it everything was DRAM.
    if len(fields) > 0x28 and fields[0x28] >= _FIRST_OTHER_TECHNOLOGY:
        return None
    names = strings.split(b"\x00")
    locator = fields[0x10]
    return MemoryModule(
        locator=_plain(names[locator - 1]) if 0 < locator <= len(names) else "",
        size_bytes=_size_bytes(fields),
        rated_speed=_number(fields, 0x15),
        configured_speed=_number(fields, 0x20),
    )


def _size_bytes(fields: bytes) -> int:
    size = _number(fields, 0x0C) or 0
    if size == _UNKNOWN_SIZE:
        return 0
    if size == _EXTENDED and len(fields) >= 0x20:
        return (int.from_bytes(fields[0x1C:0x20], "little") & 0x7FFFFFFF) * MIB
    # The highest bit says that the rest counts kibibytes.
    return (size & 0x7FFF) * 1024 if size & 0x8000 else size * MIB


def _number(fields: bytes, offset: int) -> int | None:
    """Give a 16-bit field; None where the structure is shorter, or says 0 (unknown)."""
    if len(fields) < offset + 2:
        return None
    return int.from_bytes(fields[offset : offset + 2], "little") or None


def _plain(name: bytes) -> str:
    return re.sub(r"[^ -~]", "", name.decode("ascii", errors="replace")).strip()
