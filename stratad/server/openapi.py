"""The OpenAPI document at /openapi.json, made from the bodies that the server itself parses and gives."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel
from pydantic.json_schema import models_json_schema

from stratad.server.administration import DrainBody, DrainDocument
from stratad.server.authorization import ADMINISTRATION_HEADER
from stratad.server.bodies import CompletionBody, TokenizeBody
from stratad.server.chat_bodies import ChatBody
from stratad.service.status_schema import StatusDocument

Schema = dict[str, Any]


class ErrorDetail(BaseModel):
    """What went wrong; `param` names the field at fault, `code` is stable."""

    message: str
    type: str
    param: str | None
    code: str | None


class ErrorDocument(BaseModel):
    """Every refusal and failure, in OpenAI's shape."""

    error: ErrorDetail


class HealthDocument(BaseModel):
    """The daemon's state."""

    status: str


class TokensDocument(BaseModel):
    """The model's tokens of a text."""

    tokens: list[int]


_MODELS: tuple[type[BaseModel], ...] = (
    ChatBody,
    CompletionBody,
    TokenizeBody,
    StatusDocument,
    DrainBody,
    DrainDocument,
    ErrorDocument,
    HealthDocument,
    TokensDocument,
)

_ERRORS = {
    400: "A parameter is wrong, unknown or not supported; the body names it.",
    401: "The API key is missing or not known.",
    403: "Not for this client, or addressed to another host.",
    404: "The model is not served here.",
    409: "The daemon is starting or stopping.",
    413: "The body is too large.",
    429: "Too many requests are waiting; Retry-After says when to try again.",
    431: "Address and headers are too large.",
    500: "The engine failed; the daemon's log says why.",
    503: "The daemon is loading, draining or stopped; Retry-After says when to try again.",
    504: "No complete answer within server.request_timeout_seconds.",
}
_ALWAYS = (401, 403, 431)
_GENERATING = (*_ALWAYS, 400, 404, 413, 429, 500, 503, 504)


def api_document(version: str) -> Schema:
    """The document, as JSON values."""
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "stratad",
            "version": version,
            "description": "OpenAI's API for one model, and what the daemon says about itself.",
        },
        "paths": _paths(),
        "components": {"schemas": _schemas(), "securitySchemes": _SECURITY_SCHEMES},
        # An empty requirement stands for daemons without keys.
        "security": [{}, {"api_key": []}],
    }


_SECURITY_SCHEMES: Schema = {
    "api_key": {
        "type": "http",
        "scheme": "bearer",
        "description": "One of the keys of server.api_keys_file.",
    },
    "administration": {
        "type": "apiKey",
        "in": "header",
        "name": ADMINISTRATION_HEADER,
        "description": "The token in the runtime directory; for root and the daemon's user only.",
    },
}


def _schemas() -> Schema:
    _, document = models_json_schema(
        [(model, "validation") for model in _MODELS], ref_template="#/components/schemas/{model}"
    )
    return dict(document["$defs"])


def _paths() -> Schema:
    return {
        "/v1/chat/completions": {"post": _generating("The next turn of a chat.", ChatBody)},
        "/v1/completions": {"post": _generating("The text that follows a prompt.", CompletionBody)},
        "/v1/embeddings": {
            "post": _operation(
                "Always refused: the model is served for generation.",
                _json(None),
                errors=(*_ALWAYS, 400, 413),
            )
        },
        "/tokenize": {
            "post": _operation(
                "The tokens of a text.",
                _json(TokensDocument),
                body=TokenizeBody,
                errors=(*_ALWAYS, 400, 404, 413, 503),
            )
        },
        "/v1/models": {"get": _operation("The one model that is served.", _json(None))},
        "/health": {"get": _health()},
        "/metrics": {
            "get": _operation("Prometheus' text format.", {"text/plain": {"schema": {"type": "string"}}})
        },
        "/status": {"get": _operation("What the daemon does.", _json(StatusDocument))},
        "/placement": {
            "get": _operation(
                "A fresh sample of where the arena's pages lie; for clients on this machine.",
                _json(None),
                errors=(*_ALWAYS, 503),
            )
        },
        "/admin/drain": {
            "post": _administrative("Ends running requests, then exits or waits.", body=DrainBody),
            "delete": _administrative("Takes requests again after a drain that stays."),
        },
        "/openapi.json": {"get": {**_operation("This document.", _json(None)), "security": []}},
        "/": {
            "get": {
                **_operation("The status page.", {"text/html": {"schema": {"type": "string"}}}),
                "security": [],
            }
        },
    }


def _generating(summary: str, body: type[BaseModel]) -> Schema:
    content = {**_json(None), "text/event-stream": {"schema": {"type": "string"}}}
    return _operation(summary, content, body=body, errors=_GENERATING)


def _administrative(summary: str, body: type[BaseModel] | None = None) -> Schema:
    errors = (*_ALWAYS, 400, 409, 413)
    operation = _operation(summary, _json(DrainDocument), body=body, errors=errors)
    return {**operation, "security": [{"administration": []}, {"administration": [], "api_key": []}]}


def _health() -> Schema:
    operation = _operation("The state; 503 while no request is taken.", _json(HealthDocument))
    operation["responses"]["503"] = {
        "description": "Loading, draining or failed.",
        "content": _json(HealthDocument),
    }
    return {**operation, "security": []}


def _operation(
    summary: str,
    content: Schema,
    *,
    body: type[BaseModel] | None = None,
    errors: tuple[int, ...] = _ALWAYS,
) -> Schema:
    responses: Schema = {"200": {"description": "The answer.", "content": content}}
    for status in sorted(errors):
        responses[str(status)] = {"description": _ERRORS[status], "content": _json(ErrorDocument)}
    operation: Schema = {"summary": summary, "responses": responses}
    if body is not None:
        operation["requestBody"] = {"required": body is not DrainBody, "content": _json(body)}
    return operation


def _json(model: type[BaseModel] | None) -> Schema:
    """JSON content of this shape; None where the shape is OpenAI's or the planner's own."""
    schema = {"type": "object"} if model is None else {"$ref": f"#/components/schemas/{model.__name__}"}
    return {"application/json": {"schema": schema}}
