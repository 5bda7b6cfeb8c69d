"""How commands reach the running daemon: which address, which key, and requests that give JSON or a stream."""

from __future__ import annotations

import contextlib
import functools
import http.client
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from stratad import client
from stratad.client import Remedies, Request
from stratad.errors import ConfigurationError, DaemonError

if TYPE_CHECKING:
    from stratad.state.runtime_directory import RunningDaemon

_TIMEOUT_SECONDS = 30.0
_REMEDIES = Remedies(
    otherwise="look at `systemctl status stratad`, or name another address with --url or --socket",
    unauthorized="name a file with a key by --api-key-file",
)


@dataclass(frozen=True, slots=True)
class DaemonAddress:
    """What the options say about where the daemon is; all None means: look for it."""

    url: str | None
    socket_path: Path | None
    configuration_path: Path | None
    api_key_path: Path | None = None


def address_of(endpoint: str) -> DaemonAddress:
    """The address that a running daemon has left in its runtime directory."""
    return DaemonAddress(endpoint, None, None)


def daemon_options(command: Callable[..., int]) -> Callable[..., int]:
    """Add --url, --socket, --config and --api-key-file to a command; its function takes `address`."""

    @click.option("--url", help="Address of the daemon, as http://127.0.0.1:8090.")
    @click.option("--socket", "socket_path", type=click.Path(path_type=Path), help="Its unix socket.")
    @click.option(
        "--config", "configuration_path", type=click.Path(path_type=Path), help="Its configuration file."
    )
    @click.option(
        "--api-key-file",
        "api_key_path",
        type=click.Path(path_type=Path),
        help="File whose first line that is no comment is the API key.",
    )
    @functools.wraps(command)
    def with_address(
        url: str | None,
        socket_path: Path | None,
        configuration_path: Path | None,
        api_key_path: Path | None,
        **options: object,
    ) -> int:
        return command(address=DaemonAddress(url, socket_path, configuration_path, api_key_path), **options)

    return with_address


def get_json(address: DaemonAddress, path: str) -> dict[str, Any]:
    """What the daemon answers at `path`. Raises as `ask_json`."""
    return ask_json(address, Request("GET", path))


def ask_json(address: DaemonAddress, request: Request) -> dict[str, Any]:
    """The JSON object that the daemon answers.

    Raises:
        DaemonError: It is not found, not reachable, or refuses; the error says which.
        ConfigurationError: The address, the configuration file or the key file cannot be used.
    """
    return client.ask_json(endpoint_of(address), _signed(address, request), _REMEDIES)


def get_text(address: DaemonAddress, path: str) -> str:
    """What the daemon answers at `path`, as text. Raises as `ask_json`."""
    with opened(address, Request("GET", path)) as response:
        return response.read().decode("utf-8", errors="replace")


@contextlib.contextmanager
def opened(
    address: DaemonAddress, request: Request, *, answer_seconds: float | None = _TIMEOUT_SECONDS
) -> Iterator[http.client.HTTPResponse]:
    """The daemon's answer, to be read inside the context. Raises as `ask_json`, also while it is read.

    `answer_seconds` is how long the daemon may say nothing; None waits for ever.
    """
    endpoint, signed = endpoint_of(address), _signed(address, request)
    with client.opened(endpoint, signed, _REMEDIES, answer_seconds=answer_seconds) as response:
        yield response


def running_daemon(address: DaemonAddress) -> RunningDaemon:
    """The daemon that has said where it listens; of several, the one at the address that was given.

    Raises:
        DaemonError: There is none, or it listens elsewhere.
    """
    # pydantic comes with the configuration; an address that was given needs neither.
    from stratad.config import load_configuration, read_environment
    from stratad.state.runtime_directory import find_running

    configured = None
    if address.configuration_path is not None:
        configured = load_configuration(address.configuration_path).server.runtime_directory
    running = find_running(configured, read_environment())
    given = _given_endpoint(address)
    if given is not None and given.rstrip("/") != running.endpoint:
        raise DaemonError(
            tried=f"finding the daemon at {given} among this machine's",
            because=f"the one that runs listens at {running.endpoint}",
            remedy="leave --url and --socket out, or name its configuration with --config",
        )
    return running


def _signed(address: DaemonAddress, request: Request) -> Request:
    return replace(request, headers={**(request.headers or {}), **_authorization(address)})


def _authorization(address: DaemonAddress) -> dict[str, str]:
    """The header with the API key; empty without a key file."""
    if address.api_key_path is None:
        return {}
    tried = f"reading an API key from {address.api_key_path}"
    remedy = "name a readable file with one key a line"
    try:
        lines = address.api_key_path.read_text(encoding="ascii").splitlines()
    except OSError as error:
        raise ConfigurationError(tried, error.strerror or "it cannot be read", remedy=remedy) from error
    except UnicodeDecodeError:
        raise ConfigurationError(tried, "it is not ASCII text", remedy=remedy) from None
    for line in map(str.strip, lines):
        if line and not line.startswith("#"):
            return {"Authorization": f"Bearer {line}"}
    raise ConfigurationError(tried, "it holds no key", remedy=remedy)


def endpoint_of(address: DaemonAddress) -> str:
    """Where to reach the daemon: as given, else as it has said itself. Raises as `running_daemon`."""
    given = _given_endpoint(address)
    return running_daemon(address).endpoint if given is None else given


def _given_endpoint(address: DaemonAddress) -> str | None:
    if address.url is not None:
        return address.url
    return None if address.socket_path is None else f"unix:{address.socket_path}"
