"""From the decode thread to an HTTP response: events cross into asyncio, and a client that leaves cancels."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable

from starlette.requests import Request
from starlette.responses import StreamingResponse
from starlette.types import Receive, Scope, Send

from stratad.engine.engine import Ticket
from stratad.engine.generation import Event, Failed, Finished, ReaderTooSlow, TextPiece
from stratad.server.rendering import joined

# For each request. The text of 100,000 tokens is about half a megabyte; likelihoods of 20 tokens are 300 MB with it.
MAX_UNREAD_BYTES = 4 << 20
# What CPython 3.11 takes for a piece with its text's object, and for a likelihood with its token's bytes.
_PIECE_BYTES = 160
_LIKELIHOOD_BYTES = 160
# A reader that keeps up gets every piece by itself; one that is further behind gets what waits at once.
_FEW_PIECES = 16
# Joining text to a longer piece than this would copy more than it saves.
_LONG_PIECE = 4096


class ClientGone(Exception):
    """The client closed the connection; nobody reads an answer any more."""


class EventStream:
    """The events of one request, handed over from the decode thread to the event loop it was made on.

    What nobody has read yet waits here: text as few long pieces, and no more than `max_unread_bytes` where that is
    given. Beyond it the answer ends with `ReaderTooSlow`, and the request is cancelled. An answer that goes out in one
    piece is collected by ourselves, at our own pace, and needs no bound but its length.
    """

    def __init__(self, max_unread_bytes: int | None) -> None:
        self._max_unread_bytes = max_unread_bytes
        self._loop = asyncio.get_running_loop()
        self._lock = threading.Lock()
        self._pieces: deque[TextPiece] = deque()
        self._end: Finished | Failed | None = None
        self._unread_bytes = 0
        self._has_events = asyncio.Event()
        self._cancel: Callable[[], None] | None = None
        self._is_overfull = False

    def cancels(self, cancel: Callable[[], None]) -> None:
        """Has `cancel` called, on any thread, when too much waits to be read."""
        with self._lock:
            self._cancel = cancel
            is_overfull = self._is_overfull
        if is_overfull:
            cancel()

    def deliver(self, event: Event) -> None:
        """Takes an event on any thread and returns at once; drops it when the event loop is gone."""
        with self._lock:
            if self._end is not None:
                return
            was_empty = not self._pieces
            if isinstance(event, TextPiece):
                self._take(event)
            else:
                self._end = event
            cancel = self._cancel if self._is_overfull else None
        if cancel is not None:
            cancel()
        if was_empty:
            # The loop closes before the engine only at the end of a shutdown, when nobody listens.
            with contextlib.suppress(RuntimeError):
                self._loop.call_soon_threadsafe(self._has_events.set)

    async def next(self) -> Event:
        """The next event, or several pieces as one where many wait; none comes after `Finished` or `Failed`."""
        await self._has_events.wait()
        with self._lock:
            if not self._pieces:
                assert self._end is not None
                return self._end
            if len(self._pieces) <= _FEW_PIECES:
                piece = self._pieces.popleft()
                self._unread_bytes -= _size_bytes(piece)
            else:
                piece = joined(self._pieces)
                self._pieces.clear()
            if not self._pieces:
                self._unread_bytes = 0
                if self._end is None:
                    self._has_events.clear()
            return piece

    def _take(self, piece: TextPiece) -> None:
        """Keeps a piece, or ends the stream when it is too much. The lock is held."""
        last = self._pieces[-1] if len(self._pieces) > _FEW_PIECES else None
        if last is not None and len(last.text) < _LONG_PIECE and not last.tokens and not piece.tokens:
            self._unread_bytes += len(piece.text.encode())
            self._pieces[-1] = TextPiece(last.text + piece.text)
        else:
            self._unread_bytes += _size_bytes(piece)
            self._pieces.append(piece)
        limit = self._max_unread_bytes
        if limit is not None and self._unread_bytes > limit:
            self._pieces.clear()
            self._is_overfull = True
            self._end = Failed(ReaderTooSlow(self._unread_bytes, limit))


def _size_bytes(piece: TextPiece) -> int:
    """About what a piece takes in memory, Python's own share included."""
    likelihoods = sum(1 + len(token.likeliest) for token in piece.tokens)
    return _PIECE_BYTES + len(piece.text.encode()) + likelihoods * _LIKELIHOOD_BYTES


async def or_client_gone(request: Request, ticket: Ticket, answer: Awaitable[Event]) -> Event:
    """The awaited event, unless the client goes first.

    Raises:
        ClientGone: The client closed the connection; the request is cancelled then.
    """
    waiting = asyncio.ensure_future(answer)
    leaving = asyncio.ensure_future(_disconnected(request))
    try:
        await asyncio.wait((waiting, leaving), return_when=asyncio.FIRST_COMPLETED)
        if waiting.done():
            return waiting.result()
        raise ClientGone
    except BaseException:
        ticket.cancel()
        raise
    finally:
        for task in (waiting, leaving):
            task.cancel()


async def _disconnected(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


class EventStreamResponse(StreamingResponse):
    """A stream of server-sent events that cancels its request when it ends early, however it ends."""

    def __init__(self, blocks: AsyncIterator[str], on_end: Callable[[], None]) -> None:
        # Proxies (nginx) would otherwise collect the stream before passing it on.
        headers = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}
        super().__init__(blocks, media_type="text/event-stream", headers=headers)
        self._on_end = on_end

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Streams until the end or until the client leaves."""
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._on_end()


def is_last(event: Event) -> bool:
    """True for the event after which none comes."""
    return isinstance(event, (Finished, Failed))
