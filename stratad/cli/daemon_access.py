"""How commands reach the running daemon: which address, which key, and requests that give JSON or a stream."""

from __future__ import annotations

import contextlib
import functools
import http.client
import json
import socket
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import click

from stratad.errors import ConfigurationError, DaemonError

if TYPE_CHECKING:
    from stratad.state.runtime_directory import RunningDaemon

_TIMEOUT_SECONDS = 30.0


@dataclass(frozen=True, slots=True)
class DaemonAddress:
    """What the options say about where the daemon is; all None means: look for it."""

    url: str | None
    socket_path: Path | None
    configuration_path: Path | None
    api_key_path: Path | None = None


@dataclass(frozen=True, slots=True)
class Request:
    """One request to the daemon; a body goes as JSON."""

    method: str
    path: str
    body: Mapping[str, object] | None = None
    headers: Mapping[str, str] | None = None


def address_of(endpoint: str) -> DaemonAddress:
    """The address that a running daemon has left in its runtime directory."""
    return DaemonAddress(endpoint, None, None)


def daemon_options(command: Callable[..., int]) -> Callable[..., int]:
    """Add --url, --socket, --config and --api-key-file to a command; its function takes `address`."""

    @click.option("--url", help="Address of the daemon, as http://127.0.0.1:8090.")
    @click.option("--socket", "socket_path", type=click.Path(path_type=Path), help="Its unix socket.")
    @click.option(
        "--config", "configuration_path", type=click.Path(path_type=Path), help="Its configuration file."
    )
    @click.option(
        "--api-key-file",
        "api_key_path",
        type=click.Path(path_type=Path),
        help="File whose first line that is no comment is the API key.",
    )
    @functools.wraps(command)
    def with_address(
        url: str | None,
        socket_path: Path | None,
        configuration_path: Path | None,
        api_key_path: Path | None,
        **options: object,
    ) -> int:
        return command(address=DaemonAddress(url, socket_path, configuration_path, api_key_path), **options)

    return with_address


def get_json(address: DaemonAddress, path: str) -> dict[str, Any]:
    """What the daemon answers at `path`. Raises as `ask_json`."""
    return ask_json(address, Request("GET", path))


def ask_json(address: DaemonAddress, request: Request) -> dict[str, Any]:
    """The JSON object that the daemon answers.

    Raises:
        DaemonError: It is not found, not reachable, or refuses; the error says which.
        ConfigurationError: The address, the configuration file or the key file cannot be used.
    """
    with opened(address, request) as response:
        return _object(response.read())


def get_text(address: DaemonAddress, path: str) -> str:
    """What the daemon answers at `path`, as text. Raises as `ask_json`."""
    with opened(address, Request("GET", path)) as response:
        return response.read().decode("utf-8", errors="replace")


@contextlib.contextmanager
def opened(
    address: DaemonAddress, request: Request, *, answer_seconds: float | None = _TIMEOUT_SECONDS
) -> Iterator[http.client.HTTPResponse]:
    """The daemon's answer, to be read inside the context. Raises as `ask_json`, also while it is read.

    `answer_seconds` is how long the daemon may say nothing; None waits for ever.
    """
    endpoint = endpoint_of(address)
    tried = f"asking the daemon at {endpoint} for {request.path}"
    remedy = "look at `systemctl status stratad`, or name another address with --url or --socket"
    headers = {**(request.headers or {}), **_authorization(address)}
    body = None
    if request.body is not None:
        body, headers["Content-Type"] = json.dumps(request.body), "application/json"
    connection = _connection(endpoint)
    try:
        connection.connect()
        connection.sock.settimeout(answer_seconds)
        connection.request(request.method, request.path, body, headers)
        response = connection.getresponse()
        if response.status != http.HTTPStatus.OK:
            raise _refusal(tried, response, response.read(), remedy)
        yield response
    except (OSError, http.client.HTTPException) as error:
        raise DaemonError(tried, str(error) or type(error).__name__, remedy=remedy) from error
    finally:
        connection.close()


def running_daemon(address: DaemonAddress) -> RunningDaemon:
    """The daemon that has said where it listens; of several, the one at the address that was given.

    Raises:
        DaemonError: There is none, or it listens elsewhere.
    """
    # pydantic comes with the configuration; an address that was given needs neither.
    from stratad.config import load_configuration, read_environment
    from stratad.state.runtime_directory import find_running

    configured = None
    if address.configuration_path is not None:
        configured = load_configuration(address.configuration_path).server.runtime_directory
    running = find_running(configured, read_environment())
    given = _given_endpoint(address)
    if given is not None and given.rstrip("/") != running.endpoint:
        raise DaemonError(
            tried=f"finding the daemon at {given} among this machine's",
            because=f"the one that runs listens at {running.endpoint}",
            remedy="leave --url and --socket out, or name its configuration with --config",
        )
    return running


def _refusal(tried: str, response: http.client.HTTPResponse, body: bytes, remedy: str) -> DaemonError:
    error = _object(body).get("error")
    message = error.get("message", response.reason) if isinstance(error, dict) else response.reason
    values: dict[str, object] = {"http_status": response.status}
    if (seconds := response.headers.get("Retry-After")) is not None:
        values["retry_after_seconds"] = seconds
    if response.status == http.HTTPStatus.UNAUTHORIZED:
        remedy = "name a file with a key by --api-key-file"
    return DaemonError(tried, str(message), values=values, remedy=remedy)


def _authorization(address: DaemonAddress) -> dict[str, str]:
    """The header with the API key; empty without a key file."""
    if address.api_key_path is None:
        return {}
    tried = f"reading an API key from {address.api_key_path}"
    remedy = "name a readable file with one key a line"
    try:
        lines = address.api_key_path.read_text(encoding="ascii").splitlines()
    except OSError as error:
        raise ConfigurationError(tried, error.strerror or "it cannot be read", remedy=remedy) from error
    except UnicodeDecodeError:
        raise ConfigurationError(tried, "it is not ASCII text", remedy=remedy) from None
    for line in map(str.strip, lines):
        if line and not line.startswith("#"):
            return {"Authorization": f"Bearer {line}"}
    raise ConfigurationError(tried, "it holds no key", remedy=remedy)


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


def endpoint_of(address: DaemonAddress) -> str:
    """Where to reach the daemon: as given, else as it has said itself. Raises as `running_daemon`."""
    given = _given_endpoint(address)
    return running_daemon(address).endpoint if given is None else given


def _given_endpoint(address: DaemonAddress) -> str | None:
    if address.url is not None:
        return address.url
    return None if address.socket_path is None else f"unix:{address.socket_path}"


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
