"""The real daemon as a child process, seen as systemd and clients see it."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from stratad.state.runtime_directory import read_running
from tests.serving.support.served import wait_until

LIMIT_SECONDS = 60.0


class DaemonProcess:
    """A started daemon: its messages to the supervisor, its log, its address and its end."""

    def __init__(
        self, process: subprocess.Popen[bytes], supervisor: socket.socket, folder: Path, runtime: Path
    ) -> None:
        self.process = process
        self.folder = folder
        self._runtime = runtime
        self.messages: list[str] = []
        self._supervisor = supervisor

    @property
    def log(self) -> str:
        """What it wrote to standard error so far."""
        return (self.folder / "log").read_text(encoding="utf-8", errors="replace")

    @property
    def endpoint(self) -> str:
        """Where it listens."""
        running = read_running(self._runtime)
        assert running is not None
        return running.endpoint

    def wait_for(self, line: str) -> None:
        """Reads messages until one holds `line`; fails when the daemon ends before."""

        def has_come() -> bool:
            self._read_messages()
            assert self.process.poll() is None or self.has_sent(line), self.log
            return self.has_sent(line)

        wait_until(has_come)

    def has_sent(self, line: str) -> bool:
        """Whether a message so far holds `line`."""
        return any(line in message.splitlines() for message in self.messages)

    def terminate(self) -> int:
        """Sends SIGTERM and gives the exit status."""
        self.process.send_signal(signal.SIGTERM)
        return self.exit_status()

    def exit_status(self) -> int:
        """Waits for the end."""
        status = self.process.wait(LIMIT_SECONDS)
        self._read_messages()
        return status

    def _read_messages(self) -> None:
        while True:
            try:
                self.messages.append(self._supervisor.recv(4096).decode())
            except BlockingIOError:
                return


@contextmanager
def started(
    folder: Path,
    model: Path,
    *,
    settings: str = "",
    module: str = "stratad.daemon",
    arguments: tuple[str, ...] = (),
    variables: Mapping[str, str] | None = None,
    context_tokens: int = 2048,
) -> Iterator[DaemonProcess]:
    """Starts `python -m module *arguments --config ...` for `model`; `settings` are further lines of TOML.

    The first section of `settings` must not be [model], which comes with the path.
    """
    folder.mkdir(exist_ok=True)
    configuration = folder / "stratad.toml"
    # One thread of ggml's: more than the machine has CPUs spin against each other in its barriers.
    text = f'[model]\npath = "{model}"\nname = "tiny"\ncontext_tokens = {context_tokens}\nthreads = 1\n{settings}'
    configuration.write_text(
        text if "[server]" in settings else f"{text}\n[server]\nport = 0\n", encoding="utf-8"
    )
    supervisor = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    supervisor.bind(str(folder / "notify"))
    supervisor.setblocking(False)
    environment = {
        **os.environ,
        "NOTIFY_SOCKET": str(folder / "notify"),
        "RUNTIME_DIRECTORY": str(folder / "run"),
        **(variables or {}),
    }
    command = [sys.executable, "-m", module, *arguments, "--config", str(configuration)]
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(command, env=environment, stderr=log, stdin=subprocess.DEVNULL)
    try:
        yield DaemonProcess(process, supervisor, folder, Path(environment["RUNTIME_DIRECTORY"]))
    finally:
        if process.poll() is None:
            process.kill()
        process.wait()
        supervisor.close()
