"""``POST /v1/embeddings``, ``/v1/score`` and ``/v1/rerank``: prompts that are pooled, and nothing generated."""

from starlette.requests import Request
from starlette.responses import Response

from ..core.errors import RequestError
from ..core.pooling_params import PoolingParams
from ..engine.input_processor import PreparedRequest
from ..engine.scoring import PoolingPrompt, check_pairs, make_scoring
from . import pooling_protocol as protocol
from .completions import split_prompts
from .context import ServerContext
from .generation import Generation
from .openapi import GENERATION_ERRORS, Route
from .pooling import VectorCollector, as_embeddings, as_ranking, as_scores
from .streaming import CollectedResponse

MAX_INPUTS = 2048
"""Of one request, as in the reference API."""


class PoolingEndpoints:
    """The endpoints that answer with vectors, or with what vectors say."""

    def __init__(self, context: ServerContext) -> None:
        self._context = context
        self._scoring = make_scoring(context.engine.config.model)
        self._embedding_bodies = context.bodies(protocol.EMBEDDING_FIELDS)
        self._score_bodies = context.bodies(protocol.SCORE_FIELDS)
        self._rerank_bodies = context.bodies(protocol.RERANK_FIELDS)
        errors = GENERATION_ERRORS
        self.routes = [
            Route("POST", "/v1/embeddings", self.embeddings, protocol.EmbeddingList, protocol.EMBEDDING_FIELDS, errors),
            Route("POST", "/v1/score", self.score, protocol.ScoreList, protocol.SCORE_FIELDS, errors),
            Route("POST", "/v1/rerank", self.rerank, protocol.Ranking, protocol.RERANK_FIELDS, errors),
            Route("POST", "/rerank", self.rerank, protocol.Ranking, protocol.RERANK_FIELDS, errors),
        ]

    async def embeddings(self, request: Request) -> Response:
        """The vectors of one input or several."""
        asked, exchange = await self._context.accept(request, self._embedding_bodies)
        head, engine_id = self._context.answer_head("embd", asked.model, asked.request_id)
        params = _params(asked).replace(dimensions=asked.dimensions, normalize=asked.normalize)
        texts, lists = split_prompts(asked.input, "input", MAX_INPUTS)
        if "" in texts:
            raise RequestError.at("input", "must not be empty text")
        prompts: list[PoolingPrompt] = [(ids, params) for ids in lists]
        if texts:
            limit = self._limit(params, texts, "input")
            tokenizer = self._context.encoder.tokenizer
            encoded = await self._context.encoder.off_loop(
                sum(map(len, texts)), lambda: [tokenizer.encode_whole(text, limit=limit)[0] for text in texts]
            )
            prompts = [(ids, params) for ids in encoded]
        prepared = await self._prepare(prompts, ["input"] * len(prompts))
        generation = Generation(self._context.engine, engine_id, prepared)
        collector = VectorCollector(head, generation, as_embeddings(asked.encoding_format))
        return CollectedResponse(generation, collector, exchange)

    async def score(self, request: Request) -> Response:
        """How well texts fit each other."""
        asked, exchange = await self._context.accept(request, self._score_bodies)
        head, engine_id = self._context.answer_head("score", asked.model, asked.request_id)
        first = [asked.text_1] if isinstance(asked.text_1, str) else asked.text_1
        second = [asked.text_2] if isinstance(asked.text_2, str) else asked.text_2
        prepared = await self._pairs(first, second, _params(asked), ("text_1", "text_2"))
        generation = Generation(self._context.engine, engine_id, prepared)
        collector = VectorCollector(head, generation, as_scores(self._scoring, len(first)))
        return CollectedResponse(generation, collector, exchange)

    async def rerank(self, request: Request) -> Response:
        """Documents in the order in which they fit a query."""
        asked, exchange = await self._context.accept(request, self._rerank_bodies)
        head, engine_id = self._context.answer_head("rerank", asked.model, asked.request_id)
        if asked.top_n is not None and asked.top_n < 1:
            raise RequestError.at("top_n", f"must be at least 1, not {asked.top_n}")
        documents = [one if isinstance(one, str) else one.text for one in asked.documents]
        prepared = await self._pairs([asked.query], documents, _params(asked), ("query", "documents"))
        generation = Generation(self._context.engine, engine_id, prepared)
        shown = None if asked.return_documents is False else documents
        collector = VectorCollector(head, generation, as_ranking(self._scoring, shown, asked.top_n))
        return CollectedResponse(generation, collector, exchange)

    async def _pairs(
        self, first: list[str], second: list[str], params: PoolingParams, names: tuple[str, str]
    ) -> list[PreparedRequest]:
        check_pairs(first, second, names)
        if len(second) > MAX_INPUTS:
            raise RequestError.at(names[1], f"has {len(second)} entries; at most {MAX_INPUTS} are allowed")
        limit = self._limit(params, first, names[0])
        self._limit(params, second, names[1])
        encoder, tokenizer = self._context.encoder, self._context.encoder.tokenizer
        prompts = await encoder.off_loop(
            sum(map(len, first + second)), lambda: self._scoring.prompts(tokenizer, first, second, params, limit)
        )
        # What is wrong with a prompt is a fault of its text; with one of two texts, of the longer one.
        starts = [params.second_text_at for _, params in prompts]
        blamed = [
            names[index >= len(first) if start is None else len(ids) > 2 * start]
            for index, ((ids, _), start) in enumerate(zip(prompts, starts, strict=True))
        ]
        return await self._prepare(prompts, blamed)

    def _limit(self, params: PoolingParams, texts: list[str], param: str) -> int | None:
        """Tokens that prompts are to be cut to. Where they are not, texts that cannot fit are refused unread."""
        limit = params.cut_to(self._context.max_model_len)
        if limit is None:
            self._context.encoder.check_texts(texts, param)
        return limit

    async def _prepare(self, prompts: list[PoolingPrompt], names: list[str]) -> list[PreparedRequest]:
        """The engine's checks of all prompts, before the first runs. ``names``: the field that each comes from."""
        return [
            await self._context.prepare({"prompt_token_ids": ids, "prompt": None}, params, {"prompt": name})
            for (ids, params), name in zip(prompts, names, strict=True)
        ]


def _params(asked: protocol.PoolingFields) -> PoolingParams:
    return PoolingParams(truncate_prompt_tokens=asked.truncate_prompt_tokens, priority=asked.priority or 0)
