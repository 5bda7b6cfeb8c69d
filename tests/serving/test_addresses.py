"""Listening sockets and the runtime directory."""

from __future__ import annotations

import os
import socket
import stat
from pathlib import Path

import pytest

from stratad.config import Environment
from stratad.errors import DaemonError
from stratad.server import open_listener
from stratad.state.runtime_directory import find_running, publish_plan, published, runtime_directory


def test_port_0_takes_a_free_port_and_says_which() -> None:
    listener = open_listener("127.0.0.1", 0, None)
    port = listener.socket.getsockname()[1]
    assert (listener.endpoint, listener.is_loopback) == (f"http://127.0.0.1:{port}", True)
    listener.close()


@pytest.mark.parametrize("host", ["127.0.0.1", "::1"])
def test_what_is_written_to_a_client_goes_out_at_once(host: str) -> None:
    try:
        listener = open_listener(host, 0, None)
    except DaemonError:
        pytest.skip(f"this machine has no {host}")
    with socket.create_connection(listener.socket.getsockname()[:2]):
        connection, _ = listener.socket.accept()
        assert connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
        connection.close()
    listener.close()


def test_loopback_is_known_by_address_and_not_by_name() -> None:
    everywhere = open_listener("0.0.0.0", 0, None)
    by_name = open_listener("localhost", 0, None)
    assert (everywhere.is_loopback, by_name.is_loopback) == (False, True)
    everywhere.close()
    by_name.close()


def test_an_address_of_another_machine_is_an_error_with_a_remedy() -> None:
    host = "203.0.113.1"
    with pytest.raises(DaemonError) as refused:
        open_listener(host, 0, None)
    assert host in refused.value.tried
    assert "server.host" in refused.value.remedy


def test_a_socket_left_by_a_crash_is_replaced_and_removed_at_the_end(tmp_path: Path) -> None:
    path = tmp_path / "api"
    socket.socket(socket.AF_UNIX).bind(str(path))
    listener = open_listener("ignored", 0, path)
    assert stat.S_IMODE(path.stat().st_mode) == 0o660
    listener.close()
    assert not path.exists()


def test_a_socket_in_use_and_a_file_in_the_way_are_errors(tmp_path: Path) -> None:
    path = tmp_path / "api"
    first = open_listener("ignored", 0, path)
    with pytest.raises(DaemonError, match="another daemon listens"):
        open_listener("ignored", 0, path)
    assert path.exists()
    first.close()
    path.write_text("precious")
    with pytest.raises(DaemonError, match="something else"):
        open_listener("ignored", 0, path)
    assert path.read_text() == "precious"


def test_the_runtime_directory_is_configured_or_systemds_or_the_users() -> None:
    system = Environment(runtime_directory=Path("/run/stratad"), user_runtime_directory=Path("/run/user/7"))
    user = Environment(user_runtime_directory=Path("/run/user/7"))
    assert runtime_directory(Path("/x"), system) == Path("/x")
    assert runtime_directory(None, system) == Path("/run/stratad")
    assert runtime_directory(None, user) == Path("/run/user/7/stratad")
    assert runtime_directory(None, Environment()) == Path(f"/tmp/stratad-{os.getuid()}")


def test_a_daemon_is_found_while_it_lives(tmp_path: Path) -> None:
    environment = Environment(user_runtime_directory=tmp_path)
    with published(tmp_path / "stratad", "http://127.0.0.1:1"):
        publish_plan(tmp_path / "stratad", {"policy": "off"})
        running = find_running(tmp_path / "stratad", environment)
        assert (running.endpoint, running.process_id) == ("http://127.0.0.1:1", os.getpid())
    assert list((tmp_path / "stratad").iterdir()) == []
    with pytest.raises(DaemonError, match="none has left"):
        find_running(tmp_path / "stratad", environment)


def test_what_a_dead_daemon_or_a_stranger_left_is_not_believed(tmp_path: Path) -> None:
    # Process 1 << 22 is beyond the kernel's largest id.
    (tmp_path / "endpoint.json").write_text('{"endpoint": "http://x", "process_id": 4194304}')
    with pytest.raises(DaemonError):
        find_running(tmp_path, Environment())
    (tmp_path / "endpoint.json").write_text("[]")
    with pytest.raises(DaemonError):
        find_running(tmp_path, Environment())
    tmp_path.chmod(0o777)
    with (
        pytest.raises(DaemonError, match="not a directory of this user's own"),
        published(tmp_path, "http://x"),
    ):
        pass


def test_the_files_of_a_daemon_started_since_are_left_alone(tmp_path: Path) -> None:
    newer = '{"endpoint": "http://newer", "process_id": 1}'
    with published(tmp_path, "http://older"):
        (tmp_path / "endpoint.json").write_text(newer)
    assert (tmp_path / "endpoint.json").read_text() == newer
