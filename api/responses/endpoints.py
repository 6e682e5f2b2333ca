"""``/v1/responses``: create, retrieve, delete, cancel, and the input items of a kept response."""

import logging
import time
import uuid

from starlette.requests import Request
from starlette.responses import Response

from ...core.errors import ContextLengthError, RequestError, UnsupportedFieldError
from ..content import extent
from ..context import ServerContext
from ..generation import Generation
from ..generation_endpoints import GenerationEndpoints
from ..openapi import GENERATION_ERRORS, Route
from ..protocol import ChatMessage
from ..service_endpoints import json_response
from ..streaming import CollectedResponse, EventStreamResponse
from .dialect import ResponseBuilder, ResponseCollector, ResponseStream
from .items import chat_messages, given_items, item_dicts
from .protocol import RESPONSES_FIELDS, DeletedResponse, InputItem, ItemList, ResponseObject, ResponsesRequest
from .request import chat_request, check_request, own_names, told_reasoning, told_text, told_tool_choice, top_logprobs
from .store import ResponseStore, StoredResponse

logger = logging.getLogger(__name__)


class ResponsesEndpoints:
    """The endpoints of the Responses API."""

    def __init__(self, context: ServerContext, generation: GenerationEndpoints) -> None:
        args = context.args
        self._context = context
        self._generation = generation
        self._bodies = context.bodies(RESPONSES_FIELDS)
        self.store = ResponseStore(args.responses_store_size, args.responses_store_bytes, args.api_server_count == 1)
        path, errors = "/v1/responses", (400, 404)
        one = f"{path}/{{response_id}}"
        self.routes = [
            Route("POST", path, self.create, ResponseObject, RESPONSES_FIELDS, GENERATION_ERRORS, streams=True),
            Route("GET", one, self.retrieve, ResponseObject, errors=errors),
            Route("DELETE", one, self.delete, DeletedResponse, errors=(404,)),
            Route("POST", f"{one}/cancel", self.cancel, ResponseObject, errors=errors),
            Route("GET", f"{one}/input_items", self.input_items, ItemList, errors=errors),
        ]

    async def create(self, request: Request) -> Response:
        """Answer a conversation given as items."""
        asked, exchange = await self._context.accept(request, self._bodies)
        check_request(asked)
        model = self._context.resolve_model(asked.model)
        new = given_items(asked.input)
        earlier: list[InputItem] = []
        if asked.previous_response_id is not None:
            earlier = self.store.get(asked.previous_response_id, "previous_response_id").conversation
        response_id = f"resp_{uuid.uuid4().hex}"
        items = [*earlier, *new]
        if asked.truncation != "auto":
            self._context.encoder.check_length(items, "input", "items")
        messages = await self._context.encoder.off_loop(
            extent(item.content for item in items), lambda: chat_messages(asked.instructions, earlier, new)
        )
        generation = await self._fitting_generation(asked, messages, response_id)
        response = self._response(asked, response_id, model, generation)
        builder = ResponseBuilder(response, generation, top_logprobs(asked))

        def keep(answer: ResponseObject) -> None:
            if answer.store:
                self.store.put(answer.id, StoredResponse.of(answer, items, len(new)))

        if asked.stream:
            return EventStreamResponse(generation, ResponseStream(builder, keep), exchange)
        return CollectedResponse(generation, ResponseCollector(builder, keep), exchange)

    async def retrieve(self, request: Request) -> Response:
        """A kept response."""
        if request.query_params.get("stream", "false").lower() not in ("false", "0"):
            raise UnsupportedFieldError.at("stream", "is not supported here: a kept response is complete")
        stored = self.store.get(request.path_params["response_id"], "response_id")
        return Response(stored.body, media_type="application/json")

    async def delete(self, request: Request) -> Response:
        """Forget a kept response."""
        response_id = request.path_params["response_id"]
        self.store.delete(response_id)
        return json_response(DeletedResponse(id=response_id))

    async def cancel(self, request: Request) -> Response:
        """Always refused: only background responses can be cancelled, and there are none here."""
        self.store.get(request.path_params["response_id"], "response_id")
        raise RequestError(
            "only a response created with background true can be cancelled, which this server does not offer; "
            "close the connection of a running request instead",
            "response_id",
        )

    async def input_items(self, request: Request) -> Response:
        """What a kept response was asked, newest first unless ``order=asc``."""
        response_id = request.path_params["response_id"]
        stored = self.store.get(response_id, "response_id")
        items = item_dicts(stored.input_items, f"in_{response_id.removeprefix('resp_')}")
        query = request.query_params
        order = query.get("order", "desc")
        if order not in ("asc", "desc"):
            raise RequestError.at("order", f"must be asc or desc, not {order[:32]!r}")
        if order == "desc":
            items.reverse()
        after = query.get("after")
        if after is not None:
            places = [place for place, item in enumerate(items) if item["id"] == after]
            if not places:
                raise RequestError.at("after", f"is {after[:128]!r}, which is none of the items")
            items = items[places[0] + 1 :]
        limit = query.get("limit", "20")
        if not (limit.isascii() and limit.isdecimal() and len(limit) < 4 and 1 <= int(limit) <= 100):
            raise RequestError.at("limit", f"must be between 1 and 100, not {limit[:32]!r}")
        page = items[: int(limit)]
        ids = [item["id"] for item in page] or [None]
        return json_response(ItemList(data=page, first_id=ids[0], last_id=ids[-1], has_more=len(page) < len(items)))

    async def _fitting_generation(
        self, asked: ResponsesRequest, messages: list[ChatMessage], response_id: str
    ) -> Generation:
        """The generation; with truncation ``auto`` without as many of the oldest turns as do not fit the context."""
        try:
            return await self._start(asked, messages, response_id)
        except ContextLengthError:
            if asked.truncation != "auto":
                raise
            system = [message for message in messages[:1] if message.role == "system"]
            turns = [index for index, message in enumerate(messages) if message.role == "user" and index > len(system)]
            if not turns:
                raise
        # The fewest left out that fit: a binary search, since every try renders and tokenizes.
        low, high = 0, len(turns) - 1
        while low < high:
            middle = (low + high) // 2
            try:
                await self._start(asked, system + messages[turns[middle] :], response_id)
                high = middle
            except ContextLengthError:
                low = middle + 1
        logger.info("%s: truncation left out the %d oldest messages", response_id, turns[low] - len(system))
        return await self._start(asked, system + messages[turns[low] :], response_id)

    async def _start(self, asked: ResponsesRequest, messages: list[ChatMessage], response_id: str) -> Generation:
        try:
            return await self._generation.chat_generation(chat_request(asked, messages), response_id)
        except RequestError as error:
            raise own_names(error) from error

    def _response(
        self, asked: ResponsesRequest, response_id: str, model: str, generation: Generation
    ) -> ResponseObject:
        """The response before anything was generated."""
        params = generation.prompts[0].params
        return ResponseObject(
            id=response_id,
            created_at=int(time.time()),
            instructions=asked.instructions,
            max_output_tokens=asked.max_output_tokens,
            max_tool_calls=asked.max_tool_calls,
            model=model,
            parallel_tool_calls=asked.parallel_tool_calls is not False,
            previous_response_id=asked.previous_response_id,
            prompt_cache_key=asked.prompt_cache_key,
            reasoning=told_reasoning(asked),
            safety_identifier=asked.safety_identifier,
            store=asked.store is not False and self.store.enabled,
            temperature=params.temperature,
            text=told_text(asked),
            tool_choice=told_tool_choice(asked),
            tools=asked.tools or [],
            top_logprobs=top_logprobs(asked) or 0,
            top_p=params.top_p,
            truncation=asked.truncation or "disabled",
            user=asked.user,
            metadata=asked.metadata or {},
        )
