"""Who may use a running daemon: its API keys, the token of its administration, and warnings where they are missing."""

from __future__ import annotations

import secrets
from collections.abc import Callable
from pathlib import Path

from planner import Effect, Reason
from stratad.config import Configuration
from stratad.plan.reason_log import warn_of
from stratad.server import Administration, Listener, ServerSettings
from stratad.server.api_keys import ApiKeys, KeyFile, read_key_files
from stratad.service.service import Service

READABLE_CODE = "api-keys-readable"
OPEN_CODE = "open-to-network"


class Access:
    """The keys in force and the administration's token. Used on the main thread; `keys` is safe from any."""

    def __init__(
        self, service: Service, credentials_directory: Path | None, request_stop: Callable[[], None]
    ) -> None:
        self.keys = ApiKeys()
        self.token = secrets.token_urlsafe(32)
        self.service = service
        self._request_stop = request_stop
        self._credentials_directory = credentials_directory
        self._drain_seconds = 0.0
        self._is_on_network = False
        self._endpoint = ""

    def read(self, configuration: Configuration) -> None:
        """Takes keys and limits from the configuration and the files it names, at the start and on SIGHUP.

        Raises:
            ConfigurationError: As `read_key_files`; the former keys then still count.
        """
        files = read_key_files(configuration.server.api_keys_file, self._credentials_directory)
        self.keys.replace(files)
        self._drain_seconds = configuration.server.drain_seconds
        self._show(READABLE_CODE, _readable_reason(files))
        self._warn_if_open()

    def server_settings(self, configuration: Configuration, listener: Listener) -> ServerSettings:
        """What the HTTP side needs to know, for this listener; warns of one that is open to the network."""
        self._endpoint = listener.endpoint
        self._is_on_network = not listener.is_loopback and listener.unix_path is None
        self._warn_if_open()
        return ServerSettings(
            max_body_bytes=configuration.server.max_body_bytes,
            checks_host=listener.is_loopback,
            allowed_hosts=configuration.server.allowed_hosts,
            api_keys=self.keys,
            metrics_need_key=configuration.metrics.need_key,
            administration=Administration(self.token, self._request_stop, lambda: self._drain_seconds),
        )

    def _warn_if_open(self) -> None:
        is_open = self._is_on_network and not self.keys.are_required
        self._show(OPEN_CODE, _open_reason(self._endpoint) if is_open else None)

    def _show(self, code: str, reason: Reason | None) -> None:
        if reason is None:
            self.service.withdraw(code)
            return
        self.service.found(reason)
        warn_of(reason)


def _readable_reason(files: tuple[KeyFile, ...]) -> Reason | None:
    paths = [str(file.path) for file in files if file.is_readable_by_others]
    if not paths:
        return None
    message = f"every user of this machine can read the API keys in {', '.join(paths)}"
    remedy = f"run `chmod o= {' '.join(paths)}`"
    return Reason(READABLE_CODE, Effect.WARNS, message, {"files": ", ".join(paths)}, remedy)


def _open_reason(endpoint: str) -> Reason:
    message = f"{endpoint} can be reached from the network, and no API key is asked for"
    remedy = "set server.api_keys_file, or listen on 127.0.0.1 behind a proxy with TLS"
    return Reason(OPEN_CODE, Effect.WARNS, message, {"endpoint": endpoint}, remedy)
