"""Prompts that are computed whole in one step, attended together where each alone would be mostly overhead."""

from dataclasses import dataclass

import numpy as np
import torch

from ...kernels.prompt_attention import prompt_attention
from .decode_groups import group_rows

_GROUP_OVERHEAD_TOKENS = 128
"""One more group costs about as much time as attending this many more tokens of padding."""
_GROUP_LIMIT_TOKENS = 2048
"""Most padded tokens in a group of several prompts: scores of more would leave the cache."""


@dataclass(slots=True)
class PromptGroup:
    """R prompts, padded to N tokens."""

    num_rows: int
    num_tokens: int
    places: slice | torch.Tensor
    """Of the R * N tokens in the flat batch: one slice if nothing is padded, else int64 [R * N], where padding repeats
    a prompt's last token. Padding comes last, so that no real query sees it."""
    real: torch.Tensor | None
    """int64: which of the R * N are no padding; None if all."""

    def attend(
        self,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        scale: float,
        out: torch.Tensor,
        window: int | None,
    ) -> None:
        """Attention of the group's tokens; all are flat [T, heads, D], and ``out`` is filled at the group's places."""
        shape = (self.num_rows, self.num_tokens)
        queries, keys, values = (tensor[self.places].unflatten(0, shape) for tensor in (query, key, value))
        if isinstance(self.places, slice):
            prompt_attention(queries, keys, values, scale, out[self.places].unflatten(0, shape), window)
            return
        result = torch.empty_like(queries)
        prompt_attention(queries, keys, values, scale, result, window)
        result = result.flatten(0, 1)
        if self.real is None:
            out[self.places] = result
        else:
            out[self.places[self.real]] = result[self.real]


def group_prompts(starts: np.ndarray, lengths: np.ndarray, device: torch.device) -> list[PromptGroup]:
    """Groups of whole prompts that begin at ``starts`` [P] in the flat batch and have ``lengths`` [P] tokens."""
    if len(starts) == 0:
        return []
    groups = []
    for rows in group_rows(lengths, _GROUP_OVERHEAD_TOKENS, _GROUP_LIMIT_TOKENS):
        first, own, longest = starts[rows], lengths[rows], int(lengths[rows].max())
        if int(own.min()) == longest and bool((np.diff(first) == longest).all()):
            places: slice | torch.Tensor = slice(int(first[0]), int(first[-1]) + longest)
            groups.append(PromptGroup(len(rows), longest, places, None))
            continue
        offsets = np.minimum(np.arange(longest), own[:, None] - 1)
        real = np.flatnonzero(np.arange(longest) < own[:, None])
        everything = len(real) == len(rows) * longest
        places = torch.from_numpy((first[:, None] + offsets).reshape(-1)).to(device)
        groups.append(
            PromptGroup(len(rows), longest, places, None if everything else torch.from_numpy(real).to(device))
        )
    return groups
