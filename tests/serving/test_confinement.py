"""The real daemon where the kernel refuses it something: it serves, and says what is missing and what would help."""

from __future__ import annotations

import json
import platform
import urllib.request
from pathlib import Path
from typing import Any

import pytest

from tests.serving.support.confined_daemon import PLACEMENT_CALLS
from tests.serving.support.daemon_process import DaemonProcess, started
from tests.support import gguf_models

CONFINED = "tests.serving.support.confined_daemon"


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return gguf_models.write_model(tmp_path_factory.mktemp("models") / "tiny.gguf", vocabulary="bytes")


def document(daemon: DaemonProcess, path: str) -> Any:
    with urllib.request.urlopen(f"{daemon.endpoint}{path}", timeout=30) as response:
        return json.load(response)


def completion(daemon: DaemonProcess) -> str:
    body = json.dumps({"model": "tiny", "prompt": "the", "max_tokens": 4, "temperature": 0}).encode()
    request = urllib.request.Request(
        f"{daemon.endpoint}/v1/completions", body, {"Content-Type": "application/json"}
    )
    with urllib.request.urlopen(request, timeout=30) as response:
        text: str = json.load(response)["choices"][0]["text"]
        return text


def reason_codes(daemon: DaemonProcess) -> set[str]:
    return {reason["code"] for reason in document(daemon, "/status")["reasons"]}


@pytest.mark.skipif(
    platform.machine() not in PLACEMENT_CALLS, reason="the filter's call numbers are x86-64's and arm64's"
)
def test_without_leave_to_place_memory_it_serves_with_pinned_workers_and_says_so(
    tmp_path: Path, model: Path
) -> None:
    with started(tmp_path, model, module=CONFINED, arguments=("no-placement",)) as daemon:
        daemon.wait_for("READY=1")
        assert completion(daemon)
        assert "placement-unverifiable" in reason_codes(daemon)
        assert document(daemon, "/placement")["verdict"] == "unverifiable"
        assert "Traceback" not in daemon.log
        assert daemon.terminate() == 0


def test_a_low_lock_limit_is_a_reason_with_the_remedy(tmp_path: Path, model: Path) -> None:
    with started(tmp_path, model, module=CONFINED, arguments=("no-lock",)) as daemon:
        daemon.wait_for("READY=1")
        (reason,) = (r for r in document(daemon, "/status")["reasons"] if r["code"] == "arena-not-locked")
        assert "LimitMEMLOCK=infinity" in reason["remedy"]
        assert "memlock_limit_bytes=4096" in daemon.log
        assert daemon.terminate() == 0


def test_a_lock_that_was_required_and_is_refused_ends_it(tmp_path: Path, model: Path) -> None:
    settings = "[placement]\nlock_memory = true\n"
    with started(tmp_path, model, settings=settings, module=CONFINED, arguments=("no-lock",)) as daemon:
        assert daemon.exit_status() == 4
        assert "LimitMEMLOCK=infinity" in daemon.log
        assert not daemon.has_sent("READY=1")


def test_one_cpu_is_enough_and_said_to_be_little(tmp_path: Path, model: Path) -> None:
    with started(tmp_path, model, module=CONFINED, arguments=("one-cpu",)) as daemon:
        daemon.wait_for("READY=1")
        assert "cpuset-one-cpu" in reason_codes(daemon)
        assert completion(daemon)
        assert daemon.terminate() == 0
