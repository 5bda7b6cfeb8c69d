"""The listening socket, bound before the model is loaded, and the thread that serves it."""

from __future__ import annotations

import contextlib
import errno
import ipaddress
import os
import socket
import stat
import threading
from dataclasses import dataclass
from pathlib import Path

import uvicorn
from starlette.types import ASGIApp

from stratad.errors import DaemonError
from stratad.server.limits import MAX_HEADER_BYTES

_BACKLOG = 128

# A client that takes nothing for so long, or has vanished with its machine, is cut off: it would keep its socket, and
# what waits to be sent there, for ever.
_UNREAD_MILLISECONDS = 120_000
_KEEPALIVE_IDLE_SECONDS = 60


@dataclass(frozen=True, slots=True)
class Listener:
    """A bound socket and how clients reach it; `unix_path` is set for a unix socket."""

    socket: socket.socket
    endpoint: str
    is_loopback: bool
    unix_path: Path | None = None

    def close(self) -> None:
        """Closes the socket and removes a unix socket's file. May be repeated."""
        self.socket.close()
        if self.unix_path is not None:
            self.unix_path.unlink(missing_ok=True)


def open_listener(host: str, port: int, unix_socket: Path | None) -> Listener:
    """A socket that listens: on `unix_socket` when it is given, else on `host` and `port` (0: any free one).

    Raises:
        DaemonError: The address is in use, may not be used, or does not exist here.
    """
    if unix_socket is not None:
        return _open_unix_listener(unix_socket)
    tried = f"listening on {host} port {port}"
    try:
        family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    except socket.gaierror as error:
        raise DaemonError(
            tried, str(error.strerror), remedy="set server.host to an address of this machine"
        ) from error
    listening = socket.socket(family, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
    try:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        # Connections inherit it. Otherwise the second of two small writes, such as the next token, waits for the
        # client's acknowledgement of the first: 40 ms on Linux. asyncio sets it only where the socket names TCP.
        listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        _cut_off_dead_clients(listening)
        listening.bind(address)
        listening.listen(_BACKLOG)
    except OSError as error:
        listening.close()
        raise DaemonError(tried, _cause(error), remedy=_listen_remedy(error)) from error
    bound_host, bound_port = listening.getsockname()[:2]
    url_host = f"[{bound_host}]" if family == socket.AF_INET6 else bound_host
    is_loopback = ipaddress.ip_address(bound_host.partition("%")[0]).is_loopback
    return Listener(listening, f"http://{url_host}:{bound_port}", is_loopback)


def _cut_off_dead_clients(listening: socket.socket) -> None:
    """Connections inherit these: tcp(7), TCP_USER_TIMEOUT counts a window that stays closed as well."""
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, _KEEPALIVE_IDLE_SECONDS)
    listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, _UNREAD_MILLISECONDS)


def _open_unix_listener(path: Path) -> Listener:
    tried = f"listening on the socket {path}"
    _remove_stale_socket(path, tried)
    listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
    try:
        listening.bind(str(path))
        # Whoever may connect may use the model: the owner and the service's group.
        path.chmod(0o660)
        listening.listen(_BACKLOG)
    except OSError as error:
        listening.close()
        raise DaemonError(
            tried, _cause(error), remedy="set server.unix_socket to a path in a writable folder"
        ) from error
    return Listener(listening, f"unix:{path}", is_loopback=False, unix_path=path)


def _remove_stale_socket(path: Path, tried: str) -> None:
    """Removes a socket file that nobody listens on; anything else that lies there is an error."""
    try:
        mode = path.stat().st_mode
    except OSError:
        return
    if not stat.S_ISSOCK(mode):
        raise DaemonError(tried, "something else lies at that path", remedy="remove it, or name another path")
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.settimeout(1)
        try:
            probe.connect(str(path))
        except ConnectionRefusedError:
            path.unlink()
            return
        except OSError:
            return
    raise DaemonError(tried, "another daemon listens there", remedy="stop it, or name another path")


class HttpServer:
    """Runs an application on a listener in its own thread, so that start-up may block beside it.

    Signals stay with the daemon: uvicorn installs its handlers only on the main thread.
    """

    def __init__(self, app: ASGIApp, listener: Listener) -> None:
        self._listener = listener
        self._server = uvicorn.Server(
            uvicorn.Config(
                app,
                http="h11",
                loop="asyncio",
                ws="none",
                lifespan="off",
                log_config=None,
                access_log=False,
                server_header=False,
                proxy_headers=False,
                h11_max_incomplete_event_size=MAX_HEADER_BYTES,
                timeout_graceful_shutdown=5,
            )
        )
        self._thread = threading.Thread(target=self._run, name="http", daemon=True)

    def start(self) -> None:
        """Starts serving; connections made before wait in the listener's backlog."""
        self._thread.start()

    def stop(self) -> None:
        """Closes the listener, lets answers in progress go out, and joins the thread. May be repeated."""
        self._server.should_exit = True
        if self._thread.ident is not None:
            self._thread.join()
        self._listener.close()

    def _run(self) -> None:
        # uvicorn leaves by SystemExit when it cannot start; the thread ends then, and /health with it.
        with contextlib.suppress(SystemExit):
            self._server.run(sockets=[self._listener.socket])


def _cause(error: OSError) -> str:
    name = errno.errorcode.get(error.errno or 0, "")
    return f"{os.strerror(error.errno or 0)} ({name})"


def _listen_remedy(error: OSError) -> str:
    if error.errno == errno.EADDRINUSE:
        return (
            "stop what listens there (`ss -ltnp` shows it), or set server.port to another one, or 0 for any"
        )
    if error.errno == errno.EACCES:
        return "set server.port to 1024 or higher, or give the service CAP_NET_BIND_SERVICE"
    return "set server.host to an address of this machine"
