"""What the sampler needs to know about one set of rows: index and value tensors, built once and used for many steps.

Features that no row of the batch uses are None. Rows are rows of the batch's logits; all tensors are on the device.
"""

from dataclasses import dataclass

import numpy as np
from torch import Tensor

from .token_history import TokenHistory


@dataclass(slots=True, frozen=True)
class DrawGroup:
    """N rows that are drawn by one call, in the same way; at most ``kernels.sampling.rows_at_once``."""

    rows: Tensor | slice
    """int64 [N], or the slice of neighbouring rows."""
    temperature: Tensor
    """float32 [N]"""
    min_p: Tensor | None
    """float32 [N]"""
    filters: bool
    """Each row has a top-k or top-p; otherwise it is drawn from its whole softmax."""
    top_k: Tensor
    """int64 [N], 1 to V; V keeps all."""
    top_p: Tensor
    """float64 [N]"""
    width: int | None
    """A bound of every top_k, if it is at most ``kernels.sampling.CANDIDATES``."""


@dataclass(slots=True, frozen=True)
class RowParameters:
    """How each of the S rows is drawn, for kernels that take all rows in one launch."""

    temperature: Tensor
    """float32 [S]"""
    top_k: Tensor
    """int64 [S], 1 to V; V keeps all."""
    top_p: Tensor
    """float64 [S]"""
    min_p: Tensor
    """float32 [S]"""


@dataclass(slots=True, frozen=True)
class AllowedTokens:
    """For the distinct ``rows``, only the pairs (entry row, entry token) may be drawn."""

    rows: Tensor
    entry_rows: Tensor
    entry_tokens: Tensor


@dataclass(slots=True, frozen=True)
class BannedTokens:
    """Pairs that may never be drawn."""

    rows: Tensor
    tokens: Tensor


@dataclass(slots=True, frozen=True)
class DelayedTokens:
    """Pairs that may not be drawn at positions below ``starts`` (min_tokens)."""

    rows: Tensor
    tokens: Tensor
    starts: Tensor


@dataclass(slots=True, frozen=True)
class TokenBiases:
    """Amounts added to logits, float32; the pairs are distinct."""

    rows: Tensor
    tokens: Tensor
    amounts: Tensor


@dataclass(slots=True, frozen=True)
class BadWords:
    """Words of several tokens; see ``kernels.sampling.mask_bad_words`` for the fields."""

    rows: Tensor
    last: Tensor
    prefixes: Tensor
    prefix_lengths: Tensor
    pool_rows: Tensor
    output_starts: Tensor


@dataclass(slots=True, frozen=True)
class Penalties:
    """Rows with penalties and their rows in the history's pool; the penalties are float32."""

    rows: Tensor
    pool_rows: Tensor
    host_pool_rows: np.ndarray
    repetition: Tensor
    frequency: Tensor
    presence: Tensor


@dataclass(slots=True, frozen=True)
class TrackedRows:
    """Rows whose drawn tokens go into the history."""

    rows: Tensor
    pool_rows: Tensor
    host_pool_rows: np.ndarray


@dataclass(slots=True, frozen=True)
class LogprobRows:
    """Rows that asked for log probabilities, and how many of the best each asked for."""

    rows: Tensor | None
    """int64 [N]; None when that is every row."""
    host_rows: np.ndarray
    counts: np.ndarray


@dataclass(slots=True, frozen=True)
class SamplingBatch:
    """Everything about S rows that does not change from step to step."""

    num_rows: int
    seeds: Tensor
    """int64 [S]"""
    num_greedy: int
    draws: tuple[DrawGroup, ...]
    """The rows that are not greedy."""
    row_parameters: RowParameters
    allowed: AllowedTokens | None
    banned: BannedTokens | None
    bad_words: BadWords | None
    delayed: DelayedTokens | None
    biases: TokenBiases | None
    penalties: Penalties | None
    tracked: TrackedRows | None
    logprobs: LogprobRows | None
    history: TokenHistory

    @property
    def changes_logits(self) -> bool:
        """True if a mask, bias or penalty applies to some row."""
        features = (self.allowed, self.banned, self.bad_words, self.delayed, self.biases, self.penalties)
        return any(feature is not None for feature in features)
