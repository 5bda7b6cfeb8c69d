"""POST and DELETE /admin/drain: an orderly end, or a pause, asked for over HTTP by the daemon's own user."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from http import HTTPStatus

from pydantic import BaseModel, ConfigDict, ValidationError
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from stratad import journal
from stratad.server.authorization import Administration, require_administrator
from stratad.server.failures import HttpFailure
from stratad.server.limits import read_body
from stratad.service.service import NotServing, Service

_MAX_BODY_BYTES = 1024


class DrainBody(BaseModel):
    """What to do when running requests have ended: exit, or with `stay` wait for `DELETE /admin/drain`."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)

    stay: bool = False


class DrainDocument(BaseModel):
    """State now, requests that are not over yet, and how long an exit waits for them."""

    state: str
    requests_running: int
    requests_waiting: int
    drain_seconds: float


class AdministrationEndpoints:
    """What changes the daemon's life."""

    def __init__(self, service: Service, administration: Administration | None) -> None:
        self._service = service
        self._administration = administration

    async def drain(self, request: Request) -> Response:
        """POST: new requests get 503 from now on, running ones end."""
        administration = require_administrator(request, self._administration)
        body = _parse(await read_body(request, _MAX_BODY_BYTES))
        journal.inform("drain", "asked for", stays=body.stay)
        if body.stay:
            self._change(self._service.pause)
        else:
            administration.request_stop()
        return await self._answer(administration)

    async def resume(self, request: Request) -> Response:
        """DELETE: requests are taken again after a drain that stays."""
        administration = require_administrator(request, self._administration)
        self._change(self._service.resume)
        journal.inform("drain", "taken back")
        return await self._answer(administration)

    def _change(self, change: Callable[[], None]) -> None:
        try:
            change()
        except NotServing as error:
            raise HttpFailure(
                HTTPStatus.CONFLICT, f"the daemon does not serve: {error}", code="not_serving"
            ) from error

    async def _answer(self, administration: Administration) -> Response:
        document = await asyncio.to_thread(self._service.document)
        decode = document.decode
        return JSONResponse(
            DrainDocument(
                state=document.state,
                requests_running=decode.requests_running if decode else 0,
                requests_waiting=decode.requests_waiting if decode else 0,
                drain_seconds=administration.drain_seconds(),
            ).model_dump()
        )


def _parse(raw: bytes) -> DrainBody:
    try:
        return DrainBody.model_validate_json(raw or b"{}")
    except ValidationError as error:
        message = f'the body must be JSON like {{"stay": true}}: {error.errors()[0]["msg"]}'
        raise HttpFailure(HTTPStatus.BAD_REQUEST, message, code="invalid_value", parameter="stay") from error
