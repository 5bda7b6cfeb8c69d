"""The soak, shortened: `make soak` runs it for minutes."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("stratad._native", reason="the native module is not built")

from tests.soak.run import soak

SECONDS = 40.0


def test_a_daemon_under_load_gives_right_answers_and_everything_back(tmp_path: Path) -> None:
    report = soak(tmp_path, SECONDS)
    print(report.text())
    assert report.problems == []
    # It was a load: everything was done, somebody was killed, and most answers were compared.
    kinds = {kind for kind, _ in report.outcomes}
    assert kinds == {
        "stream",
        "whole",
        "slow stream",
        "leave",
        "leave while waiting",
        "never read",
        "malformed",
    }
    assert report.kills > 0
    assert report.count("same") > 20
