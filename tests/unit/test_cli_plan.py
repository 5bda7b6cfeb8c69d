"""`stratactl topology` and `stratactl plan` as a user runs them: in a process of their own where that
matters.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner

from stratad.cli import main as command_line
from stratad.cli.main import COMMANDS, run, stratactl
from stratad.cli.parameters import LARGEST_SIZE_BYTES, byte_size
from stratad.errors import PlacementError
from tests.support.gguf_bytes import TensorShape, gguf_bytes, moe_entries, moe_file
from tests.support.machines import GIB, GpuShape, MachineShape, even_nodes, machine_files, write_tree

REPOSITORY = Path(__file__).resolve().parents[2]
DENIED_MODULES = {
    "numpy",
    "rich",
    "pystemd",
    "prometheus_client",
    "starlette",
    "uvicorn",
    "pydantic",
    "pyudev",
    "jinja2",
}


@pytest.fixture
def machine(tmp_path: Path) -> Path:
    shape = MachineShape(even_nodes(2, 12, total_gib=32, free_gib=31), (GpuShape("0000:3b:00.0", 0),))
    return write_tree(tmp_path / "machine", machine_files(shape))


@pytest.fixture
def model(tmp_path: Path) -> Path:
    path = tmp_path / "tiny.gguf"
    path.write_bytes(moe_file())
    return path


def outcome(capsys: pytest.CaptureFixture[str], *arguments: object) -> tuple[int, str, str]:
    status = run([str(argument) for argument in arguments])
    captured = capsys.readouterr()
    assert "Traceback" not in captured.out + captured.err
    return status, captured.out, captured.err


def test_plan_prints_machine_policy_reasons_and_rejections(
    capsys: pytest.CaptureFixture[str], machine: Path
) -> None:
    status, out, err = outcome(capsys, "plan", "--root", machine, "--arena-bytes", "44GiB")
    assert (status, err) == (0, "")
    assert "policy    split" in out
    assert "[most-local-feasible]" in out
    assert "not       single-socket: node 0 has 31.0 GiB available" in out
    assert "warning   node 0 needs 24.0 GiB of 31.0 GiB available [headroom-tight]" in out


def test_plan_json_is_the_plan_document(
    capsys: pytest.CaptureFixture[str], machine: Path, model: Path
) -> None:
    status, out, _ = outcome(
        capsys, "plan", "--root", machine, "--model", model, "--policy", "split", "--json"
    )
    document = json.loads(out)
    assert status == 0
    assert document["policy"] == "split"
    assert sum(part["size_bytes"] for part in document["arena_slices"]) == 6 * 64 * 32 * 8 // 32 * 34


def test_options_reach_the_planner(capsys: pytest.CaptureFixture[str], machine: Path) -> None:
    arguments = ("plan", "--root", machine, "--arena-bytes", "4g", "--json")
    _, out, _ = outcome(
        capsys, *arguments, "--workers", "4", "--policy", "single-socket", "--objective", "prompt"
    )
    document = json.loads(out)
    assert len(document["layout"]["workers"]) == 4
    assert (document["policy"], document["objective"]) == ("single-socket", "prompt")
    _, out, _ = outcome(capsys, *arguments, "--cpu-share", "0")
    assert json.loads(out)["reasons"][0]["code"] == "all-experts-in-vram"


def test_facts_about_gpus_buffers_and_drafts_reach_the_planner(
    capsys: pytest.CaptureFixture[str], machine: Path, model: Path
) -> None:
    def document(*options: object) -> dict[str, Any]:
        _, out, _ = outcome(capsys, "plan", "--root", machine, "--model", model, "--json", *options)
        found = json.loads(out)
        assert isinstance(found, dict)
        return found

    def arena_bytes(found: dict[str, Any]) -> int:
        return int(sum(part["size_bytes"] for part in found["arena_slices"]))

    plain = document("--policy", "split")
    assert arena_bytes(document("--policy", "split", "--gpu-expert-layers", 1)) * 2 == arena_bytes(plain)
    assert document("--gpu-expert-layers", 2)["reasons"][0]["code"] == "no-experts"
    assert document("--gpu-node", 1, "--policy", "single-socket")["memory_nodes"] == [1]
    assert document("--policy", "single-socket")["memory_nodes"] == [0]

    def step(found: dict[str, Any]) -> float:
        return float(next(c for c in found["candidates"] if c["is_chosen"])["estimate"]["stream_seconds"])

    assert step(document("--policy", "split", "--tokens-per-step", 3)) == pytest.approx(3 * step(plain))
    status, out, _ = outcome(
        capsys, "plan", "--root", machine, "--model", model, "--other-bytes", "61GiB", "--json"
    )
    assert status == 3
    assert json.loads(out)["reasons"][0]["code"] == "arena-exceeds-memory"


def test_a_dense_model_has_no_experts(
    capsys: pytest.CaptureFixture[str], machine: Path, tmp_path: Path
) -> None:
    path = tmp_path / "dense.gguf"
    path.write_bytes(gguf_bytes(moe_entries("llama"), [TensorShape("output.weight", (64, 8))]))
    status, out, _ = outcome(capsys, "plan", "--root", machine, "--model", path)
    assert status == 0
    assert "[no-experts]" in out


def test_a_refused_plan_has_status_3_and_its_reasons(
    capsys: pytest.CaptureFixture[str], machine: Path
) -> None:
    arguments = ("plan", "--root", machine, "--arena-bytes", "440GiB")
    status, out, err = outcome(capsys, *arguments)
    assert (status, out) == (3, "")
    assert "because: arena-exceeds-memory: arena 440.0 GiB" in err
    assert "remedy:" in err
    status, out, err = outcome(capsys, *arguments, "--json")
    assert (status, err) == (3, "")
    assert json.loads(out)["reasons"][0]["code"] == "arena-exceeds-memory"


def test_a_missing_or_damaged_model_has_status_1(
    capsys: pytest.CaptureFixture[str], machine: Path, model: Path
) -> None:
    status, _, err = outcome(capsys, "plan", "--root", machine, "--model", "/no/such.gguf")
    assert status == 1
    assert "No such file" in err
    model.write_bytes(model.read_bytes()[:500])
    status, _, err = outcome(capsys, "plan", "--root", machine, "--model", model)
    assert status == 1
    assert "offset=" in err


@pytest.mark.parametrize(
    "arguments",
    [
        ("plan", "--arena-bytes", "4x"),
        ("plan", "--arena-bytes", "1", "--policy", "mirror"),
        ("plan", "--arena-bytes", "1", "--workers", "0"),
        ("plan", "--arena-bytes", "1", "--cpu-share", "1.5"),
        ("plan", "--root", "/no/such/root", "--arena-bytes", "1"),
        ("plan", "--nonsense"),
        ("nonsense",),
    ],
)
def test_wrong_usage_has_status_2(capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...]) -> None:
    status, out, err = outcome(capsys, *arguments)
    assert (status, out) == (2, "")
    assert "Error:" in err


def test_nothing_to_plan_for_has_status_2_and_says_what_to_give(
    capsys: pytest.CaptureFixture[str], machine: Path
) -> None:
    status, _, err = outcome(capsys, "plan", "--root", machine)
    assert status == 2
    assert "--model FILE.gguf" in err


def test_the_configuration_fills_in_what_no_option_gives(
    capsys: pytest.CaptureFixture[str], machine: Path, model: Path, tmp_path: Path
) -> None:
    configuration = tmp_path / "stratad.toml"
    configuration.write_text(f'[model]\npath = "{model}"\n[placement]\npolicy = "interleave"\nworkers = 6\n')
    arguments = ("plan", "--root", machine, "--config", configuration, "--json")
    status, out, err = outcome(capsys, *arguments)
    assert (status, err) == (0, "")
    document = json.loads(out)
    assert (document["policy"], len(document["layout"]["workers"])) == ("interleave", 6)
    _, out, _ = outcome(capsys, *arguments, "--policy", "auto")
    assert json.loads(out)["policy"] != "interleave"
    configuration.write_text("[model]\nperth = 1\n")
    assert outcome(capsys, *arguments)[0] == 2


def test_topology_json_has_the_truth_files_fields(capsys: pytest.CaptureFixture[str], machine: Path) -> None:
    status, out, _ = outcome(capsys, "topology", "--root", machine, "--json")
    document = json.loads(out)
    assert status == 0
    assert document["cpus_online"] == "0-23"
    assert document["nodes"]["1"]["cpus"] == "12-23"
    assert document["nodes"]["1"]["mem_total_kib"] == 32 * GIB // 1024
    assert document["packages"] == ["0-11", "12-23"]
    assert document["distances"] == {"0": [10, 21], "1": [21, 10]}
    assert document["accelerators"][0]["busid"] == "0000:3b:00.0"
    assert (document["usable_cpus"], document["usable_nodes"]) == ("0-23", "0-1")


def test_topology_of_nothing_is_a_clear_error(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    status, _, err = outcome(capsys, "topology", "--root", tmp_path)
    assert status == 1
    assert "names a CPU" in err


def test_names_from_a_file_never_draw_on_the_terminal(
    capsys: pytest.CaptureFixture[str], machine: Path, tmp_path: Path
) -> None:
    path = tmp_path / "odd.gguf"
    path.write_bytes(gguf_bytes(moe_entries("llama\x1b[2J")))
    _, out, err = outcome(capsys, "plan", "--root", machine, "--model", path)
    assert "\x1b" not in out + err
    assert "\\x1b[2J" in out


@pytest.mark.parametrize(
    ("text", "size_bytes"),
    [
        ("44GiB", 44 * GIB),
        ("4g", 4 * GIB),
        ("4G", 4 * GIB),
        ("1.5 gib", 3 * GIB // 2),
        ("1048576", 1 << 20),
        ("10b", 10),
        ("2gb", 2 * 10**9),
        ("3TiB", 3 << 40),
    ],
)
def test_sizes_are_read_as_written(text: str, size_bytes: int) -> None:
    context, parameter = click.Context(stratactl), click.Option(["--size"])
    assert byte_size(context, parameter, text) == size_bytes


@pytest.mark.parametrize(
    "text", ["", "GiB", "-1", "4x", "4 g b", "1e9", "0x10", f"{LARGEST_SIZE_BYTES + 1}", "9" * 30]
)
def test_what_is_no_size_is_refused(text: str) -> None:
    with pytest.raises(click.BadParameter):
        byte_size(click.Context(stratactl), click.Option(["--size"]), text)


def python(*arguments: str) -> subprocess.CompletedProcess[str]:
    environment = {"PATH": os.environ["PATH"], "PYTHONPATH": str(REPOSITORY)}
    return subprocess.run(
        [sys.executable, *arguments], capture_output=True, text=True, check=False, env=environment, timeout=60
    )


def test_plan_imports_nothing_heavy(machine: Path, model: Path) -> None:
    script = (
        "import sys; from stratad.cli.main import run;"
        f"status = run(['plan', '--root', {str(machine)!r}, '--model', {str(model)!r}]);"
        "print(status, sorted(sys.modules), file=sys.stderr)"
    )
    done = python("-c", script)
    status, _, modules = done.stderr.partition(" ")
    assert status == "0"
    assert not {name for name in DENIED_MODULES if f"'{name}'" in modules}


def test_help_imports_no_command() -> None:
    script = (
        "import sys; from stratad.cli.main import run; run(['--help']); names = list(sys.modules);"
        "print([name for name in names if name.startswith(('stratad.cli.', 'planner'))], file=sys.stderr)"
    )
    done = python("-c", script)
    assert done.stderr.strip() == "['stratad.cli.main']"
    for name in COMMANDS:
        assert f"  {name} " in done.stdout


def test_every_command_of_the_table_can_be_loaded() -> None:
    context = click.Context(stratactl)
    for name in COMMANDS:
        assert isinstance(stratactl.get_command(context, name), click.Command)


def test_a_fault_of_our_own_is_a_message_and_a_traceback_only_on_request(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise KeyError("lost")

    monkeypatch.setattr("stratad.cli.topology.machine_facts", fail)
    status, _, err = outcome(capsys, "topology")
    assert status == 1
    assert "KeyError" in err
    assert run(["--debug", "topology"]) == 1
    assert "Traceback" in capsys.readouterr().err


def test_the_status_of_an_operating_error_is_its_own(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise PlacementError(tried="checking", because="0.80 is below 0.95", remedy="restart")

    monkeypatch.setattr("stratad.cli.topology.machine_facts", fail)
    assert outcome(capsys, "topology")[0] == 4


def test_a_reader_that_goes_away_is_no_fault(machine: Path) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    command = [sys.executable, "-m", "stratad.cli.main", "topology", "--root", str(machine), "--json"]
    done = subprocess.run(
        command, stdout=writing, stderr=subprocess.PIPE, text=True, check=False, cwd=REPOSITORY, timeout=60
    )
    os.close(writing)
    assert (done.returncode, done.stderr) == (1, "")


def test_the_group_is_a_click_command_others_can_drive() -> None:
    result = CliRunner().invoke(stratactl, ["--version"])
    assert result.exit_code == 0
    assert command_line.main is not None
