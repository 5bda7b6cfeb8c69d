"""A process with several clients of one daemon, each doing one thing after another until the process is killed.

usage: python -m tests.soak.client URL SOLO_FILE CLIENTS SEED

Every finished action is a line of JSON on standard output: its kind, its outcome and details.
"""

from __future__ import annotations

import asyncio
import json
import random
import sys
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx

from tests.soak.answers import Likeness, SoloAnswer, SoloToken

# No single action takes this long unless something hangs.
LIMIT_SECONDS = 120.0
PATH = "/v1/completions"


class Refused(Exception):
    """The queue was full; try again later."""


@dataclass(slots=True)
class Client:
    """One client: its own connection pool, its own choices."""

    http: httpx.AsyncClient
    url: str
    answers: list[SoloAnswer]
    random: random.Random

    def choose(self) -> tuple[SoloAnswer, dict[str, Any]]:
        """An answer to ask for, and the request's body."""
        answer = self.random.choice(self.answers)
        return answer, {"prompt": answer.prompt, "max_tokens": answer.max_tokens, "temperature": 0}

    async def whole(self) -> dict[str, Any]:
        """Asks for an answer in one piece."""
        answer, body = self.choose()
        response = await self.http.post(self.url + PATH, json=body)
        await self._require_good(response)
        choice = response.json()["choices"][0]
        return _compared(answer, choice["text"])

    async def stream(self) -> dict[str, Any]:
        """Reads a stream as fast as it comes."""
        return await self._read_stream(pause_seconds=0.0)

    async def slow_stream(self) -> dict[str, Any]:
        """Reads a stream with pauses."""
        return await self._read_stream(pause_seconds=self.random.uniform(0.005, 0.05))

    async def leave(self) -> dict[str, Any]:
        """Closes a stream after a few chunks, or at once."""
        _, body = self.choose()
        body |= {"stream": True, "max_tokens": 400}
        async with self.http.stream("POST", self.url + PATH, json=body) as response:
            await self._require_good(response)
            rest = self.random.randrange(12)
            async for _ in response.aiter_lines():
                rest -= 1
                if rest < 0:
                    break
        return {"outcome": "left"}

    async def leave_while_waiting(self) -> dict[str, Any]:
        """Gives up on an answer, which may not even have begun."""
        _, body = self.choose()
        try:
            async with asyncio.timeout(self.random.uniform(0.01, 0.3)):
                await self._require_good(
                    await self.http.post(self.url + PATH, json=body | {"max_tokens": 400})
                )
        except TimeoutError:
            return {"outcome": "left"}
        return {"outcome": "done"}

    async def never_read(self) -> dict[str, Any]:
        """Asks for a long stream and reads nothing of it for a while."""
        _, body = self.choose()
        content = json.dumps(body | {"stream": True, "max_tokens": 300}).encode()
        reader, writer = await self._connect(limit_bytes=1)
        try:
            writer.write(_head("POST", PATH, len(content)) + content)
            await writer.drain()
            await asyncio.sleep(self.random.uniform(0.2, 2.0))
        finally:
            await _close(writer)
        del reader
        return {"outcome": "left"}

    async def malformed(self) -> dict[str, Any]:
        """Sends something that is no request, and wants a refusal or a closed connection."""
        name, content = self.random.choice(MALFORMED)
        reader, writer = await self._connect()
        try:
            writer.write(content)
            if name.startswith("half"):
                await writer.drain()
                return {"outcome": "left"}
            line = await reader.readline()
        except ConnectionError:
            return {"outcome": "refused"}
        finally:
            await _close(writer)
        status = int(line.split()[1]) if line else 0
        # 0: closed without a word, which even what is not HTTP at all does not get.
        is_refused = 400 <= status < 500
        return {"outcome": "refused" if is_refused else "wrong", "status": status, "what": name}

    async def _read_stream(self, pause_seconds: float) -> dict[str, Any]:
        answer, body = self.choose()
        body |= {"stream": True, "stream_options": {"include_usage": True}}
        text, usage, ended = "", None, False
        async with self.http.stream("POST", self.url + PATH, json=body) as response:
            await self._require_good(response)
            async for line in response.aiter_lines():
                if not line.startswith("data: "):
                    continue
                if line == "data: [DONE]":
                    ended = True
                    break
                document = json.loads(line.removeprefix("data: "))
                if "error" in document:
                    return {"outcome": "wrong", "what": document["error"]}
                usage = document.get("usage") or usage
                text += "".join(choice["text"] for choice in document["choices"])
                if pause_seconds:
                    await asyncio.sleep(pause_seconds)
        if not ended or usage is None or usage["completion_tokens"] > answer.max_tokens:
            return {"outcome": "wrong", "what": f"ended {ended}, usage {usage}"}
        return _compared(answer, text)

    async def _connect(self, limit_bytes: int = 65536) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        place = urlsplit(self.url)
        return await asyncio.open_connection(place.hostname, place.port, limit=limit_bytes)

    async def _require_good(self, response: httpx.Response) -> None:
        if response.status_code == 429:
            seconds = int(response.headers["Retry-After"])
            # A client that obeys waits that long; a tenth keeps the daemon under load.
            await asyncio.sleep(min(seconds, 20) / 10 * self.random.random())
            raise Refused
        if response.status_code != 200:
            raise RuntimeError(f"status {response.status_code}: {(await response.aread())[:200]!r}")


def _compared(answer: SoloAnswer, text: str) -> dict[str, Any]:
    likeness, gap_nats = answer.compare(text)
    found = {"outcome": likeness.value, "gap_nats": gap_nats}
    return found if likeness is not Likeness.WRONG else {**found, "prompt": answer.prompt[:40], "text": text}


def _head(method: str, path: str, length: int, *further: str) -> bytes:
    lines = [f"{method} {path} HTTP/1.1", "Host: localhost", f"Content-Length: {length}", *further]
    return ("\r\n".join([*lines, "Connection: close"]) + "\r\n\r\n").encode()


def _post(content: bytes) -> bytes:
    return _head("POST", PATH, len(content)) + content


MALFORMED: tuple[tuple[str, bytes], ...] = (
    ("no json", _post(b"{ nonsense")),
    ("no utf-8", _post(b'{"prompt": "\xff\xfe"}')),
    ("nested", _post(b"[" * 50_000)),
    ("a list", _post(b"[]")),
    ("wrong type", _post(b'{"prompt": {"a": 1}}')),
    ("unknown key", _post(b'{"prompt": "a", "no_such_key": 1}')),
    ("huge number", _post(b'{"prompt": "a", "max_tokens": 1e400}')),
    ("too many tokens", _post(json.dumps({"prompt": "word " * 20_000}).encode())),
    ("too large", _head("POST", PATH, 1 << 40)),
    ("long header", _head("POST", PATH, 0, "X-Long: " + "y" * 60_000)),
    ("no such path", _head("GET", "/no/such/path", 0)),
    ("no such method", _head("DELETE", PATH, 0)),
    ("another host", _post(b"{}").replace(b"localhost", b"evil.example")),
    ("no http", b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03 hello\r\n\r\n"),
    ("half a body", _head("POST", PATH, 1000) + b'{"prompt": "'),
    ("half a head", b"POST /v1/completions HTTP/1.1\r\nHost: local"),
)


async def _close(writer: asyncio.StreamWriter) -> None:
    writer.close()
    try:
        await writer.wait_closed()
    except OSError:
        return


Action = Callable[[Client], Awaitable[dict[str, Any]]]
# How often each thing is done, of the sum of these.
ACTIONS: tuple[tuple[str, int, Action], ...] = (
    ("stream", 6, Client.stream),
    ("whole", 4, Client.whole),
    ("slow stream", 3, Client.slow_stream),
    ("leave", 3, Client.leave),
    ("leave while waiting", 3, Client.leave_while_waiting),
    ("never read", 1, Client.never_read),
    ("malformed", 3, Client.malformed),
)


async def _act(client: Client) -> dict[str, Any]:
    names = [name for name, _, _ in ACTIONS]
    kind = client.random.choices(names, [weight for _, weight, _ in ACTIONS])[0]
    action = next(action for name, _, action in ACTIONS if name == kind)
    try:
        async with asyncio.timeout(LIMIT_SECONDS):
            return {"kind": kind, **await action(client)}
    except TimeoutError:
        return {"kind": kind, "outcome": "hang"}
    except Refused:
        return {"kind": kind, "outcome": "queue full"}
    except Exception as error:
        return {"kind": kind, "outcome": "failed", "what": f"{type(error).__name__}: {error}"}


async def _run(url: str, answers: list[SoloAnswer], client_count: int, seed: int) -> None:
    async def live(index: int) -> None:
        limits = httpx.Limits(max_connections=4)
        async with httpx.AsyncClient(timeout=LIMIT_SECONDS, limits=limits) as http:
            client = Client(http, url, answers, random.Random(seed * 1000 + index))
            while True:
                print(json.dumps(await _act(client)), flush=True)

    async with asyncio.TaskGroup() as group:
        for index in range(client_count):
            group.create_task(live(index))


def read_answers(path: Path) -> list[SoloAnswer]:
    """The answers that `write_answers` left."""
    documents = json.loads(path.read_text(encoding="utf-8"))
    return [
        SoloAnswer(
            document["prompt"], document["max_tokens"], tuple(SoloToken(*row) for row in document["tokens"])
        )
        for document in documents
    ]


def write_answers(path: Path, answers: list[SoloAnswer]) -> None:
    """Leaves the answers for the clients' processes."""
    documents = [
        {
            "prompt": answer.prompt,
            "max_tokens": answer.max_tokens,
            "tokens": [[token.text, token.other_text, token.gap_nats] for token in answer.tokens],
        }
        for answer in answers
    ]
    path.write_text(json.dumps(documents), encoding="utf-8")


if __name__ == "__main__":
    asyncio.run(_run(sys.argv[1], read_answers(Path(sys.argv[2])), int(sys.argv[3]), int(sys.argv[4])))
