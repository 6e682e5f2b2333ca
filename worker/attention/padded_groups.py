"""Sequences that lie one after another in a flat batch, taken together as rows of equal length."""

from dataclasses import dataclass

import numpy as np
import torch

from ..transfer import to_device


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


def group_rows(sizes: np.ndarray, overhead: int, limit: int) -> list[np.ndarray]:
    """Divide rows of ``sizes`` [R] into groups of similar size.

    A group costs its padded size (rows times the largest) plus ``overhead``: long rows go apart from short ones when
    the padding saved outweighs one more pass. No group of several rows is over ``limit`` padded. Returns row indices;
    rows that stay in one group keep their order.
    """
    rows = np.arange(len(sizes))
    if len(sizes) * int(sizes.max()) <= min(int(sizes.sum()) + overhead, limit):
        return [rows]
    order = np.argsort(sizes, kind="stable")
    ranges = _split(sizes[order], 0, len(sizes), overhead)
    groups: list[np.ndarray] = []
    for start, stop in ranges:
        most = max(1, limit // int(sizes[order[stop - 1]]))
        groups.extend(order[at : min(at + most, stop)] for at in range(start, stop, most))
    return groups


def _split(ordered: np.ndarray, start: int, stop: int, overhead: int) -> list[tuple[int, int]]:
    """Cut the ascending sizes ``start:stop`` in two where that saves most, and each part again, while it saves."""
    todo, done = [(start, stop)], []
    while todo:
        start, stop = todo.pop()
        part = ordered[start:stop]
        before = np.arange(1, len(part))  # rows in the first part
        two = before * part[:-1] + (len(part) - before) * part[-1] + overhead
        if len(two) == 0 or int(two.min()) >= len(part) * int(part[-1]):
            done.append((start, stop))
            continue
        cut = start + int(two.argmin()) + 1
        todo += [(start, cut), (cut, stop)]
    return done
