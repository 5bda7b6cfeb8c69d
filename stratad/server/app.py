"""The application: routes, and the one place where exceptions become answers."""

from __future__ import annotations

from dataclasses import dataclass, field
from http import HTTPStatus

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route

from stratad import journal
from stratad.engine.generation import RequestError
from stratad.metrics.registry import Metrics
from stratad.server.administration import AdministrationEndpoints
from stratad.server.api_keys import ApiKeys
from stratad.server.authorization import OPEN_PATHS, Administration, ApiKeyCheck
from stratad.server.completions import CompletionEndpoints
from stratad.server.failures import HttpFailure, failure_response, request_error_response
from stratad.server.limits import MAX_HEADER_BYTES, HeaderLimit, HostCheck
from stratad.server.observation import ObservationEndpoints
from stratad.server.streaming import ClientGone
from stratad.service.service import Service

# nginx's number for a request whose client left; nobody receives it, logs and tests see it.
_CLIENT_CLOSED_REQUEST = 499


@dataclass(frozen=True, slots=True)
class ServerSettings:
    """What the HTTP side needs of the configuration.

    `checks_host` is set for listeners on loopback, where only this machine's own names are right.
    `metrics_need_key` closes /metrics, too, where there are API keys.
    """

    max_body_bytes: int
    checks_host: bool
    allowed_hosts: tuple[str, ...] = ()
    api_keys: ApiKeys = field(default_factory=ApiKeys)
    metrics_need_key: bool = True
    administration: Administration | None = None


def create_app(service: Service, metrics: Metrics, settings: ServerSettings) -> Starlette:
    """The ASGI application over one service."""
    completions = CompletionEndpoints(service, settings.max_body_bytes)
    observation = ObservationEndpoints(service, metrics)
    administration = AdministrationEndpoints(service, settings.administration)
    return Starlette(
        routes=[
            Route("/v1/chat/completions", completions.chat, methods=["POST"]),
            Route("/v1/completions", completions.complete, methods=["POST"]),
            Route("/v1/embeddings", completions.embed, methods=["POST"]),
            Route("/tokenize", completions.tokenize, methods=["POST"]),
            Route("/v1/models", observation.models),
            Route("/health", observation.health),
            Route("/metrics", observation.metrics),
            Route("/status", observation.status),
            Route("/placement", observation.placement),
            Route("/admin/drain", administration.drain, methods=["POST"]),
            Route("/admin/drain", administration.resume, methods=["DELETE"]),
            Route("/openapi.json", observation.api_description),
            Route("/", observation.page),
        ],
        middleware=_checks(settings),
        exception_handlers={
            HttpFailure: _refused,
            RequestError: _engine_refused,
            ClientGone: _client_gone,
            ClientDisconnect: _client_gone,
            HTTPException: _not_routed,
            Exception: _unexpected,
        },
    )


def _checks(settings: ServerSettings) -> list[Middleware]:
    """What every request passes before it is looked at, from the outside in."""
    open_paths = OPEN_PATHS if settings.metrics_need_key else OPEN_PATHS | {"/metrics"}
    host_check = [Middleware(HostCheck, settings.allowed_hosts)] if settings.checks_host else []
    return [
        Middleware(HeaderLimit, MAX_HEADER_BYTES),
        *host_check,
        Middleware(ApiKeyCheck, settings.api_keys, open_paths),
    ]


async def _refused(request: Request, error: Exception) -> Response:
    assert isinstance(error, HttpFailure)
    return failure_response(error)


async def _engine_refused(request: Request, error: Exception) -> Response:
    assert isinstance(error, RequestError)
    return request_error_response(error)


async def _client_gone(request: Request, error: Exception) -> Response:
    return Response(status_code=_CLIENT_CLOSED_REQUEST)


async def _not_routed(request: Request, error: Exception) -> Response:
    """Unknown paths and wrong methods, in OpenAI's shape like every other error."""
    assert isinstance(error, HTTPException)
    status = HTTPStatus(error.status_code)
    failure = HttpFailure(status, f"{request.method} {request.url.path}: {error.detail}", code="not_found")
    response = failure_response(failure)
    response.headers.update(error.headers or {})
    return response


async def _unexpected(request: Request, error: Exception) -> Response:
    """A program error: the client learns nothing of it but that it happened, the log everything."""
    journal.report_error(
        "server", "request failed", path=request.url.path, kind=type(error).__name__, reason=str(error)
    )
    return failure_response(
        HttpFailure(
            HTTPStatus.INTERNAL_SERVER_ERROR, "internal error; see the daemon's log", code="internal_error"
        )
    )
