"""JSON to and from a daemon of our own on this machine."""

from __future__ import annotations

import http.client
import json
from collections.abc import Mapping
from typing import Any
from urllib.parse import urlsplit

from stratad.errors import DaemonError


def ask(
    endpoint: str, path: str, body: Mapping[str, object] | None = None, limit_seconds: float = 60.0
) -> dict[str, Any]:
    """What the daemon at `endpoint` (http://host:port) answers: a POST of `body`, or a GET without one.

    Raises:
        DaemonError: It is gone, refuses, or does not answer in time.
    """
    address = urlsplit(endpoint)
    connection = http.client.HTTPConnection(address.hostname or "", address.port, timeout=limit_seconds)
    tried = f"asking the daemon at {endpoint} for {path}"
    try:
        if body is None:
            connection.request("GET", path)
        else:
            connection.request("POST", path, json.dumps(body), {"Content-Type": "application/json"})
        response = connection.getresponse()
        document = json.loads(response.read())
    except (OSError, http.client.HTTPException, ValueError) as error:
        raise DaemonError(tried, str(error) or type(error).__name__) from error
    finally:
        connection.close()
    if not isinstance(document, dict) or response.status != http.HTTPStatus.OK:
        failure = document.get("error") if isinstance(document, dict) else None
        message = failure.get("message") if isinstance(failure, dict) else response.reason
        raise DaemonError(tried, str(message), values={"http_status": response.status})
    return document
