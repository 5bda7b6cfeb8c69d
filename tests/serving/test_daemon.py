"""The real daemon with a tiny random model: start-up, signals, gate, errors, and stratactl against it."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import openai
import pytest

from tests.serving.support.daemon_process import LIMIT_SECONDS, DaemonProcess, started
from tests.serving.support.served import wait_until

pytest.importorskip("stratad._native", reason="the native module is not built")

from tests.support.gguf_models import write_model

ODD = "tests.serving.support.odd_daemon"
PLAIN = "/v1/completions"

# A random model could end its answer by chance: its end token, 256, is never taken.
NEVER_ENDS = {"256": -100}
LONG_ANSWER_TOKENS = 1900


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(tmp_path_factory.mktemp("model") / "tiny.gguf", vocabulary="bytes")


def _complete(daemon: DaemonProcess, **body: object) -> httpx.Response:
    return httpx.post(daemon.endpoint + PLAIN, json={"prompt": "Hello", **body}, timeout=LIMIT_SECONDS)


def _stratactl(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "stratad.cli.main", *arguments]
    return subprocess.run(command, capture_output=True, check=False, text=True, timeout=LIMIT_SECONDS)


def test_it_tells_the_supervisor_every_step_and_is_ready_only_when_it_answers(
    tmp_path: Path, model: Path
) -> None:
    with started(tmp_path, model, variables={"WATCHDOG_USEC": "50000"}) as daemon:
        daemon.wait_for("READY=1")
        assert httpx.get(daemon.endpoint + "/health").json() == {"status": "ready"}
        assert _complete(daemon, max_tokens=3).json()["usage"]["completion_tokens"] >= 1
        daemon.wait_for("WATCHDOG=1")
        assert daemon.terminate() == 0
        first_lines = [message.splitlines()[0] for message in daemon.messages]
        ready = first_lines.index("READY=1")
        assert ready > 0
        assert all(line.startswith("EXTEND_TIMEOUT_USEC=") for line in first_lines[:ready])
        assert first_lines.count("STOPPING=1") == 1
        assert first_lines.index("STOPPING=1") > ready
        log = daemon.log.splitlines()
    positions = [
        next(i for i, line in enumerate(log) if line.startswith(word))
        for word in ("plan:", "placement:", "ready:")
    ]
    assert positions == sorted(positions)
    assert log[-1] == "stopped"
    assert not (tmp_path / "run" / "endpoint.json").exists()


def test_a_running_request_is_finished_on_sigterm_and_new_ones_are_refused(
    tmp_path: Path, model: Path
) -> None:
    with started(tmp_path, model) as daemon:
        daemon.wait_for("READY=1")
        client = openai.OpenAI(base_url=daemon.endpoint + "/v1", api_key="x", max_retries=0)
        stream = client.completions.create(
            model="tiny",
            prompt="Hello",
            max_tokens=LONG_ANSWER_TOKENS,
            logit_bias=NEVER_ENDS,
            stream=True,
            stream_options={"include_usage": True},
        )
        next(iter(stream))
        endpoint = daemon.endpoint
        daemon.process.terminate()
        daemon.wait_for("STOPPING=1")
        wait_until(lambda: httpx.get(endpoint + "/health").json()["status"] == "draining")
        refused = httpx.post(endpoint + PLAIN, json={"prompt": "late"})
        chunks = list(stream)
        assert daemon.exit_status() == 0
    assert refused.status_code == 503
    assert chunks[-2].choices[0].finish_reason == "length"
    assert chunks[-1].usage.completion_tokens == LONG_ANSWER_TOKENS


def test_a_request_that_outlasts_the_drain_limit_is_cut_off(tmp_path: Path, model: Path) -> None:
    with (
        started(tmp_path, model, settings="[server]\nport = 0\ndrain_seconds = 0\n") as daemon,
        ThreadPoolExecutor() as pool,
    ):
        daemon.wait_for("READY=1")
        answer = pool.submit(_complete, daemon, max_tokens=LONG_ANSWER_TOKENS, logit_bias=NEVER_ENDS)
        metrics = daemon.endpoint + "/status"
        wait_until(lambda: httpx.get(metrics).json()["decode"]["requests_running"] == 1)
        assert daemon.terminate() == 0
        assert answer.result().status_code == 503
        assert "requests were cut off" in daemon.log


def test_slots_that_memory_has_no_room_for_are_left_out_and_said(tmp_path: Path, model: Path) -> None:
    with started(tmp_path, model, module=ODD, arguments=("no-room",)) as daemon:
        daemon.wait_for("READY=1")
        document = httpx.get(daemon.endpoint + "/status").json()
        assert _complete(daemon, max_tokens=3).status_code == 200
    assert (document["state"], document["decode"]["slots"]) == ("ready", 1)
    assert "slots-reduced" in [reason["code"] for reason in document["reasons"]]
    assert "slots-reduced" in daemon.log


def test_sigterm_while_loading_ends_it_cleanly_without_ready(tmp_path: Path, model: Path) -> None:
    with started(tmp_path, model, module=ODD, arguments=("slow-load",)) as daemon:
        daemon.wait_for("STATUS=loading weights, 50%")
        # The log tells how far it is at the stage's beginning, and again after a while.
        wait_until(lambda: daemon.log.count('loading: stage="loading weights" loaded_ratio=0.5') >= 2)
        scrape = httpx.get(daemon.endpoint + "/metrics").text
        assert "stratad_loaded_ratio 0.5" in scrape
        assert 'stratad_state{stratad_state="loading"} 1.0' in scrape
        assert httpx.get(daemon.endpoint + "/health").json() == {"status": "loading"}
        assert "loading: loading weights, 50%" in _stratactl("status", "--url", daemon.endpoint).stdout
        assert _stratactl("verify", "--url", daemon.endpoint).returncode == 1
        assert _complete(daemon).status_code == 503
        assert daemon.terminate() == 0
        assert daemon.has_sent("STOPPING=1")
        assert not daemon.has_sent("READY=1")


def test_sigterm_at_the_first_sign_of_native_loading_ends_it_cleanly(tmp_path: Path, model: Path) -> None:
    with started(tmp_path, model) as daemon:
        wait_until(lambda: (daemon._read_messages(), len(daemon.messages) > 0)[1])
        assert daemon.terminate() == 0
        assert daemon.has_sent("STOPPING=1")


def test_pages_astray_keep_it_from_being_ready(tmp_path: Path, model: Path) -> None:
    with started(tmp_path, model, module=ODD, arguments=("astray",)) as daemon:
        assert daemon.exit_status() == 4
        assert not daemon.has_sent("READY=1")
        assert "local_ratio=0.5, limit_ratio=0.95" in daemon.log
        assert "remedy:" in daemon.log


def test_pages_astray_are_served_as_degraded_where_that_is_configured(tmp_path: Path, model: Path) -> None:
    settings = '[placement]\nfallback = "degraded"\n'
    with started(tmp_path, model, settings=settings, module=ODD, arguments=("astray",)) as daemon:
        daemon.wait_for("READY=1")
        health = httpx.get(daemon.endpoint + "/health")
        assert (health.status_code, health.json()["status"]) == (200, "degraded")
        assert _complete(daemon, max_tokens=1).status_code == 200
        verified = _stratactl("verify", "--url", daemon.endpoint)
        assert (verified.returncode, "50.0%" in verified.stdout) == (4, True), (
            verified.stdout + verified.stderr
        )
        reasons = httpx.get(daemon.endpoint + "/status").json()["reasons"]
        assert "placement-below-limit" in [reason["code"] for reason in reasons]
        metrics = httpx.get(daemon.endpoint + "/metrics").text
        assert 'stratad_placement_local_ratio{node="0",slice="0"} 0.5' in metrics
        assert 'stratad_plan_reason{code="placement-below-limit",effect="warns"} 1.0' in metrics
        assert 'stratad_state{stratad_state="degraded"} 1.0' in metrics


def test_pages_that_lie_right_at_the_second_plan_make_it_ready(tmp_path: Path, model: Path) -> None:
    settings = '[placement]\nfallback = "single-socket"\n'
    with started(tmp_path, model, settings=settings, module=ODD, arguments=("astray-once",)) as daemon:
        daemon.wait_for("READY=1")
        status = httpx.get(daemon.endpoint + "/status").json()
        assert status["state"] == "ready"
        assert status["plan"]["policy"] == "single-socket"
        assert "placement-fallback" in [reason["code"] for reason in status["reasons"]]
        assert _complete(daemon, max_tokens=1).status_code == 200
        assert daemon.terminate() == 0


def test_a_kernel_that_tells_no_page_is_a_warning_and_no_failure(tmp_path: Path, model: Path) -> None:
    with started(tmp_path, model, module=ODD, arguments=("unknown",)) as daemon:
        daemon.wait_for("READY=1")
        verified = _stratactl("verify", "--url", daemon.endpoint, "--json")
        assert verified.returncode == 1
        assert json.loads(verified.stdout)["verdict"] == "unverifiable"
        status = httpx.get(daemon.endpoint + "/status").json()
        assert "placement-unverifiable" in [reason["code"] for reason in status["reasons"]]


def test_a_port_in_use_is_an_error_with_a_remedy(tmp_path: Path, model: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with started(tmp_path, model, settings=f"[server]\nport = {port}\n") as daemon:
            assert daemon.exit_status() == 1
            assert f"listening on 127.0.0.1 port {port}" in daemon.log
            assert "EADDRINUSE" in daemon.log
            assert "set server.port" in daemon.log


def test_wrong_settings_end_it_with_status_2(tmp_path: Path, model: Path) -> None:
    with started(tmp_path, model, settings="[server]\nprot = 1\n") as daemon:
        assert daemon.exit_status() == 2
        assert "did you mean server.port?" in daemon.log
        assert daemon.messages == []


def test_a_missing_and_a_damaged_model_are_told_before_anything_is_loaded(
    tmp_path: Path, model: Path
) -> None:
    damaged = tmp_path / "damaged.gguf"
    damaged.write_bytes(model.read_bytes()[:5000])
    for name, path in (("missing", tmp_path / "none.gguf"), ("damaged", damaged)):
        with started(tmp_path / name, path) as daemon:
            assert daemon.exit_status() == 1
            assert str(path) in daemon.log
            assert "Traceback" not in daemon.log


def test_an_arena_larger_than_the_memory_is_refused_with_the_numbers(tmp_path: Path, model: Path) -> None:
    with started(tmp_path, model, module=ODD, arguments=("tiny-memory",)) as daemon:
        assert daemon.exit_status() == 3
        assert "arena-exceeds-cgroup-limit" in daemon.log
        assert daemon.messages == []


@pytest.mark.parametrize(("scope", "code"), [("experts", "no-experts"), ("weights", "arena-scope-requested")])
def test_a_dense_model_is_served_and_the_plan_says_so(scope: str, code: str, tmp_path: Path) -> None:
    dense = write_model(tmp_path / "dense.gguf", "dense", vocabulary="bytes")
    with started(tmp_path / "run", dense, settings=f'[arena]\nscope = "{scope}"\n') as daemon:
        daemon.wait_for("READY=1")
        assert _complete(daemon, max_tokens=2).status_code == 200
        assert code in daemon.log
        assert _stratactl("verify", "--url", daemon.endpoint).returncode == 0
        assert daemon.terminate() == 0


def test_slices_in_test_mode_give_the_same_greedy_answer(tmp_path: Path, model: Path) -> None:
    answers = []
    for slices in (1, 3):
        settings = f"[placement]\ntest_slices = {slices}\n"
        with started(tmp_path / str(slices), model, settings=settings) as daemon:
            daemon.wait_for("READY=1")
            answers.append(_complete(daemon, max_tokens=24, temperature=0).json()["choices"][0]["text"])
            metrics = httpx.get(daemon.endpoint + "/metrics").text
            assert metrics.count("stratad_pool_tasks_total{") == slices
            assert "stratad_fallback_operations_total 0.0" in metrics
    assert answers[0] == answers[1] != ""


def test_stratactl_finds_it_by_its_runtime_directory_and_by_a_unix_socket(
    tmp_path: Path, model: Path
) -> None:
    socket_path = tmp_path / "api.socket"
    settings = f'[server]\nunix_socket = "{socket_path}"\nruntime_directory = "{tmp_path / "run"}"\n'
    with started(tmp_path, model, settings=settings) as daemon:
        daemon.wait_for("READY=1")
        by_config = _stratactl("status", "--config", str(tmp_path / "stratad.toml"), "--json")
        by_socket = _stratactl("verify", "--socket", str(socket_path))
        assert json.loads(by_config.stdout)["state"] == "ready", by_config.stderr
        assert by_socket.returncode == 0, by_socket.stderr
        assert "verdict   met" in by_socket.stdout
        plan = json.loads((tmp_path / "run" / "plan.json").read_text())
        assert plan["fingerprint"] in by_socket.stdout
        assert daemon.terminate() == 0
    assert not socket_path.exists()
    gone = _stratactl("verify", "--config", str(tmp_path / "stratad.toml"))
    assert gone.returncode == 1
    assert "none has left its address there" in gone.stderr


def test_logs_carry_priorities_under_the_journal(tmp_path: Path, model: Path) -> None:
    log = tmp_path / "log"
    log.touch()
    stream = f"{log.stat().st_dev}:{log.stat().st_ino}"
    with started(tmp_path, model, variables={"JOURNAL_STREAM": stream}) as daemon:
        daemon.wait_for("READY=1")
        assert daemon.terminate() == 0
        assert all(line.startswith(("<6>", "<4>")) for line in daemon.log.splitlines()), daemon.log
