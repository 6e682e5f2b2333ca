"""What passes between the scheduler and the worker: one step's work as a diff, and what came of it.

The worker keeps every running request's state under the same stable *slot* as the scheduler. A request travels whole
once, when it gets its slot; after that only new block ids and token counts do. In steady decode a step says nothing
but "the same rows again".
"""

import msgspec
import numpy as np

from .grammar import GrammarSpec
from .pooling_params import PoolingParams
from .sampling_params import SamplingParams


class NewRequest(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A request that gets a slot. After a preemption it travels again, its output so far included."""

    slot: int
    request_id: str
    token_ids: np.ndarray
    """int32 [num_tokens]: the prompt, then the output so far."""
    num_prompt_tokens: int
    num_computed_tokens: int
    """Tokens whose keys and values are in ``block_ids`` already (prefix-cache hits)."""
    block_ids: list[int]
    params: SamplingParams
    seed: int
    stop_token_ids: list[int]
    """Every token that ends this request; masked while fewer than ``min_tokens`` are out."""
    bad_words: list[list[int]]
    grammar: GrammarSpec | None = None
    """What the output must satisfy. The worker was told of it before (``start_grammar``)."""
    pooling: PoolingParams | None = None
    """Draw nothing; when all tokens are computed, pool them."""


class Chunk(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Several tokens of one request's prompt (or of what a resumed request must compute again)."""

    slot: int
    num_tokens: int
    samples: bool
    """True if it reaches the last known token, so that the next one is drawn."""


class SchedulerOutput(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """One step's work. The worker applies it in this order: released, new, blocks; then runs decodes and chunks."""

    step: int
    released: list[int]
    """Slots whose request ended or was preempted."""
    new: list[NewRequest]
    blocks: list[tuple[int, list[int]]]
    """(slot, block ids to append to its table)."""
    decodes: np.ndarray | None
    """int32 [num_decodes]: slots that compute one token each, in row order. None: the same as in the last step."""
    chunks: list[Chunk]
    num_tokens: int
    """Tokens in the whole batch."""
    released_grammars: list[GrammarSpec] = []
    """One for each request that had a grammar and is over."""


class RowLogprobs(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Log probabilities of one drawn token: the chosen token first, then the best ones, best first."""

    row: int
    """Among the rows that drew a token in this step."""
    token_ids: list[int]
    logprobs: list[float]
    rank: int
    """Of the chosen token; 1 is the most likely."""


class PromptLogprobs(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Log probabilities of consecutive prompt tokens of one request."""

    slot: int
    start: int
    """Index in the prompt of the first token described here (never 0: nothing precedes the first)."""
    token_ids: list[list[int]]
    """For each token: the token itself, then the best ones, best first."""
    logprobs: list[list[float]]
    ranks: list[int]


class RowFailure(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A row whose request cannot go on; its token means nothing."""

    row: int
    """Among the rows that drew a token in this step."""
    message: str


class PooledVector(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """What the hidden states of one request's prompt make."""

    slot: int
    values: bytes
    """float32, native order."""


class ModelRunnerOutput(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """What one step drew. Rows: the step's decodes, then its chunks that sample, in order."""

    step: int
    token_ids: np.ndarray
    """int32 [num_rows]."""
    logprobs: list[RowLogprobs] = []
    prompt_logprobs: list[PromptLogprobs] = []
    failures: list[RowFailure] = []
    pooled: list[PooledVector] = []
    """Of the requests that pool and whose last token this step computed."""
