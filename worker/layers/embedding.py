"""Token embedding and the head that turns hidden states into logits, tied or not."""

from collections.abc import Iterator
from math import sqrt

import torch

from ...kernels.embedding import embedding
from .linear_method import LinearMethod, LinearOperator
from .weights import Shard, WeightSlot


class VocabEmbedding:
    """The embedding table [V, N], cut by token id."""

    __slots__ = ("first_id", "shard", "vocab_size", "weight")

    def __init__(
        self,
        vocab_size: int,
        hidden_size: int,
        dtype: torch.dtype,
        device: torch.device,
        shard: Shard = Shard(),  # noqa: B008 - frozen
    ) -> None:
        start, length = shard.cut(vocab_size)
        self.vocab_size = vocab_size
        self.shard = shard
        self.first_id = None if shard.size == 1 else start
        self.weight = torch.empty(length, hidden_size, dtype=dtype, device=device)

    def __call__(self, token_ids: torch.Tensor) -> torch.Tensor:
        """Embeddings [T, N] of int64 ids [T]."""
        return embedding(token_ids, self.weight, self.first_id)

    def slots(self, name: str) -> Iterator[WeightSlot]:
        """The one checkpoint tensor, called ``name`` + ``.weight``."""
        hidden_size = self.weight.shape[1]
        yield WeightSlot(
            f"{name}.weight",
            (self.vocab_size, hidden_size),
            self.weight,
            cut_dim=0,
            start=self.shard.cut(self.vocab_size)[0],
            # With normalized hidden states of length sqrt(N), logits of a tied head then have deviation 2.
            dummy_spread=2 * sqrt(3 / hidden_size),
        )


def prepare_head(table: VocabEmbedding, method: LinearMethod) -> LinearOperator:
    """The product of hidden states [S, N] with a table, giving logits [S, V]. A tied head passes the embedding itself.

    Where the method keeps weights in another order or dtype than the table (packed, int8), a tied head is a second
    copy of it: V * N * 2 bytes in bfloat16. That halves the time of the largest product of a small model.
    """
    return method.prepare(table.weight, None)
