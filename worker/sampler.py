"""Turns logits into tokens.

For each row, in this order: raw log probabilities, grammar, allowed tokens, bad words, min_tokens, logit bias,
penalties, temperature, min_p, top-k, top-p, draw. The steps themselves are in ``kernels.sampling``, along with the
reasons why a row's result never depends on the other rows.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from ..kernels import sampling
from .grammar_rows import RowMasks
from .logprobs import LogprobTensors, drawn_logprobs
from .sampling_batch import AllowedTokens, DrawGroup, SamplingBatch


@dataclass(slots=True, frozen=True)
class SamplerOutput:
    """One step's result, on the device."""

    token_ids: Tensor
    """int64 [S]"""
    logprobs: LogprobTensors | None
    """For the rows that asked; None if none did."""


class Sampler:
    """Draws one token for each row. Holds nothing between steps: the requests' state is in the ``SamplingBatch``."""

    def sample(
        self, logits: Tensor, batch: SamplingBatch, positions: Tensor, masks: RowMasks | None = None
    ) -> SamplerOutput:
        """Draws, and records the tokens in the history of those rows that need it, without waiting for the device.

        ``logits``: [S, V], float32 or what the model computes in; not changed. ``positions``: int64 [S], the number of
        tokens before the one drawn. A request's positions are drawn one after another, each once. Rows at a temperature
        of at most 1e-5 take the best token, the lowest id winning a tie. A row whose tokens are all masked gives token
        0. ``masks``: what grammars allow in this step.
        """
        changed = logits
        if masks is not None or batch.changes_logits:
            changed = self._apply_features(logits.to(torch.float32, copy=True), batch, positions, masks)
        token_ids = self._draw(changed, batch, positions)
        tracked = batch.tracked
        if tracked is not None:
            rows = tracked.rows
            batch.history.record(tracked.host_pool_rows, tracked.pool_rows, positions[rows], token_ids[rows])
        asked = batch.logprobs
        if asked is None:
            return SamplerOutput(token_ids, None)
        logprobs = drawn_logprobs(logits.float(), token_ids, asked.rows, asked.host_rows, asked.counts)
        return SamplerOutput(token_ids, logprobs)

    def _apply_features(
        self, logits: Tensor, batch: SamplingBatch, positions: Tensor, masks: RowMasks | None = None
    ) -> Tensor:
        """Masks, biases and penalties, in place."""
        kept: Tensor | None = None
        if masks is not None:
            sampling.keep_bits(logits, masks.rows, masks.bits)
            if batch.banned is not None or batch.bad_words is not None:
                kept = logits[masks.rows]
        if batch.allowed is not None:
            _keep_allowed(logits, batch.allowed)
        if batch.banned is not None:
            logits[batch.banned.rows, batch.banned.tokens] = -torch.inf
        words = batch.bad_words
        if words is not None:
            tokens = batch.history.tokens
            place = (words.pool_rows, tokens, positions[words.rows], words.output_starts)
            sampling.mask_bad_words(logits, words.rows, words.last, words.prefixes, words.prefix_lengths, *place)
        if masks is not None and kept is not None:
            # Where a grammar leaves nothing but bad words, one of them comes: the shape was promised.
            rows = logits[masks.rows]
            logits[masks.rows] = torch.where(rows.amax(dim=1, keepdim=True) == -torch.inf, kept, rows)
        delayed = batch.delayed
        if delayed is not None:
            sampling.mask_where(logits, delayed.rows, delayed.tokens, positions[delayed.rows] < delayed.starts)
        if batch.biases is not None:
            logits[batch.biases.rows, batch.biases.tokens] += batch.biases.amounts
        self._apply_penalties(logits, batch)
        return logits

    def _apply_penalties(self, logits: Tensor, batch: SamplingBatch) -> None:
        penalties = batch.penalties
        if penalties is None:
            return
        history = batch.history
        past = (history.width(penalties.host_pool_rows), history.tokens, history.counts, history.in_prompt)
        amounts = (penalties.repetition, penalties.frequency, penalties.presence)
        sampling.apply_penalties(logits, penalties.rows, penalties.pool_rows, *past, *amounts)

    def _draw(self, logits: Tensor, batch: SamplingBatch, positions: Tensor) -> Tensor:
        logits = logits.float()  # also for the best token: a CPU compares bfloat16 one by one
        if batch.num_greedy == batch.num_rows:
            return sampling.greedy(logits)
        noise = sampling.uniform(batch.seeds, positions)
        # In a mixture, the best token of every row is cheaper than picking out the greedy rows.
        token_ids = sampling.greedy(logits) if batch.num_greedy else torch.empty_like(positions)
        for group in batch.draws:
            token_ids[group.rows] = _draw_group(logits[group.rows], noise[group.rows], group)
        return token_ids


def _draw_group(logits: Tensor, noise: Tensor, group: DrawGroup) -> Tensor:
    """Draws for the group's own rows: ``logits`` [N, V], ``noise`` [N]."""
    scaled = logits / group.temperature[:, None]
    if group.filters:
        return sampling.draw_filtered(scaled, noise, group.min_p, group.top_k, group.top_p, group.width)
    return sampling.draw_plain(scaled, noise, group.min_p)


def _keep_allowed(logits: Tensor, allowed: AllowedTokens) -> None:
    """Masks all tokens of the rows except for the pairs, in place: saves those, clears the rows, puts them back."""
    kept = logits[allowed.entry_rows, allowed.entry_tokens]
    logits[allowed.rows] = -torch.inf
    logits[allowed.entry_rows, allowed.entry_tokens] = kept


def make_sampler(device: torch.device) -> Sampler:
    """The sampler for a device."""
    if device.type != "cuda":
        return Sampler()
    from .fused_sampler import FusedSampler  # needs Triton, which comes with a CUDA build of torch

    return FusedSampler()
