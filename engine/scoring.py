"""Scores of pairs of texts: by a cross-encoder, which reads both, or by the similarity of their vectors."""

from abc import ABC, abstractmethod
from collections.abc import Sequence

import numpy as np

from ..core.errors import RequestError
from ..core.model_config import ModelConfig
from ..core.pooling_params import PoolingParams
from .tokenizer import Tokenizer

PoolingPrompt = tuple[list[int], PoolingParams]
"""Token ids and their parameters."""


class Scoring(ABC):
    """Turns pairs into prompts, and their vectors into scores. ``limit``: tokens that a prompt is cut to, or None."""

    @abstractmethod
    def prompts(
        self, tokenizer: Tokenizer, first: list[str], second: list[str], params: PoolingParams, limit: int | None
    ) -> list[PoolingPrompt]:
        """What to pool for one score for each text of ``second``; ``first`` has as many, or one for all."""

    @abstractmethod
    def scores(self, vectors: Sequence[np.ndarray], num_first: int) -> list[float]:
        """The scores, of the vectors that these prompts (with so many first texts) gave."""


class SimilarityScoring(Scoring):
    """The cosine of the angle between the two vectors, -1 to 1."""

    def prompts(
        self, tokenizer: Tokenizer, first: list[str], second: list[str], params: PoolingParams, limit: int | None
    ) -> list[PoolingPrompt]:
        params = params.replace(normalize=True)
        ids = [tokenizer.encode_whole(text, limit=limit)[0] for text in (*first, *second)]
        return [(one, params) for one in ids]

    def scores(self, vectors: Sequence[np.ndarray], num_first: int) -> list[float]:
        return (np.stack(vectors[:num_first]) * np.stack(vectors[num_first:])).sum(-1).tolist()


class PairScoring(Scoring):
    """What the cross-encoder says of the two texts as one prompt."""

    def prompts(
        self, tokenizer: Tokenizer, first: list[str], second: list[str], params: PoolingParams, limit: int | None
    ) -> list[PoolingPrompt]:
        params = params.replace(normalize=False)  # a length of 1 would be the whole score
        if len(first) == 1:
            first = first * len(second)
        pairs = [tokenizer.encode_whole(*pair, limit) for pair in zip(first, second, strict=True)]
        return [(ids, params.replace(second_text_at=start)) for ids, start in pairs]

    def scores(self, vectors: Sequence[np.ndarray], num_first: int) -> list[float]:
        return [float(vector[0]) for vector in vectors]


def make_scoring(model: ModelConfig) -> Scoring:
    """How this model scores."""
    return PairScoring() if model.pooling.scores_pairs else SimilarityScoring()


def check_pairs(first: list[str], second: list[str], names: tuple[str, str]) -> None:
    """Raises ``RequestError`` unless there is one first text for all, or one for each second one."""
    for texts, name in zip((first, second), names, strict=True):
        if not texts:
            raise RequestError.at(name, "must not be an empty list")
    if len(first) not in (1, len(second)):
        raise RequestError.at(names[0], f"has {len(first)} texts and {names[1]} {len(second)}: give one, or as many")
