"""What the daemon says about itself: /health, /metrics, /v1/models, /status, /placement and the page at /."""

from __future__ import annotations

import asyncio
from http import HTTPStatus

from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, Response

from stratad.metrics.registry import CONTENT_TYPE, Metrics
from stratad.runner.verify import placement_document
from stratad.server.limits import require_local
from stratad.server.openapi import api_document
from stratad.server.page import PAGE
from stratad.service.service import Service, ServiceState

# Degraded still answers: a balancer that takes it out would turn a slow box into none.
_SERVING_STATES = (ServiceState.READY, ServiceState.DEGRADED)


class ObservationEndpoints:
    """Everything that only reads."""

    def __init__(self, service: Service, metrics: Metrics) -> None:
        self._service = service
        self._metrics = metrics

    async def health(self, request: Request) -> Response:
        """200 while requests are answered, 503 while loading, draining or failed."""
        state = self._service.state
        status = HTTPStatus.OK if state in _SERVING_STATES else HTTPStatus.SERVICE_UNAVAILABLE
        return JSONResponse({"status": state.value}, status)

    async def metrics(self, request: Request) -> Response:
        """Prometheus' text format."""
        # Reading native counters and meminfo must not hold up streams.
        body = await asyncio.to_thread(self._metrics.render)
        return Response(body, media_type=CONTENT_TYPE)

    async def models(self, request: Request) -> Response:
        """The one model that is served."""
        model = {
            "id": self._service.model_name,
            "object": "model",
            "created": self._service.created_seconds,
            "owned_by": "stratad",
        }
        return JSONResponse({"object": "list", "data": [model]})

    async def status(self, request: Request) -> Response:
        """State, plan, reasons, last placement check and decode figures."""
        # As in `metrics`.
        document = await asyncio.to_thread(self._service.document)
        return Response(document.model_dump_json(), media_type="application/json")

    async def placement(self, request: Request) -> Response:
        """A fresh sample of page placement, for clients on this machine: it costs a system call per page."""
        require_local(request)
        check = await asyncio.to_thread(self._service.sample_placement)
        return JSONResponse({**placement_document(check), "plan": self._service.plan_document()})

    async def api_description(self, request: Request) -> Response:
        """The OpenAPI document of this API."""
        return JSONResponse(api_document(self._service.version))

    async def page(self, request: Request) -> Response:
        """The status page; it reads /status itself."""
        return HTMLResponse(PAGE.text, headers=PAGE.headers)
