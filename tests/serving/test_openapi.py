"""The OpenAPI document: it says what the server has, and the server does what it says.

schemathesis makes requests from the document, right ones and wrong ones, for a live daemon on the demo model.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, settings
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    negative_data_rejection,
    response_schema_conformance,
    status_code_conformance,
)
from starlette.routing import Route

from stratad.metrics.registry import Metrics
from stratad.server import ServerSettings, create_app
from stratad.server.bodies import CompletionBody, TokenizeBody
from stratad.server.chat_bodies import ChatBody
from stratad.server.openapi import api_document
from stratad.service.service import Service, ServiceLimits
from stratad.service.status_schema import StatusDocument
from tests.serving.support.served import serve

# Requests for each operation; the whole module takes well below a minute.
MAX_EXAMPLES = 25


def routes() -> set[tuple[str, str]]:
    app = create_app(
        Service("m", "0", ServiceLimits(0.95, 64, 60.0)), Metrics("m"), ServerSettings(1024, True)
    )
    return {
        (route.path, method.lower())
        for route in app.routes
        if isinstance(route, Route)
        for method in (route.methods or set()) - {"HEAD"}
    }


def test_the_document_has_every_route_and_no_other() -> None:
    paths = api_document("0")["paths"]
    assert {(path, method) for path, operations in paths.items() for method in operations} == routes()


def test_the_bodies_in_the_document_are_those_that_are_parsed() -> None:
    schemas = api_document("0")["components"]["schemas"]
    for body in (ChatBody, CompletionBody, TokenizeBody, StatusDocument):
        assert set(schemas[body.__name__]["properties"]) == set(body.model_fields)


def test_every_reference_leads_somewhere() -> None:
    document = api_document("0")

    def references(value: Any) -> Iterator[str]:
        if isinstance(value, dict):
            for name, part in value.items():
                if name == "$ref":
                    yield part
                yield from references(part)
        elif isinstance(value, list):
            for part in value:
                yield from references(part)

    found = set(references(document))
    assert found
    for reference in found:
        assert reference.removeprefix("#/components/schemas/") in document["components"]["schemas"]


def test_it_is_served_and_has_the_daemons_version() -> None:
    with serve() as served:
        assert httpx.get(served.url + "/openapi.json").json() == api_document("0")


# --- A live daemon does what the document says ------------------------------------------------------------


@pytest.fixture(scope="module")
def daemon_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    pytest.importorskip("stratad._native", reason="the native module is not built")
    from stratad.daemon.main import demo_model_path
    from tests.serving.support.daemon_process import started

    folder: Path = tmp_path_factory.mktemp("daemon")
    # However long an answer a request asks for, it ends with this context.
    changes = "[server]\nport = 0\nrequest_timeout_seconds = 30.0\n"
    with started(folder, demo_model_path(), settings=changes, context_tokens=64) as daemon:
        daemon.wait_for("READY=1")
        yield daemon.endpoint
        assert daemon.process.poll() is None, daemon.log
        assert "Traceback" not in daemon.log


OPERATIONS = schemathesis.openapi.from_dict(api_document("0"))


@OPERATIONS.parametrize()
@settings(
    max_examples=MAX_EXAMPLES,
    deadline=None,
    derandomize=True,
    database=None,
    phases=[Phase.explicit, Phase.generate],
    suppress_health_check=list(HealthCheck),
)
def test_the_daemon_does_what_the_document_says(case: schemathesis.Case, daemon_url: str) -> None:
    response = case.call(base_url=daemon_url, timeout=60)
    case.validate_response(
        response,
        checks=[
            schemathesis.checks.not_a_server_error,
            status_code_conformance,
            content_type_conformance,
            response_schema_conformance,
            negative_data_rejection,
        ],
    )
