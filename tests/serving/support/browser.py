"""A real headless Chromium, driven over its debugging pipe: no driver program, no websocket, no port.

Chromium reads commands from descriptor 3 and answers on descriptor 4, JSON documents that end in a zero byte
(the DevTools protocol).
"""

from __future__ import annotations

import base64
import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from select import select
from time import monotonic
from typing import Any

from tests.serving.support.served import wait_until

PROGRAM = next(
    (found for name in ("chromium", "chromium-browser", "google-chrome") if (found := shutil.which(name))),
    None,
)
LEFT_OUT = (
    "no chromium is installed (packaging/bootstrap/test_packages.sh): the page is not tested in a browser"
)
LIMIT_SECONDS = 60.0


class Browser:
    """One tab of a browser."""

    def __init__(self, write_end: int, read_end: int) -> None:
        self._write_end = write_end
        self._read_end = read_end
        self._unread = b""
        self._last_id = 0
        self._session: str | None = None
        # What the page said on its console, uncaught exceptions and refusals by its policy included.
        self.complaints: list[str] = []

    def command(self, method: str, **parameters: object) -> dict[str, Any]:
        """Has the browser do something, and gives its answer; fails when it refuses."""
        self._last_id += 1
        message = {"id": self._last_id, "method": method, "params": parameters}
        if self._session is not None:
            message["sessionId"] = self._session
        os.write(self._write_end, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._next_message()
            if answer.get("id") == self._last_id:
                assert "error" not in answer, (method, answer["error"])
                return dict(answer["result"])
            self._note(answer)

    def attach(self) -> None:
        """Takes the first tab; nothing else works before."""
        target = self.command("Target.createTarget", url="about:blank")["targetId"]
        session = self.command("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        self._session = session
        for domain in ("Page", "Runtime", "Log", "Accessibility"):
            self.command(f"{domain}.enable")

    def open(self, url: str) -> None:
        """Goes to an address and waits until the document is there."""
        self.command("Page.navigate", url=url)
        self.wait_for("document.readyState === 'complete' && location.href !== 'about:blank'")

    def look_like(self, width: int, height: int, *, scheme: str = "light", scale: float = 1) -> None:
        """A window of this size in CSS pixels, with a light or dark scheme."""
        self.command(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=scale,
            mobile=width < 500,
        )
        features = [
            {"name": "prefers-color-scheme", "value": scheme},
            {"name": "prefers-reduced-motion", "value": "reduce"},
        ]
        self.command("Emulation.setEmulatedMedia", features=features)

    def value(self, expression: str) -> Any:
        """What a JavaScript expression (or the promise it gives) comes to; fails when it throws."""
        answer = self.command(
            "Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True
        )
        assert "exceptionDetails" not in answer, (expression, answer["exceptionDetails"])
        return answer["result"].get("value")

    def wait_for(self, condition: str) -> None:
        """Returns as soon as a JavaScript expression is true."""
        wait_until(lambda: bool(self.value(condition)))

    def text(self, selector: str) -> str:
        """The visible text of one element."""
        return str(self.value(f"document.querySelector({json.dumps(selector)}).innerText"))

    def press(self, key: str, *, text: str = "", modifiers: int = 0) -> None:
        """One key, as a keyboard sends it."""
        codes = {"Tab": 9, "Enter": 13, "Escape": 27, " ": 32}
        shared = {"key": key, "modifiers": modifiers, "windowsVirtualKeyCode": codes.get(key, 0)}
        shared["text"] = text or {"Enter": "\r", " ": " "}.get(key, "")
        self.command("Input.dispatchKeyEvent", type="keyDown" if shared["text"] else "rawKeyDown", **shared)
        self.command("Input.dispatchKeyEvent", type="keyUp", key=key, modifiers=modifiers)

    def type(self, text: str) -> None:
        """Text into the focused element."""
        self.command("Input.insertText", text=text)

    def photograph(self, path: Path) -> None:
        """A picture of the whole page, however long."""
        picture = self.command("Page.captureScreenshot", captureBeyondViewport=True)
        path.write_bytes(base64.b64decode(picture["data"]))

    def _next_message(self) -> dict[str, Any]:
        end_seconds = monotonic() + LIMIT_SECONDS
        while b"\0" not in self._unread:
            ready, _, _ = select([self._read_end], [], [], max(0.0, end_seconds - monotonic()))
            assert ready, "the browser does not answer"
            part = os.read(self._read_end, 1 << 20)
            assert part, "the browser has ended"
            self._unread += part
        message, _, self._unread = self._unread.partition(b"\0")
        return dict(json.loads(message))

    def _note(self, event: dict[str, Any]) -> None:
        parameters = event.get("params", {})
        if event.get("method") == "Runtime.exceptionThrown":
            self.complaints.append(json.dumps(parameters["exceptionDetails"]))
        elif event.get("method") == "Log.entryAdded":
            self.complaints.append(f"{parameters['entry']['source']}: {parameters['entry']['text']}")
        elif event.get("method") == "Runtime.consoleAPICalled":
            self.complaints.append(f"console: {parameters['args']}")


@contextmanager
def browser(folder: Path) -> Iterator[Browser]:
    """A browser with a fresh profile in `folder`; it is gone at the end."""
    assert PROGRAM is not None
    command_read, command_write = os.pipe()
    answer_read, answer_write = os.pipe()
    # The shell moves the two pipes to where Chromium looks for them.
    script = f'exec "$@" 3<&{command_read} 4>&{answer_write}'
    options = [
        "--headless",
        "--remote-debugging-pipe",
        f"--user-data-dir={folder / 'profile'}",
        "--no-first-run",
        "--disable-gpu",
        "--disable-dev-shm-usage",
        "--disable-background-networking",
        "--disable-component-update",
        "--hide-scrollbars",
    ]
    if os.getuid() == 0:
        # Chromium's own sandbox refuses to run as root; it sees pages of ours only.
        options.append("--no-sandbox")
    folder.mkdir(exist_ok=True)
    with (folder / "browser.log").open("wb") as log:
        process = subprocess.Popen(
            ["bash", "-c", script, "chromium", PROGRAM, *options],
            pass_fds=(command_read, answer_write),
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
        )
    os.close(command_read)
    os.close(answer_write)
    tab = Browser(command_write, answer_read)
    try:
        tab.attach()
        yield tab
    finally:
        os.close(command_write)
        process.terminate()
        try:
            process.wait(LIMIT_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        os.close(answer_read)
