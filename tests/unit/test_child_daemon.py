"""The supervisor's side of a child daemon, with real processes that do what each test wants in the daemon's place."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import pytest

from stratad.errors import DaemonError
from stratad.tune import child_daemon
from stratad.tune.child_daemon import log_path, runtime_directory, started_child, state_directory

LIMIT_SECONDS = 60.0

# What a daemon has at hand: `say` is sd_notify, `publish` leaves an address.
_PRELUDE = f"""#!{sys.executable}
import json, os, pathlib, signal, socket, sys, time

def say(text):
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as supervisor:
        supervisor.connect(os.environ["NOTIFY_SOCKET"])
        supervisor.send(text.encode())

def publish(endpoint):
    folder = pathlib.Path(os.environ["RUNTIME_DIRECTORY"])
    folder.mkdir()
    document = {{"endpoint": endpoint, "process_id": os.getpid()}}
    (folder / "endpoint.json").write_text(json.dumps(document))

"""


@pytest.fixture
def acted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The script that takes the daemon's place; a test writes it by `act`."""
    script = tmp_path / "actor"
    monkeypatch.setattr(child_daemon.sys, "executable", str(script))
    return script


def act(script: Path, text: str) -> Path:
    """Writes the script, and gives a folder for the child."""
    script.write_text(_PRELUDE + text)
    script.chmod(0o755)
    folder = script.with_name("child")
    folder.mkdir()
    return folder


def test_it_tells_its_progress_and_then_its_address_and_is_ended_in_order(acted: Path) -> None:
    folder = act(
        acted,
        """
def end(number, frame):
    print("ended in order", file=sys.stderr)
    sys.exit(0)

signal.signal(signal.SIGTERM, end)
say("STATUS=loading 50%")
publish("http://127.0.0.1:1")
say("READY=1\\nSTATUS=serving")
while True:
    signal.pause()
""",
    )
    told: list[str] = []
    with started_child(folder, (), "the daemon") as child:
        assert child.wait_until_ready(LIMIT_SECONDS, told.append) == "http://127.0.0.1:1"
        assert child.process.poll() is None
    assert told == ["loading 50%", "serving"]
    assert child.process.returncode == 0
    assert log_path(folder).read_text() == "ended in order\n"


def test_it_gets_its_arguments_and_folders_and_nothing_that_systemd_gave_this_process(
    acted: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("CREDENTIALS_DIRECTORY", "STRATAD_PLAN", "WATCHDOG_USEC", "STATE_DIRECTORY"):
        monkeypatch.setenv(name, "ours")
    folder = act(
        acted,
        """
names = ("CREDENTIALS_DIRECTORY", "STRATAD_PLAN", "WATCHDOG_USEC", "STATE_DIRECTORY", "RUNTIME_DIRECTORY", "MORE")
print(json.dumps([sys.argv[1:], [os.environ[name] for name in names]]), file=sys.stderr)
""",
    )
    with started_child(folder, ("--config", "file"), "the daemon", {"MORE": "given"}) as child:
        child.process.wait(LIMIT_SECONDS)
    arguments, variables = json.loads(log_path(folder).read_text())
    assert arguments == ["-m", "stratad.tune.child", str(os.getpid()), "--config", "file"]
    assert variables == ["", "", "", str(state_directory(folder)), str(runtime_directory(folder)), "given"]
    assert state_directory(folder).is_dir()


@pytest.mark.parametrize(
    ("text", "limit_seconds", "because"),
    [
        ("sys.exit(3)", LIMIT_SECONDS, "it ended with status 3"),
        ("say('READY=1'); signal.pause()", LIMIT_SECONDS, "it left no address in its runtime directory"),
        ("say('STATUS=loading'); signal.pause()", 0.3, "it was not ready after 0.3 seconds"),
    ],
)
def test_one_that_does_not_get_ready_is_an_error_and_gone(
    acted: Path, text: str, limit_seconds: float, because: str
) -> None:
    folder = act(acted, text)
    with (
        pytest.raises(DaemonError) as failure,
        started_child(folder, (), "the daemon") as child,
    ):
        child.wait_until_ready(limit_seconds)
    assert (failure.value.tried, failure.value.because) == ("starting the daemon", because)
    assert child.process.returncode is not None


def test_one_that_does_not_end_is_killed(acted: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(child_daemon, "STOP_LIMIT_SECONDS", 0.1)
    folder = act(
        acted,
        """
signal.signal(signal.SIGTERM, signal.SIG_IGN)
publish("http://127.0.0.1:1")
say("READY=1")
while True:
    signal.pause()
""",
    )
    with started_child(folder, (), "the daemon") as child:
        child.wait_until_ready(LIMIT_SECONDS)
    assert child.process.returncode == -9
