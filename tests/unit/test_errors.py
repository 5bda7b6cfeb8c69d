from __future__ import annotations

from stratad import errors
from stratad.errors import ConfigurationError, PlanRefusedError, StratadError, render_error


def test_an_error_is_rendered_in_four_lines() -> None:
    error = ConfigurationError(
        tried="reading /etc/x.toml",
        because="no such key",
        values={"key": "port"},
        remedy="did you mean 'port'?",
    )
    assert render_error(error).splitlines() == [
        "error: the configuration cannot be used",
        "  tried:   reading /etc/x.toml",
        "  because: no such key (key=port)",
        "  remedy:  did you mean 'port'?",
    ]


def test_a_summary_and_a_missing_remedy_are_honoured() -> None:
    text = render_error(StratadError("doing", "it broke", summary="cannot do it"))
    assert text.splitlines() == ["error: cannot do it", "  tried:   doing", "  because: it broke"]


def test_further_reasons_stand_below_the_first() -> None:
    text = render_error(PlanRefusedError("planning", "first", remedy="less", reason_lines=("second",)))
    assert text.splitlines()[2:] == ["  because: first", "           second", "  remedy:  less"]


def test_control_characters_are_written_out() -> None:
    text = render_error(StratadError("reading a\nb", "bad \x1b[31m", {"name": "x\r\u2028"}))
    assert len(text.splitlines()) == 3
    assert "\x1b" not in text


def test_exit_statuses_are_the_documented_ones() -> None:
    statuses = {
        name: kind.exit_status
        for name, kind in vars(errors).items()
        if isinstance(kind, type) and issubclass(kind, StratadError)
    }
    assert statuses == {
        "StratadError": 1,
        "ConfigurationError": 2,
        "ModelFileError": 1,
        "EngineError": 1,
        "DeviceError": 1,
        "DaemonError": 1,
        "PlanRefusedError": 3,
        "PlacementError": 4,
    }


def test_every_class_stands_in_the_tree_of_the_modules_docstring() -> None:
    assert errors.__doc__ is not None
    for name, kind in vars(errors).items():
        if isinstance(kind, type) and issubclass(kind, StratadError):
            assert f"{name} " in errors.__doc__
