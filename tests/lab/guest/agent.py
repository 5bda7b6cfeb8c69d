"""Runs in the guest: does what the tests ask for over a virtio port, one JSON line a request, many at once."""

from __future__ import annotations

import ctypes
import http.client
import json
import os
import queue
import subprocess
import sys
import threading
import traceback
from pathlib import Path
from typing import Any, BinaryIO

_MOVE_PAGES = 279
_PAGE_BYTES = 4096
_PTRACE_ATTACH = 16
_WALL = 0x40000000


def run(command: list[str], text: str | None = None, limit_seconds: float = 120.0) -> dict[str, Any]:
    """Runs a command to its end, or to the limit, after which it is killed."""
    try:
        done = subprocess.run(
            command,
            input=text,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=limit_seconds,
            check=False,
        )
    except subprocess.TimeoutExpired as expired:
        output = expired.stdout.decode(errors="replace") if isinstance(expired.stdout, bytes) else ""
        return {"status": 124, "stdout": output, "stderr": f"killed after {limit_seconds:g} s"}
    return {"status": done.returncode, "stdout": done.stdout, "stderr": done.stderr}


def write(path: str, text: str, mode: int = 0o644) -> None:
    """Writes a file and the folders above it."""
    file = Path(path)
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text, encoding="utf-8")
    file.chmod(mode)


def read(path: str) -> str | None:
    """The text of a file; None when it is not there."""
    try:
        return Path(path).read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None


def http_request(
    method: str, path: str, body: Any = None, port: int = 8090, limit_seconds: float = 300.0
) -> dict[str, Any]:
    """One request to the daemon, read to its end; status 0 when it cannot be reached or breaks off."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=limit_seconds)
    text = ""
    try:
        headers = {"Content-Type": "application/json"} if body is not None else {}
        connection.request(method, path, None if body is None else json.dumps(body), headers)
        response = connection.getresponse()
        while part := response.read1(65536):
            text += part.decode(errors="replace")
    except (OSError, http.client.HTTPException) as error:
        return {"status": 0, "text": text, "error": f"{type(error).__name__}: {error}"}
    finally:
        connection.close()
    return {"status": response.status, "text": text, "error": ""}


def page_nodes(process_id: int, start: int, page_count: int) -> dict[str, int]:
    """How many pages of another process lie on each node, asked of the kernel from outside (move_pages)."""
    libc = ctypes.CDLL(None, use_errno=True)
    addresses = (ctypes.c_void_p * page_count)(*(start + index * _PAGE_BYTES for index in range(page_count)))
    nodes = (ctypes.c_int * page_count)()
    if libc.syscall(_MOVE_PAGES, process_id, ctypes.c_ulong(page_count), addresses, None, nodes, 0) != 0:
        raise OSError(ctypes.get_errno(), "move_pages")
    counts: dict[str, int] = {}
    for node in nodes:
        counts[str(node)] = counts.get(str(node), 0) + 1
    return counts


def threads(process_id: int) -> list[dict[str, str]]:
    """Name, allowed CPUs and last CPU of every thread."""
    found = []
    for task in sorted(Path(f"/proc/{process_id}/task").iterdir(), key=lambda path: int(path.name)):
        status = dict(line.split(":", 1) for line in (task / "status").read_text().splitlines())
        last_cpu = (task / "stat").read_text().rpartition(")")[2].split()[36]
        found.append(
            {
                "id": task.name,
                "name": status["Name"].strip(),
                "cpus": status["Cpus_allowed_list"].strip(),
                "last_cpu": last_cpu,
            }
        )
    return found


def freeze_thread(process_id: int, thread_id: int) -> str:
    """Stops one thread of a process for good, as a loop that never ends would; the others go on."""
    libc = ctypes.CDLL(None, use_errno=True)
    assert Path(f"/proc/{process_id}/task/{thread_id}").exists()
    outcome: queue.Queue[str] = queue.Queue()

    def hold() -> None:
        # A tracer that ends lets its threads go, so this one stays.
        failed = libc.ptrace(_PTRACE_ATTACH, thread_id, None, None) != 0
        outcome.put(f"errno {ctypes.get_errno()}" if failed else "")
        if not failed:
            # A thread that nobody reaps keeps its whole process from being reaped.
            while not _has_ended(os.waitpid(thread_id, _WALL)[1]):
                pass

    threading.Thread(target=hold, daemon=True).start()
    return outcome.get(timeout=60)


def _has_ended(status: int) -> bool:
    return os.WIFEXITED(status) or os.WIFSIGNALED(status)


OPERATIONS = {
    "run": run,
    "write": write,
    "read": read,
    "http": http_request,
    "page_nodes": page_nodes,
    "threads": threads,
    "freeze_thread": freeze_thread,
}


def send(port: BinaryIO, answer: dict[str, Any]) -> None:
    """Writes one line; the port takes 32 KiB at a time."""
    line = json.dumps(answer).encode() + b"\n"
    while line:
        line = line[port.write(line) :]


def _answer(port: BinaryIO, lock: threading.Lock, request: dict[str, Any]) -> None:
    answer: dict[str, Any] = {"id": request["id"]}
    try:
        answer["result"] = OPERATIONS[request["operation"]](**request["arguments"])
    # Whatever goes wrong belongs into the test's report.
    except Exception:
        answer["fault"] = traceback.format_exc()
    with lock:
        send(port, answer)


def main() -> None:
    """Serves the port until the machine goes down."""
    lock = threading.Lock()
    with Path(sys.argv[1]).open("r+b", buffering=0) as port:
        send(port, {"id": 0, "result": "up"})
        pending = b""
        while True:
            # Nobody at the other end reads as an empty answer until somebody comes.
            part = port.read(65536)
            if not part:
                threading.Event().wait(0.1)
                continue
            *lines, pending = (pending + part).split(b"\n")
            for line in lines:
                if line.strip():
                    request = json.loads(line)
                    threading.Thread(target=_answer, args=(port, lock, request), daemon=True).start()


if __name__ == "__main__":
    main()
