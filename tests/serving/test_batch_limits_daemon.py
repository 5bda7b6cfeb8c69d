"""A real daemon takes the limits of batches that were recorded here, says so, and keeps no prompts of other limits."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path

import httpx
import pytest

from stratad import _native
from stratad.cli.main import run
from stratad.daemon.main import demo_model_path
from stratad.native.apply import chosen_kernels
from stratad.plan.facts import machine_facts
from stratad.state.recorded import BENCH_FILE_NAME, circumstances_of
from tests.serving.support.daemon_process import DaemonProcess, started
from tests.support.native import make_pool


@contextmanager
def daemon(folder: Path, settings: str = "") -> Iterator[tuple[DaemonProcess, dict[str, str]]]:
    """The daemon on the demo model with its state in `folder`/state, and its reasons."""
    saving = "slots = 1\nsave_slots = true\n" + settings
    variables = {"STATE_DIRECTORY": str(folder / "state"), "STRATAD_PLAN": ""}
    own = Path(tempfile.mkdtemp(dir=folder))
    with started(own, demo_model_path(), settings=saving, variables=variables) as process:
        process.wait_for("READY=1")
        reasons = httpx.get(process.endpoint + "/status").json()["reasons"]
        yield process, {reason["code"]: reason["message"] for reason in reasons}
        assert process.terminate() == 0, process.log


def keep(folder: Path, panel_tokens: int, **changes: object) -> None:
    """A record of this machine whose model's experts and dense weights go by panels from `panel_tokens` on."""
    limits = [
        {"weight_type": weight_type, "panel_tokens": panel_tokens} for weight_type in ("Q8_0", "Q4_K", "F16")
    ]
    document = {
        "schema_version": 1,
        **asdict(circumstances_of(machine_facts())),
        "batches": {"kernels": chosen_kernels("auto"), "limits": limits},
    }
    (folder / "state").mkdir(exist_ok=True)
    (folder / "state" / BENCH_FILE_NAME).write_text(json.dumps(document | changes))


def complete(process: DaemonProcess) -> None:
    body = {"model": "tiny", "prompt": "It is a truth universally acknowledged, " * 8, "max_tokens": 4}
    httpx.post(process.endpoint + "/v1/completions", json=body, timeout=60).raise_for_status()


def test_recorded_limits_are_used_said_and_part_of_what_saved_prompts_are_for(tmp_path: Path) -> None:
    keep(tmp_path, 5)
    with daemon(tmp_path) as (process, reasons):
        assert "Q8_0: panels from 5 tokens" in reasons["batch-limits-measured"]
        assert "batch-limits-measured" in process.log
        complete(process)
    with daemon(tmp_path) as (_, reasons):
        assert "saved-prompts-restored" in reasons
    keep(tmp_path, 6)
    with daemon(tmp_path) as (process, reasons):
        assert "limits of batches" in reasons["saved-prompts-ignored"]
        assert "saved-prompts-restored" not in reasons
        complete(process)
    # A configured batch is part of it as well.
    with daemon(tmp_path, "[placement]\nmax_pool_tokens = 4\n") as (_, reasons):
        assert "placement.max_pool_tokens = 4 is set and counts" in reasons["batch-limits-measured"]
        assert "saved-prompts-ignored" in reasons


def test_a_record_of_another_machine_or_a_damaged_one_is_ignored_and_the_daemon_serves(
    tmp_path: Path,
) -> None:
    keep(tmp_path, 5, machine_fingerprint="another")
    with daemon(tmp_path) as (process, reasons):
        assert "another" in reasons["batch-limits-ignored"]
        complete(process)
    keep(tmp_path, 5, batches={"kernels": []})
    with daemon(tmp_path, "[placement]\ntile_tokens = 16\n") as (process, reasons):
        assert "batches.kernels" in reasons["batch-limits-ignored"]
        # Tiles that are asked for and not to be had are said, and the answers come from panels.
        assert ("tiles-not-usable" in reasons) == (_native.prepare_tiles(make_pool()) is not None)
        complete(process)


def test_what_bench_keeps_is_what_the_daemon_takes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    configuration = tmp_path / "bench.toml"
    configuration.write_text(f'[model]\npath = "{demo_model_path()}"\n[server]\nport = 0\n')
    output = tmp_path / "state" / BENCH_FILE_NAME
    options = ["--seconds", "1", "--bytes", "64MiB", "--force", "--output", str(output)]
    # A shared machine may be too unsteady to conclude anything; then nothing is kept, and it is tried again.
    for _ in range(3):
        status = run(["bench", *options, "--config", str(configuration), "--json"])
        document = json.loads(capsys.readouterr().out)
        if status == 0:
            break
    points = document["details"]["batches"]
    assert {point["path"] for point in points} >= {"rows", "ggml"}
    assert all(point["seconds"] > 0 for point in points)
    if status != 0:
        pytest.skip("plain reads varied too much here to conclude anything, so nothing was kept")
    with daemon(tmp_path) as (_, reasons):
        said = reasons["batch-limits-measured"]
        for limits in document["batches"]["limits"]:
            panels = limits["panel_tokens"]
            assert f"{limits['weight_type']}: panels {f'from {panels} tokens' if panels else 'never'}" in said
