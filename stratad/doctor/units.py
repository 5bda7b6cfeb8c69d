"""The settings of a unit from its files and drop-ins, without a running systemd."""

from __future__ import annotations

from planner.sysfs import MachineFiles

# systemd.unit(5): earlier folders win over later ones for a whole file; drop-ins of all folders count, by name.
UNIT_FOLDERS = (
    "/etc/systemd/system",
    "/run/systemd/system",
    "/usr/lib/systemd/system",
    "/lib/systemd/system",
)


def unit_settings(files: MachineFiles, unit: str) -> dict[str, str] | None:
    """Give the last value of every setting of a unit by name; None when it has no file.

    Sections are left out: no name that we ask for is in two. Lists that add up (Environment=) keep the last entry
    only. A setting given empty is reset and absent.

    Source: systemd.unit(5), systemd.syntax(7).
    """
    main = next(
        (text for folder in UNIT_FOLDERS if (text := files.text(f"{folder}/{unit}")) is not None), None
    )
    if main is None:
        return None
    return settings_of(main, *_drop_ins(files, unit))


def settings_of(*texts: str) -> dict[str, str]:
    """Give the last value of every setting in these files of one unit, in the order in which systemd reads them."""
    found: dict[str, str] = {}
    for text in texts:
        _take(text, found)
    return found


def _drop_ins(files: MachineFiles, unit: str) -> list[str]:
    paths: dict[str, str] = {}
    for folder in reversed(UNIT_FOLDERS):
        for name in files.names(f"{folder}/{unit}.d") or ():
            if name.endswith(".conf") and not name.startswith("."):
                paths[name] = f"{folder}/{unit}.d/{name}"
    texts = (files.text(paths[name]) for name in sorted(paths))
    return [text for text in texts if text is not None]


def _take(text: str, found: dict[str, str]) -> None:
    for line in text.replace("\\\n", " ").splitlines():
        name, equals, value = line.strip().partition("=")
        if not equals or name.startswith(("#", ";", "[")):
            continue
        if value.strip():
            found[name.strip()] = value.strip()
        else:
            found.pop(name.strip(), None)


_UNIT_BYTES = {"": 1, "K": 1024, "M": 1024**2, "G": 1024**3, "T": 1024**4}


def size_setting(text: str | None, total_bytes: int | None = None) -> int | None:
    """Give the bytes of a size as systemd writes it ("75G", "50%"); None for infinity, nothing, or no size."""
    word = (text or "").strip().split(":")[0]
    if word.endswith("%") and total_bytes is not None and word[:-1].isdigit():
        return total_bytes * int(word[:-1]) // 100
    digits = word.rstrip("BKMGT")
    unit = word[len(digits) :].rstrip("B")
    if not digits.isdigit() or unit not in _UNIT_BYTES:
        return None
    return int(digits) * _UNIT_BYTES[unit]
