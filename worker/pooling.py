"""From hidden states to one vector for each prompt that is to be pooled, also where the prompt comes in chunks."""

from abc import ABC, abstractmethod
from dataclasses import dataclass

import numpy as np
import torch

from ..core.step import Chunk, NewRequest
from .transfer import to_device


@dataclass(slots=True)
class PooledRows:
    """The vectors of one step."""

    slots: list[int]
    vectors: torch.Tensor
    """float32 [P, N], on the device."""


class Pooling(ABC):
    """One way to make vectors, for all requests of a model. Keeps what unfinished prompts have so far."""

    def __init__(self) -> None:
        self._left: dict[int, int] = {}
        """Tokens that a pooling request's slot has yet to compute."""

    @property
    def active(self) -> bool:
        """True while some request pools."""
        return bool(self._left)

    def add(self, new: NewRequest) -> None:
        """A pooling request got a slot."""
        self._left[new.slot] = len(new.token_ids) - new.num_computed_tokens

    def remove(self, slot: int) -> None:
        """Forget a slot, whatever it held."""
        self._left.pop(slot, None)

    def pool(self, hidden: torch.Tensor, bounds: np.ndarray, chunks: list[Chunk]) -> PooledRows | None:
        """The vectors of the prompts that are complete now.

        ``hidden`` is [T, N]; chunk ``i`` is its rows ``bounds[i]:bounds[i + 1]``, on the host. None: there are none.
        """
        rows = [row for row, chunk in enumerate(chunks) if chunk.slot in self._left]
        for row in rows:
            self._left[chunks[row].slot] -= chunks[row].num_tokens
        done = [row for row in rows if self._left[chunks[row].slot] == 0]
        vectors = self._vectors(hidden, bounds, chunks, rows, done)
        slots = [chunks[row].slot for row in done]
        for slot in slots:
            self.remove(slot)
        return PooledRows(slots, vectors) if vectors is not None else None

    @abstractmethod
    def _vectors(
        self, hidden: torch.Tensor, bounds: np.ndarray, chunks: list[Chunk], rows: list[int], done: list[int]
    ) -> torch.Tensor | None:
        """Vectors float32 [len(done), N]; ``rows`` are the chunks of pooling requests, ``done`` those that end one."""


class TokenPooling(Pooling):
    """The state of one token: the last, which in a decoder has seen the whole prompt, or an encoder's first."""

    def __init__(self, last: bool) -> None:
        super().__init__()
        self._last = last

    def _vectors(
        self, hidden: torch.Tensor, bounds: np.ndarray, chunks: list[Chunk], rows: list[int], done: list[int]
    ) -> torch.Tensor | None:
        if not done:
            return None
        at = bounds[1:] - 1 if self._last else bounds[:-1]
        return hidden[to_device(at[done].astype(np.int64), hidden.device)].float()


class MeanPooling(Pooling):
    """The mean of all tokens' states, in float32."""

    def __init__(self) -> None:
        super().__init__()
        self._sums: dict[int, torch.Tensor] = {}
        """Float32 [N] of what was computed of an unfinished prompt."""
        self._lengths: dict[int, int] = {}

    def add(self, new: NewRequest) -> None:
        super().add(new)
        self._lengths[new.slot] = len(new.token_ids)

    def remove(self, slot: int) -> None:
        super().remove(slot)
        self._sums.pop(slot, None)
        self._lengths.pop(slot, None)

    def _vectors(
        self, hidden: torch.Tensor, bounds: np.ndarray, chunks: list[Chunk], rows: list[int], done: list[int]
    ) -> torch.Tensor | None:
        if not rows:
            return None
        lengths = to_device(np.diff(bounds).astype(np.int64), hidden.device)
        states = hidden[int(bounds[0]) :].float()
        sums = torch.segment_reduce(states, "sum", lengths=lengths, axis=0, unsafe=True)  # [len(chunks), N]
        for row in rows:
            slot = chunks[row].slot
            if slot in self._sums:
                sums[row] += self._sums[slot]
            if self._left[slot]:
                self._sums[slot] = sums[row].clone()
        if not done:
            return None
        counts = np.array([[self._lengths[chunks[row].slot]] for row in done], dtype=np.float32)
        return sums[to_device(np.array(done), hidden.device)] / to_device(counts, hidden.device)


def make_pooling(kind: str) -> Pooling:
    """The strategy for a ``PoolingConfig.kind``."""
    return MeanPooling() if kind == "mean" else TokenPooling(last=kind == "last")
