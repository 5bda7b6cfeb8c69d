"""Which settings a running daemon takes from a configuration that is read again, and which wait for a restart."""

from __future__ import annotations

from dataclasses import fields, is_dataclass, replace

from stratad.config import Configuration

# Everything else is built into what is loaded, placed or listening.
RELOADABLE = (
    "placement.limit_ratio",
    "placement.pin_check_seconds",
    "placement.repair",
    "server.api_keys_file",
    "server.drain_seconds",
    "systemd.load_extension_seconds",
    "systemd.stall_seconds",
    "metrics.placement_check_seconds",
    "metrics.placement_sample_pages",
)


def reloaded(running: Configuration, fresh: Configuration) -> Configuration:
    """The running configuration with every reloadable setting of the fresh one."""
    result = running
    for key in RELOADABLE:
        section_name, name = key.split(".")
        value = getattr(getattr(fresh, section_name), name)
        section = replace(getattr(result, section_name), **{name: value})
        result = replace(result, **{section_name: section})
    return result


def settings_that_differ(one: Configuration, other: Configuration) -> tuple[str, ...]:
    """Every setting in which two configurations differ, as section.key, in the order of the file."""
    found = []
    for section in fields(Configuration):
        first, second = getattr(one, section.name), getattr(other, section.name)
        assert is_dataclass(first)
        found += [
            f"{section.name}.{setting.name}"
            for setting in fields(first)
            if getattr(first, setting.name) != getattr(second, setting.name)
        ]
    return tuple(found)
