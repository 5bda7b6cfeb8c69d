"""Prometheus' own programs: promtool, and a server with a port and a folder of its own."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest

# A busy machine may take long to start a server; a hang is what this is for.
LIMIT_SECONDS = 300.0


def program(name: str) -> str:
    """The path of `prometheus` or `promtool`; skips the test where `make test` could not fetch it."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "stratad" / "prometheus"
    found = shutil.which(name) or shutil.which(str(cache / name))
    if found is None:
        pytest.skip(f"{name} is neither on PATH nor fetched (packaging/bootstrap/fetch_prometheus.py)")
    return found


def promtool(*arguments: str, text: str | None = None, folder: Path | None = None) -> str:
    """What promtool says of something that is right; fails the test where it objects."""
    done = subprocess.run(
        [program("promtool"), *arguments],
        input=text,
        cwd=folder,
        check=False,
        text=True,
        capture_output=True,
        timeout=LIMIT_SECONDS,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


@dataclass(frozen=True, slots=True)
class PrometheusServer:
    """A running server."""

    url: str
    process: subprocess.Popen[bytes]
    log_path: Path

    def get(self, path: str, **parameters: str) -> Any:
        """The data that the API answers with."""
        answer = httpx.get(f"{self.url}/api/v1/{path}", params=parameters, timeout=LIMIT_SECONDS)
        document = answer.json()
        assert document["status"] == "success", (parameters, document)
        return document["data"]

    def query(self, expression: str) -> list[dict[str, Any]]:
        """The series that an expression gives now."""
        found = self.get("query", query=expression)
        assert found["resultType"] == "vector", expression
        result = found["result"]
        assert isinstance(result, list)
        return result

    def wait_until(self, expression: str) -> None:
        """Returns as soon as an expression gives a series."""
        deadline_seconds = time.monotonic() + LIMIT_SECONDS
        while not self.query(expression):
            assert time.monotonic() < deadline_seconds, f"{expression} never gave data"
            assert self.process.poll() is None, self.log_path.read_text()
            time.sleep(0.1)


@contextmanager
def running_prometheus(configuration: Path, folder: Path) -> Iterator[PrometheusServer]:
    """A server with this configuration on a free port, with its data in `folder`; ended afterwards."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    log_path = folder / "prometheus.log"
    command = [
        program("prometheus"),
        f"--config.file={configuration}",
        f"--storage.tsdb.path={folder / 'data'}",
        f"--web.listen-address=127.0.0.1:{port}",
    ]
    with log_path.open("wb") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log, stdin=subprocess.DEVNULL)
    try:
        server = PrometheusServer(f"http://127.0.0.1:{port}", process, log_path)
        _wait_until_ready(server)
        yield server
    finally:
        process.terminate()
        try:
            process.wait(LIMIT_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _wait_until_ready(server: PrometheusServer) -> None:
    deadline_seconds = time.monotonic() + LIMIT_SECONDS
    while True:
        assert server.process.poll() is None, server.log_path.read_text()
        try:
            if httpx.get(f"{server.url}/-/ready").status_code == httpx.codes.OK:
                return
        except httpx.TransportError:
            pass
        assert time.monotonic() < deadline_seconds, server.log_path.read_text()
        time.sleep(0.05)
