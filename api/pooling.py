"""What the vectors of a request become: embeddings, scores, or a ranking."""

import base64
from collections.abc import Callable

import msgspec
import numpy as np

from ..core.errors import RequestFailedError
from ..engine.scoring import Scoring
from . import pooling_protocol as protocol
from .dialect import AnswerHead
from .generation import ChoiceDelta, Event, Generation

Translation = Callable[[AnswerHead, list[np.ndarray], protocol.PoolingUsage], msgspec.Struct]
"""Makes the answer of all vectors, float32, in the order of the prompts."""


class VectorCollector:
    """``Collector`` that waits for the vector of every prompt."""

    def __init__(self, head: AnswerHead, generation: Generation, translation: Translation) -> None:
        self._head = head
        self._translation = translation
        self._usage = protocol.PoolingUsage(generation.num_prompt_tokens, generation.num_prompt_tokens)
        self._vectors: list[np.ndarray | None] = [None] * len(generation.prompts)

    def add(self, events: list[Event]) -> None:
        """See ``Collector``."""
        for event in events:
            if isinstance(event, ChoiceDelta):
                self._vectors[event.prompt_index] = event.vector

    def answer(self) -> msgspec.Struct:
        """See ``Collector``. Raises ``RequestFailedError`` if a vector is missing."""
        whole = [vector for vector in self._vectors if vector is not None]
        if len(whole) < len(self._vectors):
            raise RequestFailedError("the request was aborted")
        return self._translation(self._head, whole, self._usage)


def as_embeddings(encoding_format: str | None) -> Translation:
    """The vectors themselves."""
    encoded = _base64 if encoding_format == "base64" else np.ndarray.tolist

    def answer(head: AnswerHead, vectors: list[np.ndarray], usage: protocol.PoolingUsage) -> protocol.EmbeddingList:
        data = [protocol.Embedding(index=index, embedding=encoded(vector)) for index, vector in enumerate(vectors)]
        return protocol.EmbeddingList(data=data, model=head.model, usage=usage)

    return answer


def as_scores(scoring: Scoring, num_first: int) -> Translation:
    """One score for each pair of texts, in the order of the second ones."""

    def answer(head: AnswerHead, vectors: list[np.ndarray], usage: protocol.PoolingUsage) -> protocol.ScoreList:
        found = scoring.scores(vectors, num_first)
        data = [protocol.Score(index=index, score=score) for index, score in enumerate(found)]
        return protocol.ScoreList(id=head.id, created=head.created, model=head.model, data=data, usage=usage)

    return answer


def as_ranking(scoring: Scoring, texts: list[str] | None, top_n: int | None) -> Translation:
    """The documents by their score, the best first, equal ones in the order of the request; with ``texts``, if any."""

    def answer(head: AnswerHead, vectors: list[np.ndarray], usage: protocol.PoolingUsage) -> protocol.Ranking:
        found = scoring.scores(vectors, 1)
        order = sorted(range(len(found)), key=lambda index: -found[index])[:top_n]
        results = [protocol.RankedDocument(index=index, relevance_score=found[index]) for index in order]
        if texts is not None:
            for result in results:
                result.document = protocol.RerankDocument(texts[result.index])
        return protocol.Ranking(id=head.id, model=head.model, results=results, usage=usage)

    return answer


def _base64(vector: np.ndarray) -> str:
    return base64.b64encode(vector.astype("<f4").tobytes()).decode("ascii")
