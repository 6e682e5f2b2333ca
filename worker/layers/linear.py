"""Linear layers: several checkpoint tensors merged into one product, cut by output or by input."""

from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from math import sqrt

import torch

from ...core.errors import CheckpointError
from .linear_method import LinearMethod, LinearOperator, UnloadedLinear
from .weights import Shard, WeightSlot


@dataclass(frozen=True, slots=True)
class OutputPart:
    """One checkpoint tensor's outputs within a merged layer: ``units`` heads or channels of ``width`` rows each."""

    name: str
    units: int
    width: int = 1


class Linear(ABC):
    """``y = x W^T + b``. Holds plain weights while loading, then the operator that multiplies by them."""

    __slots__ = ("bias", "in_features", "operator", "out_features", "weight")

    def __init__(
        self, in_features: int, out_features: int, bias: bool, dtype: torch.dtype, device: torch.device
    ) -> None:
        self.in_features = in_features
        self.out_features = out_features
        self.weight: torch.Tensor | None = torch.empty(out_features, in_features, dtype=dtype, device=device)
        self.bias = torch.empty(out_features, dtype=dtype, device=device) if bias else None
        self.operator: LinearOperator = UnloadedLinear()

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """The product of x [T, in_features]: [T, out_features]."""
        return self.operator(x)

    def finish(self, method: LinearMethod) -> int:
        """Turn the loaded weights into an operator, and let go of them. Returns the bytes that it takes."""
        weight = self._plain_weight()
        self.weight = None
        self.operator = method.prepare(weight, self.bias)
        return self.operator.num_bytes

    @abstractmethod
    def slots(self, prefix: str) -> Iterator[WeightSlot]:
        """The checkpoint tensors under ``prefix``, which ends with a dot."""

    def _plain_weight(self) -> torch.Tensor:
        if self.weight is None:
            raise CheckpointError("this layer was already prepared; a model can be loaded only once")
        return self.weight


class MergedLinear(Linear):
    """Several projections of one input as one product, each cut by its outputs (column parallel)."""

    __slots__ = ("parts", "shard")

    def __init__(
        self,
        in_features: int,
        parts: list[OutputPart],
        bias: bool,
        dtype: torch.dtype,
        device: torch.device,
        shard: Shard = Shard(),  # noqa: B008 - frozen
    ) -> None:
        self.parts = parts
        self.shard = shard
        outputs = sum(shard.cut(part.units)[1] * part.width for part in parts)
        super().__init__(in_features, outputs, bias, dtype, device)

    def slots(self, prefix: str) -> Iterator[WeightSlot]:
        weight = self._plain_weight()
        offset = 0
        for part in self.parts:
            start, units = self.shard.cut(part.units)
            length = units * part.width
            total = part.units * part.width
            yield WeightSlot(
                f"{prefix}{part.name}.weight",
                (total, self.in_features),
                weight[offset : offset + length],
                cut_dim=0,
                start=start * part.width,
                dummy_spread=sqrt(3 / self.in_features),
            )
            if self.bias is not None:
                destination = self.bias[offset : offset + length]
                yield WeightSlot(
                    f"{prefix}{part.name}.bias", (total,), destination, 0, start * part.width, dummy_spread=0.1
                )
            offset += length


class InputCutLinear(Linear):
    """A projection cut by its inputs (row parallel): the sum over all ranks is the whole product."""

    __slots__ = ("name", "shard", "total")

    def __init__(
        self,
        name: str,
        in_features: int,
        out_features: int,
        bias: bool,
        dtype: torch.dtype,
        device: torch.device,
        shard: Shard = Shard(),  # noqa: B008 - frozen
    ) -> None:
        self.name = name
        self.shard = shard
        self.total = in_features
        super().__init__(shard.cut(in_features)[1], out_features, bias, dtype, device)

    def slots(self, prefix: str) -> Iterator[WeightSlot]:
        yield WeightSlot(
            f"{prefix}{self.name}.weight",
            (self.out_features, self.total),
            self._plain_weight(),
            cut_dim=1,
            start=self.shard.cut(self.total)[0],
            dummy_spread=sqrt(3 / self.total),
        )
        if self.bias is not None:
            yield WeightSlot(f"{prefix}{self.name}.bias", (self.out_features,), self.bias, dummy_spread=0.1)
