"""Log probabilities of drawn tokens and of prompt tokens, on the device and as compact host data."""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from ..kernels.sampling import rows_at_once, token_logprobs

RowLogprobs = tuple[list[int], list[float], int]
"""One row: token ids and their log probabilities, the given token first and then the best, best first; and the rank
of the given token, 1 for the best."""


@dataclass(slots=True, frozen=True)
class LogprobTensors:
    """Log probabilities of N rows, of the model's own distribution: before masks, bias, penalties and temperature.

    Tokens are ordered by logit, then the lower id; ``best_ids`` has as many columns as the row that asked for most.
    """

    rows: np.ndarray
    """Host, int64 [N]: which row of the batch each is."""
    counts: np.ndarray
    """Host, int64 [N]: how many of the best tokens each row asked for."""
    token_ids: Tensor
    """int64 [N]: the drawn (or given) tokens."""
    logprobs: Tensor
    """float32 [N]"""
    ranks: Tensor
    """int64 [N]"""
    best_ids: Tensor
    """int64 [N, K]"""
    best_logprobs: Tensor
    """float32 [N, K]"""

    def to_host(self, non_blocking: bool = False) -> "LogprobTensors":
        """The same on the CPU. With ``non_blocking`` the caller waits for its stream before reading."""
        tensors = (self.token_ids, self.logprobs, self.ranks, self.best_ids, self.best_logprobs)
        copies = [tensor.to("cpu", non_blocking=non_blocking) for tensor in tensors]
        return LogprobTensors(self.rows, self.counts, *copies)

    def compact(self) -> list[RowLogprobs]:
        """One entry per row, in the order of ``rows``, each with exactly as many best tokens as it asked for."""
        ids = torch.cat((self.token_ids[:, None], self.best_ids), dim=1).tolist()
        values = torch.cat((self.logprobs[:, None], self.best_logprobs), dim=1).tolist()
        entries = zip(ids, values, self.ranks.tolist(), self.counts.tolist(), strict=True)
        return [(row_ids[: k + 1], row_values[: k + 1], rank) for row_ids, row_values, rank, k in entries]


def drawn_logprobs(
    logits: Tensor, token_ids: Tensor, rows: Tensor | None, host_rows: np.ndarray, counts: np.ndarray
) -> LogprobTensors:
    """Log probabilities for some rows of a step's raw logits (float32 [S, V]) and drawn tokens (int64 [S]).

    ``host_rows`` int64 [N] are those rows, ``rows`` the same on the device, or None for all; ``counts`` int64 [N].
    """
    if rows is not None:
        logits, token_ids = logits[rows], token_ids[rows]
    return LogprobTensors(host_rows, counts, token_ids, *_by_chunks(logits, token_ids, int(counts.max())))


def prompt_logprobs(logits: Tensor, targets: Tensor, count: int) -> LogprobTensors:
    """The same for P prompt positions: row p is about ``targets[p]``, given what came before it.

    ``logits``: float32 [P, V], untouched; ``targets``: int64 [P]; ``count``: best tokens wanted at each, V at most
    being given. Beside the logits only little memory is taken, whatever P.
    """
    count = min(count, logits.shape[1])
    rows = np.arange(len(targets))
    return LogprobTensors(rows, np.full(len(targets), count), targets, *_by_chunks(logits, targets, count))


def _by_chunks(logits: Tensor, tokens: Tensor, count: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """``token_logprobs`` of many rows."""
    size = rows_at_once(logits.shape[1], logits.device)
    chunks = zip(logits.split(size), tokens.split(size), strict=True)
    parts = [token_logprobs(part, ids, count) for part, ids in chunks]
    logprobs, ranks, best_ids, best_logprobs = zip(*parts, strict=True)
    return torch.cat(logprobs), torch.cat(ranks), torch.cat(best_ids), torch.cat(best_logprobs)
