"""Who may ask for what: API keys on every path but the open ones, and administration for the daemon's own user."""

from __future__ import annotations

import hmac
from collections.abc import Callable
from dataclasses import dataclass
from http import HTTPStatus

from starlette.datastructures import Headers
from starlette.requests import Request
from starlette.types import ASGIApp, Receive, Scope, Send

from stratad.server.api_keys import ApiKeys
from stratad.server.failures import HttpFailure, failure_response
from stratad.server.limits import has_local_host, require_local

# The header that carries the token of the runtime directory. No page of another origin can send a header of its
# own without asking first (CORS), and nobody answers such a question here.
ADMINISTRATION_HEADER = "X-Stratad-Administration"

# /health is for balancers; the page and the API's description are the same for everybody and say nothing of
# this daemon.
OPEN_PATHS = frozenset({"/health", "/", "/openapi.json"})


class ApiKeyCheck:
    """Refuses requests without a known key, where there are keys: 401 as OpenAI's clients expect it."""

    def __init__(self, app: ASGIApp, keys: ApiKeys, open_paths: frozenset[str]) -> None:
        self._app = app
        self._keys = keys
        self._open_paths = open_paths

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Passes a request on, or refuses it."""
        if scope["type"] == "http" and self._keys.are_required and scope["path"] not in self._open_paths:
            failure = self._objection(Headers(scope=scope))
            if failure is not None:
                response = failure_response(failure)
                response.headers["WWW-Authenticate"] = 'Bearer realm="stratad"'
                await response(scope, receive, send)
                return
        await self._app(scope, receive, send)

    def _objection(self, headers: Headers) -> HttpFailure | None:
        scheme, _, key = headers.get("authorization", "").partition(" ")
        if scheme.lower() != "bearer" or not key.strip():
            message = "this server wants an API key: send it as Authorization: Bearer KEY"
            return HttpFailure(HTTPStatus.UNAUTHORIZED, message, code="missing_api_key")
        if not self._keys.accept(key.strip()):
            return HttpFailure(HTTPStatus.UNAUTHORIZED, "the API key is not known", code="invalid_api_key")
        return None


@dataclass(frozen=True, slots=True)
class Administration:
    """What it takes to be the administrator, and what only the start-up sequence can do.

    `token` lies in the runtime directory in a file that only root and the daemon's user can read: whoever may
    stop the daemon by a signal may stop it here, and no other user of the machine.
    """

    token: str
    request_stop: Callable[[], None]
    drain_seconds: Callable[[], float]


def require_administrator(request: Request, administration: Administration | None) -> Administration:
    """The administration, for a request that proves to come from the daemon's user or root on this machine.

    Raises:
        HttpFailure: 403 for a request from elsewhere, passed on by a proxy, made by a browser, addressed to another
            host's name or without the token.
    """
    require_local(request)
    if administration is None:
        raise HttpFailure(
            HTTPStatus.FORBIDDEN, "this server is not administrated by HTTP", code="no_administration"
        )
    if "origin" in request.headers or not has_local_host(request):
        raise HttpFailure(HTTPStatus.FORBIDDEN, "not for browsers or other hosts' names", code="not_local")
    given = request.headers.get(ADMINISTRATION_HEADER, "").encode("latin-1")
    if not hmac.compare_digest(given, administration.token.encode()):
        message = (
            f"the header {ADMINISTRATION_HEADER} must hold the token of the daemon's runtime directory; "
            "run stratactl as root or as the daemon's user"
        )
        raise HttpFailure(HTTPStatus.FORBIDDEN, message, code="not_administrator")
    return administration
