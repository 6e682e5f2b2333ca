"""Bodies and answers of ``/v1/embeddings``, ``/v1/score`` and ``/v1/rerank``."""

from typing import Literal

import msgspec
from msgspec import UNSET, UnsetType

from .fields import SHARED_WITHOUT_EFFECT, EndpointFields, whatever


class PoolingFields(msgspec.Struct, kw_only=True):
    """Fields that the three endpoints share."""

    model: str | None = None
    truncate_prompt_tokens: int | None = None
    """Cut longer texts to so many tokens; -1: to what the model takes. Without it they are refused."""
    priority: int | None = None
    request_id: str | None = None


class EmbeddingRequest(PoolingFields, kw_only=True):
    """``POST /v1/embeddings``."""

    input: str | list[str | int | list[int]]
    """A text, a list of texts, a list of token ids, or a list of lists of token ids."""
    encoding_format: Literal["float", "base64"] | None = None
    """``base64``: the numbers as little-endian float32."""
    dimensions: int | None = None
    """Only the first so many numbers, where the model was trained for it."""
    normalize: bool | None = None
    """False: leave the length of the vectors as the model makes it."""


class ScoreRequest(PoolingFields, kw_only=True):
    """``POST /v1/score``: one score for each pair."""

    text_1: str | list[str]
    """One text for all of ``text_2``, or one for each."""
    text_2: str | list[str]


class RerankDocument(msgspec.Struct):
    """A document with its text."""

    text: str


class RerankRequest(PoolingFields, kw_only=True):
    """``POST /v1/rerank``: documents in the order in which they fit a query."""

    query: str
    documents: list[str | RerankDocument]
    top_n: int | None = None
    """How many to return; without it, all."""
    return_documents: bool | None = None
    """False: only indices and scores."""


class PoolingUsage(msgspec.Struct):
    """Token counts."""

    prompt_tokens: int
    total_tokens: int


class Embedding(msgspec.Struct, kw_only=True):
    """The vector of one input."""

    object: str = "embedding"
    index: int
    embedding: list[float] | str


class EmbeddingList(msgspec.Struct, kw_only=True):
    """The answer of ``/v1/embeddings``."""

    object: str = "list"
    data: list[Embedding]
    model: str
    usage: PoolingUsage


class Score(msgspec.Struct, kw_only=True):
    """The score of one pair."""

    object: str = "score"
    index: int
    score: float


class ScoreList(msgspec.Struct, kw_only=True):
    """The answer of ``/v1/score``."""

    id: str
    object: str = "list"
    created: int
    model: str
    data: list[Score]
    usage: PoolingUsage


class RankedDocument(msgspec.Struct, kw_only=True):
    """A document's place in the request, and how well it fits."""

    index: int
    document: RerankDocument | UnsetType = UNSET
    relevance_score: float


class Ranking(msgspec.Struct, kw_only=True):
    """The answer of ``/v1/rerank``: the best document first."""

    id: str
    model: str
    results: list[RankedDocument]
    usage: PoolingUsage


_REFUSED = {"softmax": (False,), "activation": (True,), "use_activation": (True,), "mm_processor_kwargs": ({},)}
EMBEDDING_FIELDS = EndpointFields(
    EmbeddingRequest,
    SHARED_WITHOUT_EFFECT,
    _REFUSED
    | {"messages": (), "embed_dtype": ("float32",), "endianness": ("native", "little"), "add_special_tokens": (True,)},
)
SCORE_FIELDS = EndpointFields(ScoreRequest, SHARED_WITHOUT_EFFECT, _REFUSED)
RERANK_FIELDS = EndpointFields(
    RerankRequest,
    SHARED_WITHOUT_EFFECT,
    _REFUSED | whatever("rank_fields max_chunks_per_doc max_tokens_per_doc"),
)
