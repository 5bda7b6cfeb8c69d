"""`stratactl bench` and `tune` as commands: what they refuse before anything is measured, and with which status."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

pytest.importorskip("stratad._native", reason="the native module is not built")

from stratad.cli.main import run
from stratad.machine.load import MachineLoad
from tests.support import standin
from tests.support.gguf_models import write_model

QUIET = MachineLoad(0.0, 0.0, 0.0)
BUSY = MachineLoad(0.9, 50.0, 0.0)


@pytest.fixture
def configuration(tmp_path: Path) -> Path:
    model = write_model(tmp_path / "tiny.gguf", vocabulary="bytes")
    path = tmp_path / "stratad.toml"
    path.write_text(f'[model]\npath = "{model}"\ncontext_tokens = 512\n')
    return path


def test_bench_refuses_a_busy_machine_with_numbers_and_writes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("stratad.cli.bench.look_at_load", lambda files, pause: BUSY)
    output = tmp_path / "bench.json"
    assert run(["bench", "--output", str(output)]) == 1
    shown = capsys.readouterr().err
    assert "busy 90 %" in shown
    assert "stratactl bench --force" in shown
    assert not output.exists()


def test_bench_measures_this_machine_and_keeps_it_for_the_planner(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A shared machine may be too unsteady to conclude anything; then nothing is kept, and that is said."""
    output = tmp_path / "bench.json"
    status = run(
        ["bench", "--seconds", "2", "--bytes", "64MiB", "--force", "--output", str(output), "--json"]
    )
    document = json.loads(capsys.readouterr().out)
    assert status in {0, 1}
    assert document["details"]["rounds"] >= 3
    assert all(read["bytes_per_second"] > 0 for read in document["details"]["reads"])
    assert output.exists() == (status == 0)
    assert ("bandwidth" in document) == (status == 0)
    if status == 0:
        arguments = ["plan", "--arena-bytes", "1MiB", "--bench", str(output), "--json"]
        assert run(arguments) == 0
        codes = {reason["code"] for reason in json.loads(capsys.readouterr().out)["reasons"]}
        assert "bench-ignored" not in codes


def test_bench_copies_to_the_gpus_that_the_daemon_would_use(
    tmp_path: Path, configuration: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with configuration.open("a") as file:
        file.write(f'[gpu]\nmode = "on"\nbackend_path = "{standin.module_path()}"\ndevices = ["STANDIN0"]\n')
    options = ["--seconds", "2", "--bytes", "64MiB", "--force", "--output", str(tmp_path / "bench.json")]
    assert run(["bench", *options, "--config", str(configuration), "--json"]) in {0, 1}
    copies = json.loads(capsys.readouterr().out)["details"]["host_to_device"]
    assert {copy["device"] for copy in copies} == {"STANDIN0"}
    for copy in copies:
        for rate in ("alone_bytes_per_second", "together_bytes_per_second", "pool_bytes_per_second"):
            assert copy[rate] > 0


@pytest.mark.skipif(os.getuid() == 0, reason="root may write anywhere")
def test_where_nothing_can_be_kept_nothing_is_measured(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["bench", "--output", "/proc/bench.json"]) == 1
    assert "sudo stratactl bench" in capsys.readouterr().err


def test_a_directory_is_no_place_for_a_result(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["bench", "--force", "--output", str(tmp_path)]) in {1, 2}
    assert "irectory" in capsys.readouterr().err


def test_more_memory_than_a_share_of_what_is_free_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["bench", "--force", "--bytes", "900TiB", "--output", str(tmp_path / "b.json")]) == 1
    assert "give --bytes" in capsys.readouterr().err


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="two arms need two CPUs")
def test_tune_shows_its_arms_and_order_without_starting_any(
    configuration: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["tune", "--config", str(configuration), "--arms", "off:1,off:2", "--dry-run", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["first_block"] == ["off:1", "off:2", "off:2", "off:1"]


@pytest.mark.parametrize(
    ("arguments", "status", "words"),
    [
        (["--arms", "mirror"], 2, "policies are off"),
        (["--arms", "split@7,off"], 3, "planning the arm split@7"),
        (["--prompt-file", "/nowhere"], 2, "prompts"),
        (["--rounds", "0"], 2, "rounds"),
        (["--minutes", "0"], 2, "minutes"),
        (["--tokens", "1"], 2, "tokens"),
        (["--page-cache", "hot"], 2, "page-cache"),
    ],
)
def test_tune_refuses_what_it_cannot_compare(
    configuration: Path,
    capsys: pytest.CaptureFixture[str],
    arguments: list[str],
    status: int,
    words: str,
) -> None:
    assert run(["tune", "--config", str(configuration), *arguments]) == status
    assert words in capsys.readouterr().err


def test_tune_refuses_a_busy_machine(
    configuration: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    if len(os.sched_getaffinity(0)) < 2:
        pytest.skip("two arms need two CPUs")
    monkeypatch.setattr("stratad.cli.tune.look_at_load", lambda files, pause: BUSY)
    monkeypatch.setattr("stratad.cli.tune._require_alone", lambda: None)
    output = tmp_path / "tune.json"
    arguments = ["tune", "--config", str(configuration), "--arms", "off:1,off:2", "--output", str(output)]
    assert run(arguments) == 1
    assert "stratactl tune --force" in capsys.readouterr().err
    assert not output.exists()


def test_tune_without_a_configuration_says_which_file_is_missing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["tune", "--config", str(tmp_path / "absent.toml")]) == 2
    assert "absent.toml" in capsys.readouterr().err
