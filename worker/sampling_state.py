"""The sampling parameters of all running requests, by slot, and the batches made from them."""

from collections.abc import Callable, Mapping, Sequence

import numpy as np
import torch
from torch import Tensor

from ..core.sampling_params import SamplingParams
from ..kernels.sampling import CANDIDATES, rows_at_once
from .sampling_batch import (
    AllowedTokens,
    BadWords,
    BannedTokens,
    DelayedTokens,
    DrawGroup,
    LogprobRows,
    Penalties,
    RowParameters,
    SamplingBatch,
    TokenBiases,
    TrackedRows,
)
from .token_history import TokenHistory
from .transfer import to_device

GREEDY_TEMPERATURE = 1e-5
"""Temperatures up to this one are greedy: dividing by less would turn logits into infinities."""

# A repetition penalty that float32 rounds to 0 would make NaN of a masked logit.
_LEAST_REPETITION = 1e-30


class SamplingState:
    """Sampling parameters of the requests in slots ``0..num_slots - 1``.

    Plain numbers lie in arrays by slot; lists only exist for the slots that have them. ``batch`` gathers what one set
    of rows needs into tensors and keeps it while neither the rows nor their requests change, so steady decode does
    nothing per request here.
    """

    def __init__(self, num_slots: int, vocab_size: int, max_model_len: int, device: torch.device) -> None:
        self._vocab_size = vocab_size
        self._device = device
        self._seed = np.zeros(num_slots, np.int64)
        self._greedy = np.ones(num_slots, np.bool_)
        self._temperature = np.ones(num_slots, np.float32)
        self._min_p = np.zeros(num_slots, np.float32)
        self._top_k = np.full(num_slots, vocab_size, np.int64)
        self._top_p = np.ones(num_slots, np.float64)
        self._num_prompt = np.zeros(num_slots, np.int64)
        self._logprobs = np.full(num_slots, -1, np.int64)
        self._pool_row = np.full(num_slots, -1, np.int64)
        self._allowed: dict[int, np.ndarray] = {}
        self._banned: dict[int, np.ndarray] = {}
        self._bad_words: dict[int, list[list[int]]] = {}
        self._delayed: dict[int, tuple[np.ndarray, int]] = {}
        self._biases: dict[int, tuple[np.ndarray, np.ndarray]] = {}
        self._penalties: dict[int, tuple[float, float, float]] = {}
        self._history = TokenHistory(vocab_size, max_model_len, device)
        self._batch: SamplingBatch | None = None
        self._batch_slots = np.zeros(0, np.int64)
        self._in_batch = np.zeros(num_slots, np.bool_)

    def add(
        self,
        slot: int,
        params: SamplingParams,
        *,
        seed: int,
        prompt_token_ids: Sequence[int] | np.ndarray,
        output_token_ids: Sequence[int] | np.ndarray,
        stop_token_ids: Sequence[int],
        bad_words: Sequence[Sequence[int]],
    ) -> None:
        """Puts a request into ``slot``, in place of what was there.

        ``seed`` is any integer of 64 bits, signed or not. ``output_token_ids`` are those it already has (after a
        preemption or a crash). ``stop_token_ids`` cannot be drawn before ``min_tokens`` tokens are out; ``bad_words``
        holds the token ids of each way to write a bad word. Token ids outside the vocabulary were refused at the door;
        in the lists of masks and biases they would be ignored.
        """
        self.remove(slot)
        self._seed[slot] = (seed + 2**63) % 2**64 - 2**63
        self._greedy[slot] = params.temperature <= GREEDY_TEMPERATURE
        self._temperature[slot] = params.temperature
        self._min_p[slot] = params.min_p
        self._top_k[slot] = min(params.top_k, self._vocab_size) if params.top_k > 0 else self._vocab_size
        self._top_p[slot] = params.top_p
        self._num_prompt[slot] = len(prompt_token_ids)
        self._logprobs[slot] = -1 if params.logprobs is None else min(params.logprobs, self._vocab_size)
        self._add_masks(slot, params, stop_token_ids, bad_words)
        repetition = max(params.repetition_penalty, _LEAST_REPETITION)
        penalties = (repetition, params.frequency_penalty, params.presence_penalty)
        if penalties != (1.0, 0.0, 0.0):
            self._penalties[slot] = penalties
        if slot in self._penalties or slot in self._bad_words:
            prompt, output = np.asarray(prompt_token_ids, np.int64), np.asarray(output_token_ids, np.int64)
            self._pool_row[slot] = self._history.take(prompt, output)

    def remove(self, slot: int) -> None:
        """Empties ``slot``; nothing happens if it is empty."""
        if self._in_batch[slot]:
            self._forget_batch()
        if self._pool_row[slot] >= 0:
            self._history.release(int(self._pool_row[slot]))
            self._pool_row[slot] = -1
        for feature in (self._allowed, self._banned, self._bad_words, self._delayed, self._biases, self._penalties):
            feature.pop(slot, None)

    def batch(self, slots: np.ndarray) -> SamplingBatch:
        """What the sampler needs for these distinct slots [S], in this order of rows."""
        if self._batch is None or not np.array_equal(slots, self._batch_slots):
            self._forget_batch()
            self._batch_slots = np.array(slots, np.int64)
            self._in_batch[self._batch_slots] = True
            self._batch = self._build(self._batch_slots)
        return self._batch

    def _forget_batch(self) -> None:
        self._in_batch[self._batch_slots] = False
        self._batch = None

    def _add_masks(
        self, slot: int, params: SamplingParams, stop_token_ids: Sequence[int], bad_words: Sequence[Sequence[int]]
    ) -> None:
        if params.allowed_token_ids is not None:
            self._allowed[slot] = self._known_ids(params.allowed_token_ids)
        single = self._known_ids([word[0] for word in bad_words if len(word) == 1])
        if len(single):
            self._banned[slot] = single
        longer = [list(word) for word in bad_words if len(word) > 1 and 0 <= word[-1] < self._vocab_size]
        if longer:
            self._bad_words[slot] = longer
        if params.min_tokens > 0 and stop_token_ids:
            start = int(self._num_prompt[slot]) + params.min_tokens
            self._delayed[slot] = (self._known_ids(stop_token_ids), start)
        if params.logit_bias:
            tokens = self._known_ids(list(params.logit_bias))
            amounts = np.array([params.logit_bias[int(token)] for token in tokens], np.float32)
            self._biases[slot] = (tokens, amounts)

    def _known_ids(self, ids: Sequence[int]) -> np.ndarray:
        """The distinct ids that are in the vocabulary, int64."""
        distinct = np.unique(np.array(ids, np.int64))
        return distinct[(distinct >= 0) & (distinct < self._vocab_size)]

    def _build(self, slots: np.ndarray) -> SamplingBatch:
        greedy = self._greedy[slots]
        filters = (self._top_k[slots] < self._vocab_size) | (self._top_p[slots] < 1.0)
        return SamplingBatch(
            num_rows=len(slots),
            seeds=self._tensor(self._seed[slots]),
            num_greedy=int(greedy.sum()),
            draws=tuple(self._draw_groups(slots, ~greedy & ~filters) + self._draw_groups(slots, ~greedy & filters)),
            row_parameters=RowParameters(
                temperature=self._tensor(self._temperature[slots]),
                top_k=self._tensor(self._top_k[slots]),
                top_p=self._tensor(self._top_p[slots]),
                min_p=self._tensor(self._min_p[slots]),
            ),
            allowed=self._build_allowed(slots),
            banned=self._build_banned(slots),
            bad_words=self._build_bad_words(slots),
            delayed=self._build_delayed(slots),
            biases=self._build_biases(slots),
            penalties=self._build_penalties(slots),
            tracked=self._build_tracked(slots),
            logprobs=self._build_logprobs(slots),
            history=self._history,
        )

    def _draw_groups(self, slots: np.ndarray, members: np.ndarray) -> list[DrawGroup]:
        rows = members.nonzero()[0]
        size = rows_at_once(self._vocab_size, self._device)
        return [self._draw_group(slots, rows[start : start + size]) for start in range(0, len(rows), size)]

    def _draw_group(self, slots: np.ndarray, rows: np.ndarray) -> DrawGroup:
        group = slots[rows]
        min_p, top_k, top_p = self._min_p[group], self._top_k[group], self._top_p[group]
        first, last = int(rows[0]), int(rows[-1])
        return DrawGroup(
            # Neighbours are taken as a view of the logits; others have to be copied.
            rows=slice(first, last + 1) if last - first == len(rows) - 1 else self._tensor(rows),
            temperature=self._tensor(self._temperature[group]),
            min_p=self._tensor(min_p) if min_p.any() else None,
            filters=bool((top_k < self._vocab_size).any() or (top_p < 1.0).any()),
            top_k=self._tensor(top_k),
            top_p=self._tensor(top_p),
            width=_width(int(top_k.max())),
        )

    def _build_allowed(self, slots: np.ndarray) -> AllowedTokens | None:
        rows = _rows_with(slots, self._allowed)
        if not rows:
            return None
        entry_rows, entry_tokens = self._pairs(slots, rows, lambda slot: self._allowed[slot])
        return AllowedTokens(self._tensor(np.array(rows)), entry_rows, entry_tokens)

    def _build_banned(self, slots: np.ndarray) -> BannedTokens | None:
        rows = _rows_with(slots, self._banned)
        return BannedTokens(*self._pairs(slots, rows, lambda slot: self._banned[slot])) if rows else None

    def _build_delayed(self, slots: np.ndarray) -> DelayedTokens | None:
        rows = _rows_with(slots, self._delayed)
        if not rows:
            return None
        entry_rows, tokens = self._pairs(slots, rows, lambda slot: self._delayed[slot][0])
        starts = [np.full(len(ids), start) for ids, start in (self._delayed[int(slots[row])] for row in rows)]
        return DelayedTokens(entry_rows, tokens, self._tensor(np.concatenate(starts)))

    def _build_biases(self, slots: np.ndarray) -> TokenBiases | None:
        rows = _rows_with(slots, self._biases)
        if not rows:
            return None
        entry_rows, tokens = self._pairs(slots, rows, lambda slot: self._biases[slot][0])
        amounts = np.concatenate([self._biases[int(slots[row])][1] for row in rows])
        return TokenBiases(entry_rows, tokens, self._tensor(amounts))

    def _build_bad_words(self, slots: np.ndarray) -> BadWords | None:
        words = [(row, word) for row in _rows_with(slots, self._bad_words) for word in self._bad_words[int(slots[row])]]
        if not words:
            return None
        rows = np.array([row for row, _ in words])
        lengths = np.array([len(word) - 1 for _, word in words])
        prefixes = np.zeros((len(words), int(lengths.max())), np.int32)
        for prefix, (_, word) in zip(prefixes, words, strict=True):
            prefix[: len(word) - 1] = word[-2::-1]
        return BadWords(
            rows=self._tensor(rows),
            last=self._tensor(np.array([word[-1] for _, word in words])),
            prefixes=self._tensor(prefixes),
            prefix_lengths=self._tensor(lengths),
            pool_rows=self._tensor(self._pool_row[slots[rows]]),
            output_starts=self._tensor(self._num_prompt[slots[rows]]),
        )

    def _build_penalties(self, slots: np.ndarray) -> Penalties | None:
        rows = _rows_with(slots, self._penalties)
        if not rows:
            return None
        values = np.array([self._penalties[int(slots[row])] for row in rows], np.float32)
        pool_rows = self._pool_row[slots[rows]]
        repetition, frequency, presence = (self._tensor(np.ascontiguousarray(column)) for column in values.T)
        return Penalties(
            rows=self._tensor(np.array(rows)),
            pool_rows=self._tensor(pool_rows),
            host_pool_rows=pool_rows,
            repetition=repetition,
            frequency=frequency,
            presence=presence,
        )

    def _build_tracked(self, slots: np.ndarray) -> TrackedRows | None:
        rows = (self._pool_row[slots] >= 0).nonzero()[0]
        if not len(rows):
            return None
        pool_rows = self._pool_row[slots[rows]]
        return TrackedRows(self._tensor(rows), self._tensor(pool_rows), pool_rows)

    def _build_logprobs(self, slots: np.ndarray) -> LogprobRows | None:
        rows = (self._logprobs[slots] >= 0).nonzero()[0]
        if not len(rows):
            return None
        everyone = len(rows) == len(slots)
        return LogprobRows(None if everyone else self._tensor(rows), rows, self._logprobs[slots[rows]])

    def _pairs(self, slots: np.ndarray, rows: list[int], ids: Callable[[int], np.ndarray]) -> tuple[Tensor, Tensor]:
        """Row and token of each id that the slots of ``rows`` have, as two int64 tensors."""
        lists = [ids(int(slots[row])) for row in rows]
        entry_rows = np.repeat(np.array(rows, np.int64), [len(tokens) for tokens in lists])
        return self._tensor(entry_rows), self._tensor(np.concatenate(lists))

    def _tensor(self, array: np.ndarray) -> Tensor:
        return to_device(np.ascontiguousarray(array), self._device)


def _rows_with(slots: np.ndarray, feature: Mapping[int, object]) -> list[int]:
    """Rows whose slot has the feature."""
    return [row for row, slot in enumerate(slots.tolist()) if slot in feature] if feature else []


def _width(top_k: int) -> int | None:
    """How many best tokens to look at for this largest top_k: few sizes, so that device memory is reused."""
    widths = (16, 64, CANDIDATES)
    return next((width for width in widths if top_k <= width), None)
