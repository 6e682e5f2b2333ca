"""Look-up of token embeddings."""

import torch


def embedding(token_ids: torch.Tensor, weight: torch.Tensor, first_id: int | None = None) -> torch.Tensor:
    """Rows of ``weight`` [V, N] for ``token_ids`` int64 [T]; returns [T, N].

    ``first_id`` is None for a whole vocabulary. For a shard it is the id of the weight's first row; ids outside of
    the shard then give rows of zeros, so that the sum over all shards is the look-up in the whole.
    """
    if first_id is None:
        return torch.index_select(weight, 0, token_ids)
    local = token_ids - first_id
    elsewhere = (local < 0) | (local >= weight.shape[0])
    rows = torch.index_select(weight, 0, local.masked_fill(elsewhere, 0))
    return rows.masked_fill_(elsewhere.unsqueeze(1), 0)
