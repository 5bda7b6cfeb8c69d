"""POST /v1/chat/completions and /v1/completions."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from stratad.chat.answer_reader import AnswerReader
from stratad.chat.chat import Chat, PreparedChat
from stratad.chat.template import ChatTemplateError
from stratad.engine.engine import Ticket
from stratad.engine.generation import Event, Failed, Finished, GenerationRequest, TextPiece
from stratad.server.bodies import CompletionBody, SamplingBody, TokenizeBody, parse_body
from stratad.server.chat_bodies import ChatBody
from stratad.server.failures import bad_request, request_error_document
from stratad.server.limits import client_of, read_body
from stratad.server.rendering import STREAM_END, ChatShape, CompletionShape, Shape, event_block, joined
from stratad.server.streaming import (
    MAX_UNREAD_BYTES,
    EventStream,
    EventStreamResponse,
    is_last,
    or_client_gone,
)
from stratad.service.service import Service


class CompletionEndpoints:
    """The two endpoints that generate text, over one service."""

    def __init__(self, service: Service, max_body_bytes: int) -> None:
        self._service = service
        self._max_body_bytes = max_body_bytes

    async def chat(self, request: Request) -> Response:
        """POST /v1/chat/completions."""
        raw = await read_body(request, self._max_body_bytes)
        body = parse_body(ChatBody, raw, self._service.model_name)
        # Rendering and analysing a long template takes a while; the event loop serves others meanwhile.
        prepared = await asyncio.to_thread(_prepare, body, self._service.chat)
        shape = ChatShape(self._service.model_name, AnswerReader(prepared.plan))
        return await self._answer(request, body, body.generation_request(prepared), shape)

    async def complete(self, request: Request) -> Response:
        """POST /v1/completions."""
        raw = await read_body(request, self._max_body_bytes)
        body = parse_body(CompletionBody, raw, self._service.model_name)
        shape = CompletionShape(self._service.model_name)
        # A schema of a thousand properties takes seconds to convert.
        generation = await asyncio.to_thread(body.generation_request, self._service.chat.grammar_of_schema)
        return await self._answer(request, body, generation, shape)

    async def embed(self, request: Request) -> Response:
        """POST /v1/embeddings: what is served here generates text."""
        await read_body(request, self._max_body_bytes)
        raise bad_request(
            f"the model {self._service.model_name!r} is served for generation and gives no embeddings",
            code="unsupported_endpoint",
            parameter="model",
        )

    async def tokenize(self, request: Request) -> Response:
        """POST /tokenize."""
        raw = await read_body(request, self._max_body_bytes)
        body = parse_body(TokenizeBody, raw, self._service.model_name)
        tokens = await asyncio.to_thread(
            self._service.tokenize,
            body.content,
            add_special=body.add_special,
            parse_special=body.parse_special,
        )
        return JSONResponse({"tokens": tokens})

    async def _answer(
        self, request: Request, body: SamplingBody, generation: GenerationRequest, shape: Shape
    ) -> Response:
        """Submits the request and waits for its first event, so that a refusal still has its HTTP status."""
        events = EventStream(MAX_UNREAD_BYTES if body.stream else None)
        # Tokenizing a long prompt takes a while; the event loop serves other clients meanwhile.
        generation = replace(generation, client=client_of(request))
        ticket = await asyncio.to_thread(self._service.submit, generation, events.deliver)
        events.cancels(ticket.cancel)
        first = await or_client_gone(request, ticket, events.next())
        if isinstance(first, Failed):
            raise first.error
        if body.stream:
            blocks = _stream_blocks(first, events, shape, includes_usage=body.includes_usage)
            return EventStreamResponse(blocks, ticket.cancel)
        return await _whole_answer(request, ticket, first, events, shape)


def _prepare(body: ChatBody, chat: Chat) -> PreparedChat:
    """The chat's prompt and plan. Raises HttpFailure where the template or a grammar refuses."""
    try:
        return chat.prepare(body.chat_request(chat))
    except ChatTemplateError as error:
        raise bad_request(str(error), code="chat_template_failed", parameter="messages") from error


async def _whole_answer(
    request: Request, ticket: Ticket, first: Event, events: EventStream, shape: Shape
) -> JSONResponse:
    pieces: list[TextPiece] = []

    async def last_event() -> Event:
        event = first
        while not is_last(event):
            if isinstance(event, TextPiece):
                pieces.append(event)
            event = await events.next()
        return event

    end = await or_client_gone(request, ticket, last_event())
    if isinstance(end, Finished):
        return JSONResponse(shape.whole(joined(pieces), end))
    assert isinstance(end, Failed)
    raise end.error


async def _stream_blocks(
    first: Event, events: EventStream, shape: Shape, *, includes_usage: bool
) -> AsyncIterator[str]:
    """The blocks of the stream; an error after its beginning is a block of its own, without [DONE]."""
    for chunk in shape.opening():
        yield event_block(chunk)
    event = first
    while isinstance(event, TextPiece):
        for chunk in shape.pieces(event):
            yield event_block(chunk)
        event = await events.next()
    if isinstance(event, Failed):
        yield event_block(request_error_document(event.error))
        return
    for chunk in shape.closing(event):
        yield event_block(chunk)
    if includes_usage:
        yield event_block(shape.usage(event))
    yield STREAM_END
