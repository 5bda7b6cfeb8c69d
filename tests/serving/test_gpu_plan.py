"""The daemon with a GPU, seen from outside: its arena is pinned, and what it measured comes back into the plan."""

from __future__ import annotations

import json
from pathlib import Path

import httpx
import pytest
from click.testing import CliRunner

pytest.importorskip("stratad._native", reason="the native module is not built")

from stratad.cli.main import stratactl
from tests.serving.test_gpu_daemon import MIB, PROMPTS, complete, daemon, metric, reasons

REGISTER_ALL = {"STANDIN_REGISTER_MOST": str(1 << 40)}


def planned(folder: Path, *options: str) -> dict[str, object]:
    arguments = ["plan", "--config", str(folder / "stratad.toml"), "--json", *options]
    outcome = CliRunner().invoke(stratactl, arguments)
    assert outcome.exit_code == 0, outcome.output
    return dict(json.loads(outcome.output))


def codes(document: dict[str, object]) -> set[str]:
    found = document["reasons"]
    assert isinstance(found, list)
    return {reason["code"] for reason in found}


def test_the_arena_is_pinned_once_it_is_verified_and_let_go_at_the_end(tmp_path: Path) -> None:
    with daemon(tmp_path / "run", variables=REGISTER_ALL) as hybrid:
        hybrid.wait_for("READY=1")
        assert "arena-pinned" in reasons(hybrid)
        assert metric(hybrid, "stratad_pinned_bytes") > MIB
        assert complete(hybrid, PROMPTS[0]).status_code == 200
        # Unregistering reads a byte of each range, and what was never registered aborts the process.
        assert hybrid.terminate() == 0
        log = hybrid.log
    assert log.index("verdict=") < log.index("arena-pinned")


def test_a_refused_registration_is_told_and_the_daemon_serves(tmp_path: Path) -> None:
    with daemon(tmp_path / "run", variables={"STANDIN_REGISTER_MOST": "4096"}) as hybrid:
        hybrid.wait_for("READY=1")
        assert "arena-not-pinned" in reasons(hybrid)
        assert metric(hybrid, "stratad_pinned_bytes") == 0
        assert complete(hybrid, PROMPTS[0]).status_code == 200
        assert httpx.get(f"{hybrid.endpoint}/health").json()["status"] == "ready"


def test_nothing_is_pinned_where_that_is_off(tmp_path: Path) -> None:
    with daemon(tmp_path / "run", "pin_memory = false\n", variables=REGISTER_ALL) as hybrid:
        hybrid.wait_for("READY=1")
        assert not {"arena-pinned", "arena-not-pinned"} & reasons(hybrid)
        assert metric(hybrid, "stratad_pinned_bytes") == 0


def test_a_plan_goes_by_what_the_running_daemon_has_measured(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    server = f'[server]\nport = 0\nruntime_directory = "{folder}/run"\n'
    with daemon(folder, f"cache = {64 * MIB}\nprefill_threshold = 64\n{server}") as hybrid:
        hybrid.wait_for("READY=1")
        assert "cpu-share-measured" not in codes(planned(folder)), "too few steps to say anything"
        for prompt in (*PROMPTS, *PROMPTS):
            complete(hybrid, prompt, max_tokens=60)
        experts = httpx.get(f"{hybrid.endpoint}/status").json()["experts"]
        assert 0 < experts["hit_ratio"] <= 1
        assert 0 <= experts["cpu_share"] < 1
        assert experts["vram_bytes"] > 0
        document = planned(folder)
        assert "cpu-share-measured" in codes(document)
        assert "cpu-share-measured" not in codes(planned(folder, "--cpu-share", "0.5")), "an option wins"
        assert hybrid.terminate() == 0
    assert "cpu-share-measured" not in codes(planned(folder)), "nobody runs any more"
