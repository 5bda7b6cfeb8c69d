"""How commands reach the running daemon: which address, and one GET that gives JSON."""

from __future__ import annotations

import functools
import http.client
import json
import socket
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import click

from stratad.errors import ConfigurationError, DaemonError

_TIMEOUT_SECONDS = 30.0


@dataclass(frozen=True, slots=True)
class DaemonAddress:
    """What the options say about where the daemon is; all None means: look for it."""

    url: str | None
    socket_path: Path | None
    configuration_path: Path | None


def address_of(endpoint: str) -> DaemonAddress:
    """The address that a running daemon has left in its runtime directory."""
    return DaemonAddress(endpoint, None, None)


def daemon_options(command: Callable[..., int]) -> Callable[..., int]:
    """Add --url, --socket and --config to a command; its function takes `address`."""

    @click.option("--url", help="Address of the daemon, as http://127.0.0.1:8090.")
    @click.option("--socket", "socket_path", type=click.Path(path_type=Path), help="Its unix socket.")
    @click.option(
        "--config", "configuration_path", type=click.Path(path_type=Path), help="Its configuration file."
    )
    @functools.wraps(command)
    def with_address(
        url: str | None, socket_path: Path | None, configuration_path: Path | None, **options: object
    ) -> int:
        return command(address=DaemonAddress(url, socket_path, configuration_path), **options)

    return with_address


def get_json(address: DaemonAddress, path: str) -> dict[str, Any]:
    """What the daemon answers at `path`.

    Raises:
        DaemonError: It is not found, not reachable, or refuses; the error says which.
        ConfigurationError: The address or the configuration file cannot be used.
    """
    endpoint = _endpoint(address)
    tried = f"asking the daemon at {endpoint} for {path}"
    remedy = "look at `systemctl status stratad`, or name another address with --url or --socket"
    connection = _connection(endpoint)
    try:
        connection.request("GET", path)
        response = connection.getresponse()
        body = response.read()
    except (OSError, http.client.HTTPException) as error:
        raise DaemonError(tried, str(error) or type(error).__name__, remedy=remedy) from error
    finally:
        connection.close()
    document = _object(body)
    if response.status != http.HTTPStatus.OK:
        message = (document.get("error") or {}).get("message", response.reason)
        raise DaemonError(tried, str(message), values={"http_status": response.status}, remedy=remedy)
    return document


class _UnixConnection(http.client.HTTPConnection):
    """HTTP over a unix socket."""

    def __init__(self, path: str) -> None:
        super().__init__("localhost", timeout=_TIMEOUT_SECONDS)
        self._path = path

    def connect(self) -> None:
        """Connects to the socket's path in place of a host and port."""
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(_TIMEOUT_SECONDS)
        self.sock.connect(self._path)


def _endpoint(address: DaemonAddress) -> str:
    if address.url is not None:
        return address.url
    if address.socket_path is not None:
        return f"unix:{address.socket_path}"
    # pydantic comes with the configuration; an address that was given needs neither.
    from stratad.config import load_configuration, read_environment
    from stratad.runtime_directory import find_running

    configured = None
    if address.configuration_path is not None:
        configured = load_configuration(address.configuration_path).server.runtime_directory
    return find_running(configured, read_environment()).endpoint


def _connection(endpoint: str) -> http.client.HTTPConnection:
    if endpoint.startswith("unix:"):
        return _UnixConnection(endpoint.removeprefix("unix:"))
    try:
        parts = urlsplit(endpoint)
        host, port = parts.hostname, parts.port
    except ValueError:
        host, port = None, None
    if host is None or parts.scheme != "http":
        raise ConfigurationError(
            f"using the address {endpoint}",
            "it is not http://host:port",
            remedy="write --url http://127.0.0.1:8090",
        )
    return http.client.HTTPConnection(host, port, timeout=_TIMEOUT_SECONDS)


def _object(body: bytes) -> dict[str, Any]:
    try:
        document = json.loads(body)
    except ValueError:
        return {}
    return document if isinstance(document, dict) else {}
