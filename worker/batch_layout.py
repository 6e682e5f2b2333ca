"""Where the rows of one step's flat token batch lie, on the host and on the device."""

from dataclasses import dataclass

import numpy as np
import torch


@dataclass(slots=True)
class BatchLayout:
    """The shape of one step. R rows (one per request), T tokens; decode rows come first.

    A decode row has exactly one query token. The remaining rows are chunks of prompts (or of a resumed request).
    Row r's tokens are ``query_start_loc[r]:query_start_loc[r + 1]`` of the flat batch, and they are the last
    ``query_start_loc[r + 1] - query_start_loc[r]`` of its ``seq_lens[r]`` tokens: attention is causal over those.
    """

    num_decodes: int
    query_start_loc: np.ndarray
    """Host, int32 [R + 1]."""
    seq_lens: np.ndarray
    """Host, int32 [R]: tokens in the KV cache once this step's keys are written."""
    positions: torch.Tensor
    """Device, int64 [T]."""
    block_table: torch.Tensor
    """Device, int32 [R, max_blocks]: block ids of each row; entries past its length are undefined."""
    slot_mapping: torch.Tensor
    """Device, int64 [T]: ``block_id * block_size + offset`` where each token's key and value go."""
    device_query_start_loc: torch.Tensor
    """``query_start_loc`` on the device."""
    device_seq_lens: torch.Tensor
    """``seq_lens`` on the device."""

    @property
    def num_rows(self) -> int:
        return len(self.seq_lens)

    @property
    def num_tokens(self) -> int:
        return int(self.query_start_loc[-1])
