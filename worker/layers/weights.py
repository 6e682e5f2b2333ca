"""How a layer tells the loader which checkpoint tensors it wants, and which part of each."""

from dataclasses import dataclass

import torch


@dataclass(frozen=True, slots=True)
class Shard:
    """One tensor-parallel rank's place: it holds part ``rank`` of ``size`` of each layer that is cut."""

    rank: int = 0
    size: int = 1

    def cut(self, total: int) -> tuple[int, int]:
        """(start, length) of this rank's part of ``total`` equal units, whose number the size divides."""
        length = total // self.size
        return self.rank * length, length


@dataclass(frozen=True, slots=True)
class WeightSlot:
    """A place for one checkpoint tensor: a view into a parameter, and the part of the tensor that belongs there."""

    name: str
    """The tensor's name in the checkpoint."""
    shape: tuple[int, ...]
    """Its shape there."""
    destination: torch.Tensor
    cut_dim: int | None = None
    """Dimension that tensor-parallel ranks divide; None if each holds the whole, broadcast where it is smaller."""
    start: int = 0
    """The part is ``start : start + destination.shape[cut_dim]`` of that dimension."""
    dummy_center: float = 0.0
    dummy_spread: float = 0.0
    """A dummy weight is drawn uniformly from center - spread to center + spread."""

    def fill(self, tensor: torch.Tensor) -> None:
        """Copy this rank's part of ``tensor`` (of shape ``self.shape``) in, converting its dtype."""
        if self.cut_dim is not None:
            tensor = tensor.narrow(self.cut_dim, self.start, self.destination.shape[self.cut_dim])
        self.destination.copy_(tensor)
