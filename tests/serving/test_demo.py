"""`make demo`'s command: the whole way once, and a failure that is told."""

from __future__ import annotations

import subprocess
import sys

import pytest

pytest.importorskip("stratad._native", reason="the native module is not built")

from stratad import demo
from stratad.daemon.main import demo_model_path
from stratad.errors import ModelFileError

LIMIT_SECONDS = 120.0


def _has_demo_model() -> bool:
    try:
        demo_model_path()
    except ModelFileError:
        return False
    return True


needs_model = pytest.mark.skipif(not _has_demo_model(), reason="etc/demo/demo-moe.gguf is not there")


@needs_model
def test_the_demo_plans_serves_verifies_and_stops_cleanly() -> None:
    command = [sys.executable, "-m", "stratad.demo"]
    finished = subprocess.run(command, capture_output=True, check=False, text=True, timeout=LIMIT_SECONDS)
    assert finished.returncode == 0, finished.stdout + finished.stderr
    heads = [line.split()[0] for line in finished.stdout.splitlines() if line[:1].isalpha()]
    order = ["machine", "policy", "why", "daemon", "request", "answer", "verdict", "decode", "demo"]
    assert [head for head in dict.fromkeys(heads) if head in order] == order
    assert "(100.0%)" in finished.stdout
    assert finished.stderr == ""


@needs_model
def test_a_daemon_that_does_not_start_fails_the_demo(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(demo.sys, "executable", "/bin/false")
    assert demo.main() == 1
    assert "it ended with status 1" in capsys.readouterr().err


@needs_model
def test_a_daemon_that_ends_badly_fails_the_demo(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def kill(process: subprocess.Popen[bytes]) -> None:
        process.kill()
        process.wait()
        true_stop(process)

    true_stop = demo._stop
    monkeypatch.setattr(demo, "_stop", kill)
    assert demo.main() == 1
    assert "its exit status was -9" in capsys.readouterr().err
