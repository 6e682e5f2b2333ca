"""What the handlers of one server share."""

import re
import time
import uuid
from typing import Any, TypeVar

import msgspec
from starlette.requests import Request

from ..core.errors import ConfigurationError, EngineDeadError, RequestError, UnknownModelError
from ..core.pooling_params import PoolingParams
from ..core.sampling_params import SamplingParams
from ..engine.async_llm import AsyncLLM
from ..engine.input_processor import PreparedRequest
from ..engine.tokenizer import Tokenizer
from .answer_plan import AnswerPlan
from .body import BodyParser
from .chat import template_messages
from .chat_template import ChatTemplate
from .content import extent
from .dialect import AnswerHead
from .errors import EngineLoadingError, ServerStoppingError
from .fields import EndpointFields
from .open_requests import Exchange, OpenRequests
from .prompts import PromptEncoder, TokensPrompt
from .protocol import ChatMessage
from .request_log import RequestLog, keep_log
from .sampling import rename_param
from .server_args import ServerArgs
from .shared_numbers import SharedNumbers

T = TypeVar("T", bound=msgspec.Struct)

_REQUEST_ID = re.compile(r"[!-~]{1,128}")


class ServerContext:
    """The engine, how it is reached, and the state of the server."""

    def __init__(
        self, engine: AsyncLLM, args: ServerArgs, model_names: list[str], numbers: SharedNumbers | None = None
    ) -> None:
        """Raises ``ConfigurationError`` for a chat template or a parser that cannot be used."""
        self.engine = engine
        self.args = args
        self.model_names = model_names
        """Names that requests may give; answers carry the first where a request gives none."""
        self.chat_template = _chat_template(engine.tokenizer, args.chat_template)
        """None: there is no tokenizer."""
        self.answers = AnswerPlan(args, self.chat_template, engine.tokenizer)
        limit = engine.config.scheduler.max_num_seqs + args.max_queued_requests
        self.open_requests = OpenRequests(limit, numbers)
        self.encoder = PromptEncoder(engine)
        self.created = int(time.time())
        self.stopping = False
        """The server was told to end: nothing new is started."""

    @property
    def max_model_len(self) -> int:
        """Most tokens of one request, prompt and output together."""
        return self.engine.config.scheduler.max_model_len

    @property
    def health(self) -> str:
        """``loading``, ``ready``, ``restarting``, ``stopping`` or ``dead``."""
        return "stopping" if self.stopping and self.engine.status != "dead" else self.engine.status

    def require_ready(self) -> None:
        """Raises the error that says why nothing can be generated now: loading, stopping, dead or full."""
        health = self.health
        if health == "loading":
            raise EngineLoadingError("the model is still being loaded; try again in a moment (/health tells when)")
        if health == "restarting":
            raise EngineLoadingError("the engine died and another one is being started; try again in a moment")
        if health == "stopping":
            raise ServerStoppingError("the server is stopping and takes no new requests")
        if health == "dead":
            raise self.engine.dead_error or EngineDeadError("the engine is gone")
        # Here too, though the request is counted only once it is prepared: a refusal should cost no tokenizing.
        self.open_requests.check_room()

    def bodies(self, fields: EndpointFields[T]) -> BodyParser[T]:
        """What parses the bodies of one endpoint."""
        return BodyParser(fields, self.args.max_body_bytes, self.args.strict_fields)

    async def accept(self, request: Request, bodies: BodyParser[T]) -> tuple[T, Exchange]:
        """What a request that has just come in asks to be generated. Raises what speaks against it."""
        log = RequestLog(request.url.path, request.scope["octavo.request_id"], self.engine.config.log_requests)
        keep_log(request.scope, log)
        self.require_ready()
        asked, headers = await bodies.parse(request)
        return asked, Exchange(headers, log, self.open_requests)

    def resolve_model(self, name: str | None) -> str:
        """The name that answers carry. Raises ``UnknownModelError`` for a model that is not served."""
        if name is None:
            return self.model_names[0]
        if name not in self.model_names:
            raise UnknownModelError(
                f"the model {name[:128]!r} is not served here; served: {', '.join(self.model_names)}", "model"
            )
        return name

    async def prepare(
        self,
        prompt: TokensPrompt,
        params: SamplingParams | PoolingParams,
        renamed: dict[str, str],
        cache_salt: str | None = None,
    ) -> PreparedRequest:
        """The engine's checks of a prompt, which does not run yet: another one of the request may be wrong.

        Raises ``RequestError``; ``renamed`` are the request's own names of what is wrong.
        """
        try:
            return await self.engine.prepare(prompt, params, cache_salt=cache_salt)
        except RequestError as error:
            raise rename_param(error, renamed) from error

    async def render_chat(
        self, messages: list[ChatMessage], options: dict[str, Any], tools: list[dict[str, Any]] | None = None
    ) -> str:
        """The prompt of a conversation. Raises ``RequestError``, also for what the template itself refuses."""
        template = self.chat_template
        if template is None:
            raise RequestError("this server has no chat template: it runs with --skip-tokenizer-init", "messages")
        size = extent(message.content for message in messages)
        return await self.encoder.off_loop(size, lambda: template.prompt(template_messages(messages), tools, **options))

    def answer_head(self, prefix: str, model: str | None, request_id: str | None) -> tuple[AnswerHead, str]:
        """What the answer repeats, and the id that the engine knows it by, which is unique whatever was given.

        Raises ``UnknownModelError``, and ``RequestError`` for a ``request_id`` that would garble logs.
        """
        name, now, unique = self.resolve_model(model), int(time.time()), uuid.uuid4().hex
        if request_id is None:
            return AnswerHead(f"{prefix}-{unique}", now, name), f"{prefix}-{unique}"
        if _REQUEST_ID.fullmatch(request_id) is None:
            raise RequestError.at("request_id", "must be 1 to 128 printable ASCII characters without spaces")
        return AnswerHead(f"{prefix}-{request_id}", now, name), f"{prefix}-{request_id}-{unique[:8]}"


def _chat_template(tokenizer: Tokenizer | None, override: str | None) -> ChatTemplate | None:
    if tokenizer is not None:
        return ChatTemplate.from_tokenizer(tokenizer, override)
    if override is not None:
        raise ConfigurationError("--chat-template needs a tokenizer; leave out --skip-tokenizer-init")
    return None


def usable_request_id(header: str) -> str | None:
    """The client's ``x-request-id`` if it can be logged and sent back as it is."""
    return header if _REQUEST_ID.fullmatch(header) else None
