"""RoBERTa and XLM-RoBERTa: BERT without token types, whose positions begin behind the padding token's (arXiv
1907.11692)."""

import torch

from ..attention.padded_groups import PaddedGroup
from .bert import BertCrossEncoder, BertModel


class _Roberta(BertModel):
    """What models with and without a head share."""

    prefix = "roberta."

    def forward(
        self, input_ids: torch.Tensor, positions: torch.Tensor, types: torch.Tensor, groups: list[PaddedGroup]
    ) -> torch.Tensor:
        return super().forward(input_ids, positions, torch.zeros_like(types), groups)


class RobertaModel(_Roberta):
    """Hidden states of whole prompts."""

    unused = ("embeddings.position_ids", "pooler.", "lm_head.")


class RobertaCrossEncoder(_Roberta, BertCrossEncoder):
    """One number for a pair of texts."""

    unused = ("embeddings.position_ids", "pooler.")
    head_layers = ("classifier.dense", "classifier.out_proj")
    least_types = 1
