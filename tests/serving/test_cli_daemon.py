"""`stratactl chat` and `drain`, API keys and what the logs may hold, against the real daemon on the demo model."""

from __future__ import annotations

import json
import os
import pty
import re
import signal
import stat
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from select import select
from time import monotonic

import httpx
import openai
import pytest

pytest.importorskip("stratad._native", reason="the native module is not built")

from stratad.daemon.main import demo_model_path
from stratad.server.api_keys import CREDENTIAL_NAME
from tests.serving.support.daemon_process import LIMIT_SECONDS, DaemonProcess, started
from tests.serving.support.served import wait_until

LONG = "Write a long story about a ball."
NEVER_ENDS = {str(token): -100 for token in range(3)}


def stratactl(*arguments: str, daemon: DaemonProcess, text: str = "") -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "stratad.cli.main", *arguments],
        env=environment(daemon),
        input=text,
        capture_output=True,
        check=False,
        text=True,
        timeout=LIMIT_SECONDS,
    )


def environment(daemon: DaemonProcess) -> dict[str, str]:
    """What a user's shell has: the runtime directory that leads to this daemon."""
    return {
        **os.environ,
        "XDG_RUNTIME_DIR": str(daemon.folder / "xdg"),
        "NO_COLOR": "1",
        "PYTHONUNBUFFERED": "1",
    }


@contextmanager
def demo(folder: Path, settings: str = "", **variables: str) -> Iterator[DaemonProcess]:
    """A daemon that leaves its address where `stratactl` of the same user looks for it."""
    (folder / "xdg").mkdir(parents=True)
    runtime = {"RUNTIME_DIRECTORY": str(folder / "xdg" / "stratad")}
    with started(folder, demo_model_path(), settings=settings, variables={**runtime, **variables}) as daemon:
        daemon.wait_for("READY=1")
        yield daemon


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DaemonProcess]:
    with demo(tmp_path_factory.mktemp("chat") / "daemon") as daemon:
        yield daemon


def test_one_question_is_answered_on_standard_output_with_its_figures_beside_it(
    running: DaemonProcess,
) -> None:
    done = stratactl("chat", "Who is Mr. Darcy?", "--max-tokens", "12", daemon=running)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip()
    assert re.search(
        r"^decode    \d+ tokens, [\d.]+ tokens/s; prompt \d+ tokens in \d+ ms", done.stderr, re.M
    )
    assert re.search(r"^placement policy \S+", done.stderr, re.M)


def test_what_is_piped_in_is_the_question_or_follows_it(running: DaemonProcess) -> None:
    counts = []
    for arguments, text in (
        (["Sum this up:"], ""),
        (["Sum this up:"], "A ball at Netherfield."),
        ([], "A ball."),
    ):
        done = stratactl("chat", *arguments, "--json", "--max-tokens", "1", daemon=running, text=text)
        document = json.loads(done.stdout)
        assert (done.returncode, document["finish_reason"]) == (0, "length")
        counts.append(document["timings"]["prompt_n"] + document["timings"]["cache_n"])
    assert counts[1] > counts[0]
    assert set(document) == {"answer", "thinking", "finish_reason", "timings", "placement"}
    assert set(document["placement"]) == {"policy", "local_ratio", "verdict"}


def test_nothing_to_ask_and_json_without_a_question_are_usage_errors(running: DaemonProcess) -> None:
    for arguments in (["chat"], ["chat", ""], ["chat", "--json"]):
        done = stratactl(*arguments, daemon=running)
        assert done.returncode == 2, done.stdout
        assert "no question" in done.stderr
        assert "Traceback" not in done.stderr


def test_a_question_beyond_the_context_is_an_error_with_the_numbers(running: DaemonProcess) -> None:
    done = stratactl("chat", daemon=running, text="word " * 5000)
    assert done.returncode == 1
    assert "http_status=400" in done.stderr
    assert "context holds" in done.stderr


class Terminal:
    """A command on a terminal of its own."""

    def __init__(self, command: list[str], environment: dict[str, str]) -> None:
        controller, terminal = pty.openpty()
        self.process = subprocess.Popen(
            command, stdin=terminal, stdout=terminal, stderr=terminal, env=environment, start_new_session=True
        )
        os.close(terminal)
        self._controller = controller
        self.text = ""

    def wait_for(self, pattern: str) -> None:
        """Reads until the pattern stands in what came since the last wait."""
        end_seconds = monotonic() + LIMIT_SECONDS
        while not (found := re.search(pattern, self.text, re.DOTALL)):
            ready, _, _ = select([self._controller], [], [], max(0.0, end_seconds - monotonic()))
            assert ready, f"{pattern!r} never came: {self.text!r}"
            self.text += os.read(self._controller, 4096).decode(errors="replace")
        self.text = self.text[found.end() :]

    def send(self, text: str) -> None:
        os.write(self._controller, text.encode())

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        os.close(self._controller)


def test_a_conversation_streams_and_control_c_ends_the_answer_only(running: DaemonProcess) -> None:
    command = [sys.executable, "-m", "stratad.cli.main", "chat", "--temperature", "0"]
    terminal = Terminal(command, environment(running))
    try:
        terminal.wait_for("> ")
        before = finished(running)
        terminal.send(LONG + "\n")
        wait_until(lambda: status_of(running)["requests_running"] == 1)
        terminal.process.send_signal(signal.SIGINT)
        terminal.wait_for("decode .*placement policy .*> ")
        wait_until(lambda: finished(running).get("cancelled", 0) == before.get("cancelled", 0) + 1)
        assert status_of(running)["requests_running"] == 0
        terminal.send("/new\n")
        terminal.wait_for("> ")
        terminal.process.send_signal(signal.SIGINT)
        terminal.wait_for("> ")
        terminal.send("\n")
        assert terminal.process.wait(LIMIT_SECONDS) == 0
    finally:
        terminal.close()


def test_control_c_ends_a_single_question_with_its_status_and_what_came_so_far(
    running: DaemonProcess,
) -> None:
    before = finished(running).get("cancelled", 0)
    process = subprocess.Popen(
        [sys.executable, "-m", "stratad.cli.main", "chat", LONG],
        env=environment(running),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    first = process.stdout.read(1)
    process.send_signal(signal.SIGINT)
    rest, errors = process.communicate(timeout=LIMIT_SECONDS)
    assert process.returncode == 130, errors
    assert (len(first), rest[-1:]) == (1, "\n")
    assert "Traceback" not in errors
    assert "placement policy" in errors
    wait_until(lambda: finished(running).get("cancelled", 0) == before + 1)


def status_of(daemon: DaemonProcess) -> dict[str, int]:
    return dict(httpx.get(daemon.endpoint + "/status").json()["decode"])


def finished(daemon: DaemonProcess) -> dict[str, int]:
    """Requests ended so far, by how."""
    lines = httpx.get(daemon.endpoint + "/metrics").text
    found = re.findall(r'stratad_requests_total\{finish_reason="(\w+)".*\} ([\d.]+)', lines)
    return {reason: int(float(count)) for reason, count in found}


def test_a_drain_ends_running_requests_and_then_the_daemon(tmp_path: Path) -> None:
    with demo(tmp_path / "daemon") as daemon:
        client = openai.OpenAI(base_url=daemon.endpoint + "/v1", api_key="x", max_retries=0)
        stream = client.completions.create(
            model="tiny", prompt="It was", max_tokens=300, logit_bias=NEVER_ENDS, stream=True
        )
        next(iter(stream))
        done = stratactl("drain", daemon=daemon)
        reasons = [chunk.choices[0].finish_reason for chunk in stream]
        assert done.returncode == 0, done.stderr
        assert daemon.exit_status() == 0
        assert "state     stopped" in done.stdout
        assert reasons[-1] in ("length", "stop")
        assert "requests were cut off" not in daemon.log
        gone = stratactl("drain", daemon=daemon)
    assert gone.returncode == 1
    assert "none has left its address" in gone.stderr


def test_a_drain_that_stays_is_taken_back(tmp_path: Path) -> None:
    with demo(tmp_path / "daemon") as daemon:
        stayed = stratactl("drain", "--stay", "--json", daemon=daemon)
        health = httpx.get(daemon.endpoint + "/health")
        asked = stratactl("chat", "Hi", daemon=daemon)
        shown = stratactl("status", daemon=daemon)
        undone = stratactl("drain", "--undo", daemon=daemon)
        both = stratactl("drain", "--undo", "--stay", daemon=daemon)
        answered = stratactl("chat", "Hi", "--max-tokens", "2", daemon=daemon)
        assert daemon.process.poll() is None
    assert json.loads(stayed.stdout)["state"] == "draining"
    assert (health.status_code, health.json()["status"]) == (503, "draining")
    assert (asked.returncode, "http_status=503, retry_after_seconds=" in asked.stderr) == (1, True)
    assert "state     draining" in shown.stdout
    assert "state     ready" in undone.stdout
    assert both.returncode == 2
    assert answered.returncode == 0


def test_who_cannot_read_the_token_cannot_drain(tmp_path: Path) -> None:
    with demo(tmp_path / "daemon") as daemon:
        token = daemon.folder / "xdg" / "stratad" / "administration-token"
        assert stat.S_IMODE(token.stat().st_mode) == 0o600
        secret = token.read_text()
        token.write_text("another")
        refused = stratactl("drain", daemon=daemon)
        token.unlink()
        missing = stratactl("drain", daemon=daemon)
        elsewhere = stratactl("drain", "--url", "http://127.0.0.1:1", daemon=daemon)
        assert daemon.process.poll() is None
        assert secret not in daemon.log
    assert (refused.returncode, "http_status=403" in refused.stderr) == (1, True)
    assert (missing.returncode, "sudo stratactl" in missing.stderr) == (1, True)
    assert (elsewhere.returncode, "listens at" in elsewhere.stderr) == (1, True)


KEYS = {name: f"{name}-key-5b1f9f60c2" for name in ("first", "second", "systemd")}


def bearer(name: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {KEYS[name]}"}


def test_keys_of_file_and_credential_are_read_again_on_sighup_and_never_shown(tmp_path: Path) -> None:
    """Every way a key can go is tried; afterwards no log and no answer holds one."""
    keys, credentials = tmp_path / "keys", tmp_path / "credentials"
    credentials.mkdir()
    (credentials / CREDENTIAL_NAME).write_text(KEYS["systemd"] + "\n")
    (credentials / CREDENTIAL_NAME).chmod(0o400)
    keys.write_text(KEYS["first"] + "\n")
    keys.chmod(0o644)
    settings = '[server]\nport = 0\napi_keys_file = "../keys"\n'
    shown = []
    with demo(tmp_path / "daemon", settings, CREDENTIALS_DIRECTORY=str(credentials)) as daemon:

        def codes() -> dict[str, int]:
            found = {}
            for name in KEYS:
                response = httpx.get(daemon.endpoint + "/v1/models", headers=bearer(name))
                found[name] = response.status_code
                shown.append(response.text)
            return found

        def reasons() -> list[str]:
            response = httpx.get(daemon.endpoint + "/status", headers=bearer("systemd"))
            shown.append(response.text)
            return [reason["code"] for reason in response.json()["reasons"]]

        assert codes() == {"first": 200, "second": 401, "systemd": 200}
        assert "api-keys-readable" in reasons()
        by_command = [
            stratactl("status", *more, daemon=daemon) for more in ([], ["--api-key-file", str(keys)])
        ]
        keys.write_text(f"# changed\n{KEYS['second']}\n")
        keys.chmod(0o600)
        daemon.process.send_signal(signal.SIGHUP)
        wait_until(lambda: codes() == {"first": 401, "second": 200, "systemd": 200})
        wait_until(lambda: "api-keys-readable" not in reasons())
        keys.write_text(f"{KEYS['first']} and more\n")
        daemon.process.send_signal(signal.SIGHUP)
        wait_until(lambda: "line 1 is no key" in daemon.log)
        assert codes() == {"first": 401, "second": 200, "systemd": 200}, "the former keys still count"
        drained = stratactl("drain", "--api-key-file", str(credentials / CREDENTIAL_NAME), daemon=daemon)
        assert daemon.exit_status() == 0
        shown += [daemon.log, *daemon.messages]
    assert [done.returncode for done in by_command] == [1, 0]
    assert "--api-key-file" in by_command[0].stderr
    assert drained.returncode == 0, drained.stderr
    shown += [done.stdout + done.stderr for done in (*by_command, drained)]
    for key in KEYS.values():
        assert not [text for text in shown if key in text or key[:-3] in text]


def test_a_key_file_that_cannot_be_used_keeps_the_daemon_from_starting(tmp_path: Path) -> None:
    settings = '[server]\nport = 0\napi_keys_file = "none"\n'
    with started(tmp_path, demo_model_path(), settings=settings) as daemon:
        assert daemon.exit_status() == 2
        assert "API keys" in daemon.log
        assert "Traceback" not in daemon.log


def test_an_address_of_the_network_without_keys_is_a_warning_and_with_keys_none(tmp_path: Path) -> None:
    (tmp_path / "keys").write_text(KEYS["first"])
    (tmp_path / "keys").chmod(0o600)
    found = []
    for number, more in enumerate(("", 'api_keys_file = "../keys"\n')):
        settings = f'[server]\nhost = "0.0.0.0"\nport = 0\n{more}'
        with demo(tmp_path / str(number), settings) as daemon:
            url = daemon.endpoint.replace("0.0.0.0", "127.0.0.1")
            document = httpx.get(url + "/status", headers=bearer("first")).json()
            found.append([reason for reason in document["reasons"] if reason["code"] == "open-to-network"])
    assert [len(reasons) for reasons in found] == [1, 0]
    assert found[0][0]["effect"] == "warns"
    assert "server.api_keys_file" in found[0][0]["remedy"]


def test_over_a_unix_socket_everything_works_the_same(tmp_path: Path) -> None:
    socket_path = tmp_path / "api"
    settings = f'[server]\nunix_socket = "{socket_path}"\n'
    with demo(tmp_path / "daemon", settings) as daemon:
        found = stratactl("chat", "Hi", "--max-tokens", "2", daemon=daemon)
        named = stratactl("chat", "Hi", "--max-tokens", "2", "--socket", str(socket_path), daemon=daemon)
        drained = stratactl("drain", "--socket", str(socket_path), daemon=daemon)
        assert daemon.exit_status() == 0
    assert [done.returncode for done in (found, named, drained)] == [0, 0, 0]
