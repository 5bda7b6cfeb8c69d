"""From the decode thread to an HTTP response: events cross into asyncio, and a client that leaves cancels."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable

from starlette.requests import Request
from starlette.responses import StreamingResponse
from starlette.types import Receive, Scope, Send

from stratad.engine import Ticket
from stratad.generation import Event, Failed, Finished


class ClientGone(Exception):
    """The client closed the connection; nobody reads an answer any more."""


class EventStream:
    """The events of one request, handed over from the decode thread to the event loop it was made on.

    Unread events pile up here when the client reads slowly; a request's tokens are their bound.
    """

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._queue: asyncio.Queue[Event] = asyncio.Queue()

    def deliver(self, event: Event) -> None:
        """Takes an event on any thread and returns at once; drops it when the event loop is gone."""
        # The loop closes before the engine only at the end of a shutdown, when nobody listens.
        with contextlib.suppress(RuntimeError):
            self._loop.call_soon_threadsafe(self._queue.put_nowait, event)

    async def next(self) -> Event:
        """The next event; there is none after `Finished` or `Failed`."""
        return await self._queue.get()


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
