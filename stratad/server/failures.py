"""Errors in OpenAI's shape, and which HTTP status each has."""

from __future__ import annotations

from collections.abc import Mapping
from http import HTTPStatus

from starlette.responses import JSONResponse

from stratad.engine.generation import (
    DeadlineExceeded,
    EngineFailure,
    InvalidRequest,
    NotAccepting,
    QueueFull,
    ReaderTooSlow,
    RequestError,
)

# The first class that fits counts, so narrower ones stand above.
_STATUS_OF_ERROR: tuple[tuple[type[RequestError], HTTPStatus], ...] = (
    (InvalidRequest, HTTPStatus.BAD_REQUEST),
    (QueueFull, HTTPStatus.TOO_MANY_REQUESTS),
    (NotAccepting, HTTPStatus.SERVICE_UNAVAILABLE),
    (DeadlineExceeded, HTTPStatus.GATEWAY_TIMEOUT),
    (ReaderTooSlow, HTTPStatus.REQUEST_TIMEOUT),
    (EngineFailure, HTTPStatus.INTERNAL_SERVER_ERROR),
)

# What a client should wait while the daemon loads or restarts; the openai client obeys the header.
_UNAVAILABLE_RETRY_SECONDS = 5


class HttpFailure(Exception):
    """A request that a handler refuses; rendered by `failure_response`."""

    def __init__(self, status: HTTPStatus, message: str, *, code: str, parameter: str | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.code = code
        self.parameter = parameter


def bad_request(message: str, *, code: str, parameter: str | None = None) -> HttpFailure:
    """A refusal with status 400."""
    return HttpFailure(HTTPStatus.BAD_REQUEST, message, code=code, parameter=parameter)


def status_of(error: RequestError) -> HTTPStatus:
    """The HTTP status of an engine's refusal."""
    for error_type, status in _STATUS_OF_ERROR:
        if isinstance(error, error_type):
            return status
    return HTTPStatus.INTERNAL_SERVER_ERROR


def error_document(
    status: HTTPStatus, message: str, *, code: str, parameter: str | None
) -> dict[str, dict[str, str | None]]:
    """The body that OpenAI clients parse into their exceptions."""
    kind = "invalid_request_error" if status < HTTPStatus.INTERNAL_SERVER_ERROR else "server_error"
    if status is HTTPStatus.TOO_MANY_REQUESTS:
        kind = "rate_limit_error"
    return {"error": {"message": message, "type": kind, "param": parameter, "code": code}}


def request_error_document(error: RequestError) -> dict[str, dict[str, str | None]]:
    """The same for an engine's error, also inside a stream that has begun."""
    return error_document(status_of(error), error.message, code=error.code, parameter=error.parameter)


def request_error_response(error: RequestError) -> JSONResponse:
    """The whole answer to a request that the engine refused."""
    return JSONResponse(request_error_document(error), status_of(error), headers=_retry_headers(error))


def failure_response(failure: HttpFailure) -> JSONResponse:
    """The whole answer to a request that a handler refused."""
    body = error_document(failure.status, failure.message, code=failure.code, parameter=failure.parameter)
    return JSONResponse(body, failure.status)


def _retry_headers(error: RequestError) -> Mapping[str, str] | None:
    if isinstance(error, QueueFull):
        return {"Retry-After": str(error.retry_seconds)}
    if isinstance(error, NotAccepting):
        return {"Retry-After": str(_UNAVAILABLE_RETRY_SECONDS)}
    return None
