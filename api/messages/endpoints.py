"""``/v1/messages`` and ``/v1/messages/count_tokens``."""

import time
import uuid
from collections.abc import Awaitable, Callable
from typing import TypeVar

from starlette.requests import Request
from starlette.responses import Response

from ...core.errors import RequestError
from ..content import extent
from ..context import ServerContext
from ..dialect import AnswerHead
from ..error_answers import shape_errors
from ..generation_endpoints import GenerationEndpoints
from ..openapi import BODY_ERRORS, GENERATION_ERRORS, Route
from ..protocol import ChatCompletionRequest
from ..service_endpoints import json_response
from ..streaming import CollectedResponse, EventStreamResponse
from .conversation import chat_request, own_names
from .dialect import MessageCollector, MessageStream
from .errors import message_error_response
from .protocol import (
    COUNT_TOKENS_FIELDS,
    MESSAGES_FIELDS,
    CountTokensRequest,
    MessageError,
    MessageObject,
    TokenCount,
)

T = TypeVar("T")


class MessagesEndpoints:
    """The endpoints of the Messages API."""

    def __init__(self, context: ServerContext, generation: GenerationEndpoints) -> None:
        self._context = context
        self._generation = generation
        self._bodies = context.bodies(MESSAGES_FIELDS)
        self._count_bodies = context.bodies(COUNT_TOKENS_FIELDS)
        path, error = "/v1/messages", MessageError
        count = f"{path}/count_tokens"
        self.routes = [
            Route("POST", path, self.create, MessageObject, MESSAGES_FIELDS, GENERATION_ERRORS, error, streams=True),
            Route("POST", count, self.count_tokens, TokenCount, COUNT_TOKENS_FIELDS, BODY_ERRORS, error),
        ]

    async def create(self, request: Request) -> Response:
        """Answer a conversation."""
        shape_errors(request.scope, message_error_response)
        asked, exchange = await self._context.accept(request, self._bodies)
        model = self._context.resolve_model(asked.model)
        if asked.max_tokens < 1:
            raise RequestError.at("max_tokens", f"must be at least 1, not {asked.max_tokens}")
        self._context.encoder.check_length(asked.messages, "messages", "messages")
        message_id = f"msg_{uuid.uuid4().hex}"
        generation = await self._in_chat(
            asked, lambda chat: self._generation.chat_generation(chat, message_id, clamp=True)
        )
        # Clients of this API ask for much and count on getting what the context leaves.
        in_context = generation.prompts[0].params.max_tokens != asked.max_tokens
        head = AnswerHead(message_id, int(time.time()), model)
        if asked.stream:
            return EventStreamResponse(generation, MessageStream(head, generation, in_context), exchange)
        return CollectedResponse(generation, MessageCollector(head, generation, in_context), exchange)

    async def count_tokens(self, request: Request) -> Response:
        """Count the tokens of a conversation without answering it."""
        shape_errors(request.scope, message_error_response)
        asked, headers = await self._count_bodies.parse(request)
        self._context.resolve_model(asked.model)
        count = await self._in_chat(asked, self._generation.count_chat)
        return json_response(TokenCount(count), headers=headers)

    async def _in_chat(self, asked: CountTokensRequest, ask: Callable[[ChatCompletionRequest], Awaitable[T]]) -> T:
        """``ask`` the same in the chat dialect. Raises ``RequestError`` with the names of this one."""
        try:
            size = extent(turn.content for turn in asked.messages)
            return await ask(await self._context.encoder.off_loop(size, lambda: chat_request(asked)))
        except RequestError as error:
            raise own_names(error) from error
