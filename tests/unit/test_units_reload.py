"""SIGHUP: which settings a running daemon takes, and which wait for a restart."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from stratad.config import Configuration, ModelSection
from stratad.daemon.reload import RELOADABLE, reloaded, settings_that_differ

RUNNING = Configuration(ModelSection(Path("a.gguf")))


def test_reloadable_settings_are_taken_and_others_are_not() -> None:
    fresh = replace(
        RUNNING,
        model=ModelSection(Path("b.gguf")),
        placement=replace(RUNNING.placement, limit_ratio=0.5, policy="split"),
        server=replace(RUNNING.server, drain_seconds=1.0, port=1),
    )
    result = reloaded(RUNNING, fresh)
    assert settings_that_differ(RUNNING, result) == ("placement.limit_ratio", "server.drain_seconds")
    assert settings_that_differ(result, fresh) == ("model.path", "placement.policy", "server.port")


def test_every_reloadable_setting_exists_and_is_taken() -> None:
    for key in RELOADABLE:
        section_name, name = key.split(".")
        section = getattr(RUNNING, section_name)
        value = getattr(section, name)
        other = replace(section, **{name: Path("other") if value is None else value + 1})
        assert settings_that_differ(
            RUNNING, reloaded(RUNNING, replace(RUNNING, **{section_name: other}))
        ) == (key,)


def test_the_same_configuration_changes_nothing() -> None:
    assert reloaded(RUNNING, RUNNING) == RUNNING
    assert settings_that_differ(RUNNING, RUNNING) == ()
