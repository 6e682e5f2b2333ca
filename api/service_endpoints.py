"""The endpoints beside generation: models, health, version, tokenizing, metrics."""

from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from .. import __version__
from ..core.errors import RequestError
from .chat import template_options
from .context import ServerContext
from .dialect import encode_json
from .fields import DETOKENIZE_FIELDS, TOKENIZE_FIELDS
from .metrics import METRICS_MEDIA_TYPE, Metrics
from .openapi import BODY_ERRORS, Route
from .protocol_answers import DetokenizeAnswer, Health, ModelCard, ModelList, TokenizeAnswer, TokenizerInfo, Version
from .tools.tool_use import tool_use


def json_response(
    value: msgspec.Struct | dict[str, Any], status: int = 200, headers: dict[str, str] | None = None
) -> Response:
    """A JSON answer."""
    return Response(encode_json(value), status, headers, media_type="application/json")


class ServiceEndpoints:
    """The endpoints that generate nothing."""

    def __init__(self, context: ServerContext, metrics: Metrics) -> None:
        self._context = context
        self._metrics = metrics
        self._tokenize_bodies = context.bodies(TOKENIZE_FIELDS)
        self._detokenize_bodies = context.bodies(DETOKENIZE_FIELDS)
        probes = (("/health", self.health), ("/live", self.live), ("/ready", self.health))
        self.routes = [
            Route("GET", "/v1/models", self.models, ModelList),
            Route("GET", "/v1/models/{model_id:path}", self.model, ModelCard, errors=(404,)),
            Route("POST", "/tokenize", self.tokenize, TokenizeAnswer, TOKENIZE_FIELDS, BODY_ERRORS),
            Route("POST", "/detokenize", self.detokenize, DetokenizeAnswer, DETOKENIZE_FIELDS, BODY_ERRORS),
            Route("GET", "/tokenizer_info", self.tokenizer_info, TokenizerInfo, errors=(400,)),
            *(Route("GET", path, handler, Health, errors=(503,), error=Health) for path, handler in probes),
            Route("GET", "/version", self.version, Version),
            Route("GET", "/metrics", self.metrics, text="text/plain"),
        ]

    async def models(self, _request: Request) -> Response:
        """The served models."""
        return json_response(ModelList(data=[self._card(name) for name in self._context.model_names]))

    async def model(self, request: Request) -> Response:
        """One served model."""
        return json_response(self._card(self._context.resolve_model(request.path_params["model_id"])))

    def _card(self, name: str) -> ModelCard:
        root = self._context.engine.config.model.path
        return ModelCard(id=name, created=self._context.created, root=root, max_model_len=self._context.max_model_len)

    async def health(self, _request: Request) -> Response:
        """200 when requests can be served; 503 with the reason while it is not ready."""
        health = self._context.health
        error = self._context.engine.dead_error
        answer = Health(health, str(error) if health == "dead" and error is not None else None)
        return json_response(answer, 200 if health == "ready" else 503)

    async def live(self, _request: Request) -> Response:
        """200 while this process works, also while it loads or drains; 503 once the engine is dead."""
        dead = self._context.health == "dead"
        return json_response(Health("dead" if dead else "live"), 503 if dead else 200)

    async def version(self, _request: Request) -> Response:
        """Octavo's version."""
        return json_response(Version(__version__))

    async def metrics(self, _request: Request) -> Response:
        """Metrics in Prometheus' text format."""
        return Response(self._metrics.render(), media_type=METRICS_MEDIA_TYPE)

    async def tokenize(self, request: Request) -> Response:
        """Token ids of a text, or of a conversation as the model would get it."""
        asked, headers = await self._tokenize_bodies.parse(request)
        self._context.resolve_model(asked.model)
        if (asked.prompt is None) == (asked.messages is None):
            raise RequestError("exactly one of prompt and messages is required", "prompt")
        encoder = self._context.encoder
        if asked.messages is not None:
            options = template_options(asked, asked.chat_template_kwargs)
            tools = tool_use(asked.tools, None, None)
            text = await self._context.render_chat(
                asked.messages, options, None if tools is None else tools.for_template
            )
            add_special_tokens, param = bool(asked.add_special_tokens), "messages"
        else:
            text = asked.prompt or ""
            add_special_tokens, param = asked.add_special_tokens is not False, "prompt"
        # Of more than the context, too: by counting, clients find out what to leave out.
        ids = await encoder.encode(text, add_special_tokens, param, bounded=False)
        texts = None
        if asked.return_token_strs:
            texts = await encoder.off_loop(len(ids), lambda: list(map(encoder.tokenizer.token_text, ids)))
        answer = TokenizeAnswer(count=len(ids), max_model_len=self._context.max_model_len, tokens=ids, token_strs=texts)
        return json_response(answer, headers=headers)

    async def tokenizer_info(self, _request: Request) -> Response:
        """The tokenizer's special tokens and its chat template, for clients that tokenize here."""
        tokenizer = self._context.encoder.tokenizer
        answer = TokenizerInfo(
            bos_token=tokenizer.bos_token,
            eos_token=tokenizer.eos_token,
            pad_token=tokenizer.pad_token,
            vocab_size=tokenizer.vocab_size,
            chat_template=tokenizer.chat_template,
        )
        return json_response(answer)

    async def detokenize(self, request: Request) -> Response:
        """The text of token ids."""
        asked, headers = await self._detokenize_bodies.parse(request)
        self._context.resolve_model(asked.model)
        limit = self._context.engine.config.model.vocab_size
        wrong = next((token_id for token_id in asked.tokens if not 0 <= token_id < limit), None)
        if wrong is not None:
            raise RequestError.at("tokens", f"holds {wrong}, which is outside the vocabulary of {limit} ids")
        encoder = self._context.encoder
        tokenizer = encoder.tokenizer
        text = await encoder.off_loop(
            4 * len(asked.tokens), lambda: tokenizer.decode(asked.tokens, skip_special_tokens=False)
        )
        return json_response(DetokenizeAnswer(prompt=text), headers=headers)
