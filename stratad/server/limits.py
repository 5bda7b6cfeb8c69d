"""What a request may not exceed, and where it may come from."""

from __future__ import annotations

import ipaddress
from http import HTTPStatus

from starlette.requests import Request
from starlette.types import ASGIApp, Receive, Scope, Send

from stratad.server.failures import HttpFailure, failure_response

# Request line and headers together, as in h11 and most other servers.
MAX_HEADER_BYTES = 16 * 1024

# What reverse proxies add about the client they speak for.
_PROXY_HEADERS = ("forwarded", "via", "x-forwarded-for", "x-real-ip")


async def read_body(request: Request, max_body_bytes: int) -> bytes:
    """The request's body.

    Raises:
        HttpFailure: 413 as soon as it is known to be larger than `max_body_bytes`.
    """
    announced = request.headers.get("content-length", "")
    if announced.isdigit() and int(announced) > max_body_bytes:
        raise _too_large(max_body_bytes)
    parts: list[bytes] = []
    size_bytes = 0
    async for part in request.stream():
        size_bytes += len(part)
        if size_bytes > max_body_bytes:
            raise _too_large(max_body_bytes)
        parts.append(part)
    return b"".join(parts)


def client_of(request: Request) -> str:
    """Whom a request counts for when places are shared out: the address it comes from; "" for a unix socket.

    Behind a proxy all clients are one, and served first come first served.
    """
    return request.client.host if request.client is not None else ""


def require_local(request: Request) -> None:
    """Does nothing for a client on this machine: loopback, or a unix socket.

    Raises:
        HttpFailure: 403 for any other, and for what a proxy on this machine passes on for somebody.
    """
    is_far = request.client is not None and not _is_loopback(request.client.host)
    if is_far or any(name in request.headers for name in _PROXY_HEADERS):
        raise HttpFailure(HTTPStatus.FORBIDDEN, "only for clients on this machine", code="not_local")


def has_local_host(request: Request) -> bool:
    """Whether the Host header names this machine as only this machine can: localhost, or a loopback address."""
    name = _without_port(_host_header(request.scope)).lower()
    return name == "localhost" or _is_loopback(name)


class HeaderLimit:
    """Refuses requests whose address and headers together are larger than a limit.

    uvicorn's own limit holds only while the headers have no end yet.
    """

    def __init__(self, app: ASGIApp, max_header_bytes: int) -> None:
        self._app = app
        self._max_header_bytes = max_header_bytes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Passes a request on, or refuses it with 431."""
        if scope["type"] == "http" and _header_bytes(scope) > self._max_header_bytes:
            failure = HttpFailure(
                HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE,
                f"address and headers are larger than {self._max_header_bytes} bytes",
                code="headers_too_large",
            )
            await failure_response(failure)(scope, receive, send)
            return
        await self._app(scope, receive, send)


class HostCheck:
    """Refuses requests whose Host header names another host than this one.

    A page on the web can point its own name at 127.0.0.1 (DNS rebinding) and then have the browser talk to us
    as the same origin; the Host header gives it away. Only for listeners on loopback: elsewhere any name may
    be right.
    """

    def __init__(self, app: ASGIApp, allowed_hosts: tuple[str, ...]) -> None:
        self._app = app
        self._allowed_hosts = frozenset(name.lower() for name in allowed_hosts)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Passes a request on, or refuses it with 403."""
        if scope["type"] == "http" and not self._is_allowed(_host_header(scope)):
            message = "the Host header names another host; list it in server.allowed_hosts if that is right"
            failure = HttpFailure(HTTPStatus.FORBIDDEN, message, code="host_not_allowed")
            await failure_response(failure)(scope, receive, send)
            return
        await self._app(scope, receive, send)

    def _is_allowed(self, host: str) -> bool:
        name = _without_port(host).lower()
        return name == "localhost" or name in self._allowed_hosts or _is_loopback(name)


def _header_bytes(scope: Scope) -> int:
    """Bytes of path, query and headers, each header with its colon, blank and line end."""
    headers = sum(len(name) + len(value) + 4 for name, value in scope["headers"])
    return len(scope["raw_path"]) + len(scope["query_string"]) + headers


def _host_header(scope: Scope) -> str:
    for name, value in scope["headers"]:
        if name == b"host":
            return str(value, "latin-1")
    return ""


def _without_port(host: str) -> str:
    """The name in a Host header; an IPv6 address loses its brackets."""
    if host.startswith("["):
        return host[1:].partition("]")[0]
    return host.partition(":")[0]


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        # A unix socket's client has no address, and is on this machine by nature.
        return host == ""


def _too_large(max_body_bytes: int) -> HttpFailure:
    return HttpFailure(
        HTTPStatus.REQUEST_ENTITY_TOO_LARGE,
        f"the body is larger than {max_body_bytes} bytes (server.max_body_bytes)",
        code="body_too_large",
    )
