"""What the vectors of a request become: embeddings, scores, or a ranking."""

import base64
from abc import ABC, abstractmethod

import msgspec
import numpy as np

from ..core.errors import RequestFailedError
from ..engine.scoring import Scoring
from . import pooling_protocol as protocol
from .dialect import AnswerHead
from .generation import ChoiceDelta, Event, Generation


class VectorCollector(ABC):
    """``Collector`` that waits for the vector of every prompt."""

    def __init__(self, head: AnswerHead, generation: Generation) -> None:
        self.head = head
        self._generation = generation
        self._vectors: list[np.ndarray | None] = [None] * len(generation.prompts)

    def add(self, events: list[Event]) -> None:
        """See ``Collector``."""
        for event in events:
            if isinstance(event, ChoiceDelta):
                self._vectors[event.prompt_index] = event.vector

    @property
    def vectors(self) -> list[np.ndarray]:
        """All vectors, float32, in the order of the prompts. Raises ``RequestFailedError`` if one is missing."""
        whole = [vector for vector in self._vectors if vector is not None]
        if len(whole) < len(self._vectors):
            raise RequestFailedError("the request was aborted")
        return whole

    @property
    def usage(self) -> protocol.PoolingUsage:
        """Token counts."""
        return protocol.PoolingUsage(self._generation.num_prompt_tokens, self._generation.num_prompt_tokens)

    @abstractmethod
    def answer(self) -> msgspec.Struct:
        """See ``Collector``."""


class EmbeddingCollector(VectorCollector):
    """The vectors themselves."""

    def __init__(self, head: AnswerHead, generation: Generation, encoding_format: str | None) -> None:
        super().__init__(head, generation)
        self._encoded = _base64 if encoding_format == "base64" else np.ndarray.tolist

    def answer(self) -> protocol.EmbeddingList:
        data = [
            protocol.Embedding(index=index, embedding=self._encoded(vector))
            for index, vector in enumerate(self.vectors)
        ]
        return protocol.EmbeddingList(data=data, model=self.head.model, usage=self.usage)


class ScoreCollector(VectorCollector):
    """One score for each pair of texts."""

    def __init__(self, head: AnswerHead, generation: Generation, scoring: Scoring, num_first: int) -> None:
        super().__init__(head, generation)
        self._scoring = scoring
        self._num_first = num_first

    @property
    def scores(self) -> list[float]:
        """The scores, in the order of the second texts."""
        return self._scoring.scores(self.vectors, self._num_first)

    def answer(self) -> protocol.ScoreList | protocol.Ranking:
        data = [protocol.Score(index=index, score=score) for index, score in enumerate(self.scores)]
        head = self.head
        return protocol.ScoreList(id=head.id, created=head.created, model=head.model, data=data, usage=self.usage)


class RankingCollector(ScoreCollector):
    """The documents by their score, the best first, equal ones in the order of the request."""

    def __init__(
        self, head: AnswerHead, generation: Generation, scoring: Scoring, documents: list[str] | int, top_n: int | None
    ) -> None:
        """``documents``: their texts, or how many there are, where none are to be returned."""
        super().__init__(head, generation, scoring, num_first=1)
        self._documents = documents
        self._top_n = top_n

    def answer(self) -> protocol.Ranking:
        scores, texts = self.scores, self._documents
        order = sorted(range(len(scores)), key=lambda index: -scores[index])[: self._top_n]
        results = [protocol.RankedDocument(index=index, relevance_score=scores[index]) for index in order]
        if not isinstance(texts, int):
            for result in results:
                result.document = protocol.RerankDocument(texts[result.index])
        return protocol.Ranking(id=self.head.id, model=self.head.model, results=results, usage=self.usage)


def _base64(vector: np.ndarray) -> str:
    return base64.b64encode(vector.astype("<f4").tobytes()).decode("ascii")
