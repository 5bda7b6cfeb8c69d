"""`stratactl explain`, reports on terminals and in pipes, and documents for whoever asks for JSON."""

from __future__ import annotations

import json
import os
import pty
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from pydantic import TypeAdapter, ValidationError

from planner import REASON_CODES, PlanRefused, make_plan, plan_to_dict, refusal_to_dict
from stratad.cli.main import run
from stratad.cli.output import LABEL_COLUMNS, NARROWEST_COLUMNS, terminal_report
from stratad.plan.schema import ErrorDocument, PlanDocument, RefusalDocument
from tests.golden.test_plans import CASES
from tests.support.machines import MachineShape, even_nodes, machine_files, machine_topology, write_tree
from tests.support.planning import request_for

REPOSITORY = Path(__file__).resolve().parents[2]
RECORDED = REPOSITORY / "tests" / "golden" / "calibration"


@pytest.fixture
def machine(tmp_path: Path) -> Path:
    shape = MachineShape(even_nodes(2, 12, threads_per_core=2, total_gib=64))
    return write_tree(tmp_path / "machine", machine_files(shape))


def output(capsys: pytest.CaptureFixture[str], *arguments: object) -> tuple[int, str, str]:
    status = run([str(argument) for argument in arguments])
    captured = capsys.readouterr()
    return status, captured.out, captured.err


def test_a_check_of_the_doctor_is_explained_as_well(capsys: pytest.CaptureFixture[str]) -> None:
    status, out, _ = output(capsys, "explain", "zone-reclaim-on")
    assert status == 0
    assert "Does the kernel reclaim within a node" in out
    assert "docs/DOCTOR.md#zone-reclaim-on" in out


def test_a_code_is_explained_with_what_to_do(capsys: pytest.CaptureFixture[str]) -> None:
    status, out, _ = output(capsys, "explain", "headroom-tight")
    assert status == 0
    assert REASON_CODES["headroom-tight"].meaning in out
    assert "do        Stop other programs" in out
    _, out, _ = output(capsys, "explain", "policy-requested")
    assert "Nothing" in out


def test_every_code_is_listed(capsys: pytest.CaptureFixture[str]) -> None:
    _, out, _ = output(capsys, "explain")
    assert [line for line in out.splitlines() if not line.startswith(" ")] == list(REASON_CODES)
    _, out, _ = output(capsys, "explain", "--json")
    assert [row["code"] for row in json.loads(out)["codes"]] == list(REASON_CODES)
    _, out, _ = output(capsys, "explain", "close-call", "--json")
    assert json.loads(out)["meaning"] == REASON_CODES["close-call"].meaning


def test_an_unknown_code_names_the_nearest_one(capsys: pytest.CaptureFixture[str]) -> None:
    status, _, err = output(capsys, "explain", "headroom-thight")
    assert status == 2
    assert "did you mean headroom-tight?" in err


def test_the_plan_shows_machine_and_confidence(capsys: pytest.CaptureFixture[str], machine: Path) -> None:
    _, out, _ = output(capsys, "plan", "--root", machine, "--arena-bytes", "44GiB")
    lines = out.splitlines()
    first_of_model = next(index for index, line in enumerate(lines) if line.startswith("arena"))
    assert first_of_model <= 4
    assert "0-1: 12 cores and 64.0 GiB (64.0 GiB available) each" in out
    assert re.search(
        r"^policy    split  \((estimated|likely); fingerprint [0-9a-f]{12}\)$", out, re.MULTILINE
    )
    assert "ms a token (estimated)" in out


def test_sixteen_nodes_are_still_four_lines(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    shape = MachineShape(even_nodes(16, 4), allowed_cpus="0-31", memory_max_bytes=1 << 40)
    root = write_tree(tmp_path / "big", machine_files(shape))
    _, out, _ = output(capsys, "plan", "--root", root, "--arena-bytes", "4GiB")
    assert out.splitlines()[3].startswith("arena")
    assert "limits    usable CPUs 0-31, memory 1.0 TiB by the cgroup" in out


def test_recorded_measurements_are_planned_with(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    from tests.unit.test_planner_calibration import SHAPE

    root = write_tree(tmp_path / "measured", machine_files(SHAPE))
    arguments = ("plan", "--root", root, "--arena-bytes", "44GiB")
    _, out, _ = output(capsys, *arguments, "--bench", RECORDED / "bench.json")
    assert "policy    split  (measured;" in out
    _, out, _ = output(capsys, *arguments, "--tune", RECORDED / "tune.json")
    assert "policy    single-socket  (proven;" in out
    assert "59.1 tok/s" in out


@pytest.mark.parametrize("content", [None, "{", '{"schema_version": 9}'])
def test_measurements_that_cannot_be_read_are_an_error(
    capsys: pytest.CaptureFixture[str], machine: Path, tmp_path: Path, content: str | None
) -> None:
    path = tmp_path / "bench.json"
    if content is not None:
        path.write_text(content)
    status, out, err = output(capsys, "plan", "--root", machine, "--arena-bytes", "4g", "--bench", path)
    assert (status, out) == (1, "")
    assert "recorded measurements cannot be used" in err


def test_an_error_is_a_document_for_who_asked_for_json(
    capsys: pytest.CaptureFixture[str], machine: Path, tmp_path: Path
) -> None:
    status, out, err = output(capsys, "plan", "--root", machine, "--model", tmp_path / "no.gguf", "--json")
    assert (status, err) == (1, "")
    document = ErrorDocument.model_validate_json(out)
    assert document.error.exit_status == 1
    assert "No such file" in document.error.because
    status, out, _ = output(capsys, "plan", "--root", machine, "--json")
    assert status == 2
    assert ErrorDocument.model_validate_json(out).error.kind == "ConfigurationError"


@pytest.mark.parametrize("name", CASES)
def test_every_approved_plan_is_a_document_of_the_published_schema(name: str) -> None:
    shape, arena_gib, asked = CASES[name]
    document: dict[str, Any]
    try:
        document = plan_to_dict(make_plan(machine_topology(shape), request_for(arena_gib, **asked)))
        model: type[PlanDocument | RefusalDocument] = PlanDocument
    except PlanRefused as refusal:
        document, model = refusal_to_dict(refusal), RefusalDocument
    plain = json.loads(json.dumps(document))
    assert model.model_validate(plain).model_dump(mode="json") == plain
    either: TypeAdapter[Any] = TypeAdapter(PlanDocument | RefusalDocument | ErrorDocument)
    assert type(either.validate_python(plain)) is model
    with pytest.raises(ValidationError):
        model.model_validate(plain | {"unknown": 1})


REPORT = "policy    split\nwhy       " + "every node holds a slice " * 6 + "\n          -> do this\n"


@pytest.mark.parametrize("columns", [10, 40, 60, 200])
def test_reports_are_wrapped_in_their_own_columns(columns: int) -> None:
    text = terminal_report(REPORT, columns, has_colour=False)
    lines = text.splitlines()
    assert max(map(len, lines)) <= max(columns, NARROWEST_COLUMNS)
    assert all(line[:LABEL_COLUMNS].strip() in ("policy", "why", "") for line in lines)
    assert " ".join(text.split()) == " ".join(REPORT.split())
    assert "\x1b" not in text


def test_a_word_that_is_too_long_stays_whole() -> None:
    text = terminal_report("slice 0   " + "0-1,2-3," * 20 + "\n", 40, has_colour=False)
    assert "0-1,2-3," * 20 in text


def test_colour_marks_labels_only() -> None:
    text = terminal_report("warning   mind this\nserver    CPUs 0\n", 80, has_colour=True)
    assert text.startswith("\x1b[33mwarning")
    assert text.splitlines()[1] == "server    CPUs 0"


def on_a_terminal(machine: Path, columns: int, **environment: str) -> str:
    """Give what the command writes to a terminal of so many columns."""
    leader, follower = pty.openpty()
    command = [
        sys.executable,
        "-m",
        "stratad.cli.main",
        "plan",
        "--root",
        str(machine),
        "--arena-bytes",
        "44g",
    ]
    base = {"PATH": os.environ["PATH"], "COLUMNS": str(columns), "TERM": "xterm"}
    with subprocess.Popen(command, stdout=follower, env=base | environment, cwd=REPOSITORY) as process:
        os.close(follower)
        chunks = []
        try:
            while chunk := os.read(leader, 65_536):
                chunks.append(chunk)
        except OSError:
            # Linux says EIO when the last writer has closed.
            pass
        assert process.wait() == 0
    os.close(leader)
    return b"".join(chunks).decode()


def test_a_terminal_gets_colour_and_its_own_width_and_no_color_is_respected(machine: Path) -> None:
    coloured = on_a_terminal(machine, 60)
    assert "\x1b[32mpolicy" in coloured
    plain = on_a_terminal(machine, 60, NO_COLOR="1")
    assert "\x1b" not in plain
    assert "\x1b" not in on_a_terminal(machine, 60, TERM="dumb")
    assert re.sub(r"\x1b\[\d*m", "", coloured) == plain
    long_lines = [line for line in plain.splitlines() if len(line) > 60]
    assert all(len(line.split()) <= 3 for line in long_lines)


def test_a_pipe_gets_whole_lines_without_colour(machine: Path) -> None:
    command = [
        sys.executable,
        "-m",
        "stratad.cli.main",
        "plan",
        "--root",
        str(machine),
        "--arena-bytes",
        "44g",
    ]
    environment = {"PATH": os.environ["PATH"], "COLUMNS": "40", "TERM": "xterm"}
    done = subprocess.run(
        command, capture_output=True, text=True, check=True, cwd=REPOSITORY, env=environment, timeout=60
    )
    assert "\x1b" not in done.stdout
    assert max(map(len, done.stdout.splitlines())) > 80
