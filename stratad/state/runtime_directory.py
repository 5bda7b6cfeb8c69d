"""Where a running daemon leaves its address and its plan, and where stratactl looks for them."""

from __future__ import annotations

import contextlib
import json
import os
import stat
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from stratad.config import Environment
from stratad.errors import DaemonError
from stratad.replaced_file import replaced_file

SYSTEM_DIRECTORY = Path("/run/stratad")
_ENDPOINT_FILE = "endpoint.json"
_PLAN_FILE = "plan.json"
_TOKEN_FILE = "administration-token"


@dataclass(frozen=True, slots=True)
class RunningDaemon:
    """A daemon that said where it listens: `http://host:port`, or `unix:/path`, and in which directory it did."""

    endpoint: str
    process_id: int
    directory: Path


def runtime_directory(configured: Path | None, environment: Environment) -> Path:
    """The directory of this daemon: configured, systemd's, the user's own, or one per user below /tmp."""
    if configured is not None:
        return configured
    return environment.runtime_directory or _user_directory(environment)


@contextlib.contextmanager
def published(directory: Path, endpoint: str, administration_token: str = "") -> Iterator[None]:
    """Says in `directory` where this process listens, as long as the context lasts.

    Whoever may read the token there, root and this user, may drain the daemon.

    Raises:
        DaemonError: The directory cannot be written, or belongs to somebody else.
    """
    _prepare(directory)
    content = json.dumps({"endpoint": endpoint, "process_id": os.getpid()}) + "\n"
    _write(directory / _TOKEN_FILE, administration_token, mode=0o600)
    _write(directory / _ENDPOINT_FILE, content)
    try:
        yield
    finally:
        # Another daemon of this user may have started since; its files stay.
        running = read_running(directory)
        if running is not None and running.process_id == os.getpid():
            (directory / _ENDPOINT_FILE).unlink(missing_ok=True)
            (directory / _PLAN_FILE).unlink(missing_ok=True)
            (directory / _TOKEN_FILE).unlink(missing_ok=True)


def publish_plan(directory: Path, plan: Mapping[str, object]) -> None:
    """Writes the plan beside the address. Raises DaemonError as `published`."""
    _write(directory / _PLAN_FILE, json.dumps(plan, indent=2, sort_keys=True) + "\n")


def find_running(configured: Path | None, environment: Environment) -> RunningDaemon:
    """The running daemon of the configured directory, else of the system, else of this user.

    Raises:
        DaemonError: None has said where it listens.
    """
    places = [configured] if configured else [SYSTEM_DIRECTORY, _user_directory(environment)]
    for directory in places:
        running = read_running(directory)
        if running is not None and _is_alive(running.process_id):
            return running
    raise DaemonError(
        tried=f"finding a running daemon in {' and '.join(str(place) for place in places)}",
        because="none has left its address there",
        remedy="start it (`systemctl start stratad`, or `stratad demo`), or name it with --url or --socket",
    )


def is_running(daemon: RunningDaemon) -> bool:
    """Whether the daemon lives and has not taken its address back."""
    return read_running(daemon.directory) == daemon and _is_alive(daemon.process_id)


def read_running(directory: Path) -> RunningDaemon | None:
    """What a daemon left in `directory`; None when there is nothing that can be read."""
    try:
        document = json.loads((directory / _ENDPOINT_FILE).read_text(encoding="utf-8"))
        return RunningDaemon(str(document["endpoint"]), int(document["process_id"]), directory)
    except (OSError, ValueError, KeyError, TypeError):
        return None


def read_administration_token(directory: Path) -> str:
    """The token that allows to administrate the daemon of this directory.

    Raises:
        DaemonError: It may not be read by this user, or is not there.
    """
    try:
        return (directory / _TOKEN_FILE).read_text(encoding="ascii")
    except (OSError, UnicodeDecodeError) as error:
        because = error.strerror if isinstance(error, OSError) and error.strerror else "it cannot be read"
        raise DaemonError(
            tried=f"reading {directory / _TOKEN_FILE}",
            because=because,
            remedy="run this as root or as the daemon's user (sudo stratactl ...)",
        ) from error


def _user_directory(environment: Environment) -> Path:
    if environment.user_runtime_directory is not None:
        return environment.user_runtime_directory / "stratad"
    return environment.temporary_directory / f"stratad-{os.getuid()}"


def _prepare(directory: Path) -> None:
    tried = f"using the runtime directory {directory}"
    remedy = "set server.runtime_directory to a folder that this user may write"
    try:
        directory.mkdir(mode=0o755, parents=True, exist_ok=True)
        status = directory.lstat()
    except OSError as error:
        raise DaemonError(tried, str(error.strerror), remedy=remedy) from error
    # Below /tmp anybody may have made the directory first, and could then change what stratactl trusts.
    if (
        not stat.S_ISDIR(status.st_mode)
        or status.st_uid not in (os.getuid(), 0)
        or status.st_mode & stat.S_IWOTH
    ):
        raise DaemonError(tried, "it is not a directory of this user's own", remedy=remedy)


def _write(path: Path, content: str, mode: int = 0o644) -> None:
    """Replaces the file. The unit's umask hides files from others, and where the daemon listens is no secret."""
    try:
        with replaced_file(path, mode) as file:
            file.write(content.encode())
    except OSError as error:
        raise DaemonError(
            f"writing {path}", str(error.strerror), remedy="set server.runtime_directory to a writable folder"
        ) from error


def _is_alive(process_id: int) -> bool:
    try:
        os.kill(process_id, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        # It belongs to somebody else (the service's user), and lives.
        return True
    return True
