"""A running daemon from outside: requests over HTTP, by TCP or a unix socket, that give JSON or a stream."""

from __future__ import annotations

import contextlib
import http.client
import json
import socket
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from stratad.errors import ConfigurationError, DaemonError

_TIMEOUT_SECONDS = 30.0


@dataclass(frozen=True, slots=True)
class Request:
    """One request to the daemon; a body goes as JSON."""

    method: str
    path: str
    body: Mapping[str, object] | None = None
    headers: Mapping[str, str] | None = None


@dataclass(frozen=True, slots=True)
class Remedies:
    """What to do when the daemon does not answer well, and when it wants a key."""

    otherwise: str = ""
    unauthorized: str = ""


NO_REMEDIES = Remedies()


def ask_json(
    endpoint: str,
    request: Request,
    remedies: Remedies = NO_REMEDIES,
    *,
    answer_seconds: float | None = _TIMEOUT_SECONDS,
) -> dict[str, Any]:
    """The JSON object that the daemon at `endpoint` answers. Raises as `opened`, and DaemonError for another answer."""
    with opened(endpoint, request, remedies, answer_seconds=answer_seconds) as response:
        document = _object(response.read())
    if document is None:
        because = "what answers there gives no JSON object"
        raise DaemonError(_tried(endpoint, request), because, remedy=remedies.otherwise)
    return document


@contextlib.contextmanager
def opened(
    endpoint: str,
    request: Request,
    remedies: Remedies = NO_REMEDIES,
    *,
    answer_seconds: float | None = _TIMEOUT_SECONDS,
) -> Iterator[http.client.HTTPResponse]:
    """The daemon's answer, to be read inside the context.

    Args:
        endpoint: http://host:port or unix:/path.
        request: What to ask.
        remedies: What its errors tell the reader to do.
        answer_seconds: How long the daemon may say nothing; None waits for ever.

    Raises:
        DaemonError: It is not reachable, breaks off while it is read, or answers another status than 200.
        ConfigurationError: The endpoint is none.
    """
    headers = dict(request.headers or {})
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
            raise _refusal(_tried(endpoint, request), response, response.read(), remedies)
        yield response
    except (OSError, http.client.HTTPException) as error:
        because = str(error) or type(error).__name__
        raise DaemonError(_tried(endpoint, request), because, remedy=remedies.otherwise) from error
    finally:
        connection.close()


def _tried(endpoint: str, request: Request) -> str:
    return f"asking the daemon at {endpoint} for {request.path}"


def _refusal(tried: str, response: http.client.HTTPResponse, body: bytes, remedies: Remedies) -> DaemonError:
    error = (_object(body) or {}).get("error")
    message = error.get("message", response.reason) if isinstance(error, dict) else response.reason
    values: dict[str, object] = {"http_status": response.status}
    if (seconds := response.headers.get("Retry-After")) is not None:
        values["retry_after_seconds"] = seconds
    is_locked = response.status == http.HTTPStatus.UNAUTHORIZED
    remedy = remedies.unauthorized if is_locked else remedies.otherwise
    return DaemonError(tried, str(message), values=values, remedy=remedy)


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


def _object(body: bytes) -> dict[str, Any] | None:
    try:
        document = json.loads(body)
    except ValueError:
        return None
    return document if isinstance(document, dict) else None
