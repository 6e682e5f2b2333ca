"""Sequences that lie one after another in a flat batch, taken together as rows of equal length."""

from dataclasses import dataclass

import numpy as np
import torch

from ..transfer import to_device
from .decode_groups import group_rows


@dataclass(slots=True)
class PaddedGroup:
    """R sequences, padded to N tokens; padding comes last and repeats a sequence's last token."""

    shape: tuple[int, int]
    """(R, N)."""
    places: slice | torch.Tensor
    """Of the R * N tokens in the flat batch: a slice if they lie there in order, else int64 [R * N]."""
    real: torch.Tensor | None
    """int64: which of the R * N are no padding; None if all."""
    mask: torch.Tensor | None
    """bool [R, 1, 1, N], true for what is no padding; None if nothing is."""

    def gather(self, flat: torch.Tensor) -> torch.Tensor:
        """[R, N, ...] of a flat [T, ...]."""
        return flat[self.places].unflatten(0, self.shape)

    def scatter(self, rows: torch.Tensor, out: torch.Tensor) -> None:
        """Put rows [R, N, ...] back to their places in a flat ``out`` [T, ...], without the padding."""
        flat = rows.flatten(0, 1)
        if self.real is None or isinstance(self.places, slice):
            out[self.places] = flat
        else:
            out[self.places[self.real]] = flat[self.real]


def pad_sequences(
    starts: np.ndarray, lengths: np.ndarray, overhead: int, limit: int, device: torch.device
) -> list[PaddedGroup]:
    """Groups of sequences of similar length, which begin at ``starts`` [P] and have ``lengths`` [P] tokens.

    One more group costs as much time as ``overhead`` tokens of padding; ``limit`` is the most tokens, padding included,
    of a group of several.
    """
    groups = []
    for rows in group_rows(lengths, overhead, limit) if len(lengths) else []:
        first, own, longest = starts[rows], lengths[rows], int(lengths[rows].max())
        shape = (len(rows), longest)
        exists = np.arange(longest) < own[:, None]  # [R, N]
        even = bool(exists.all())
        if even and bool((np.diff(first) == longest).all()):
            groups.append(PaddedGroup(shape, slice(int(first[0]), int(first[-1]) + longest), None, None))
            continue
        places = first[:, None] + np.minimum(np.arange(longest), own[:, None] - 1)
        groups.append(
            PaddedGroup(
                shape,
                to_device(places.reshape(-1).astype(np.int64), device),
                None if even else to_device(np.flatnonzero(exists), device),
                None if even else to_device(exists[:, None, None, :], device),
            )
        )
    return groups
