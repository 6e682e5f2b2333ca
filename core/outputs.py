"""What a caller of the engine receives."""

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from .errors import RequestFailedError

if TYPE_CHECKING:
    import numpy as np  # the command line's help must not wait for it


@dataclass(slots=True)
class Logprob:
    """One token's log probability before temperature, penalties and filters."""

    logprob: float
    rank: int | None
    """1 for the most likely token."""
    decoded_token: str | None = None
    """The token's own text; a token that holds part of a character shows U+FFFD."""
    token_bytes: bytes | None = None
    """The token's exact bytes."""


TokenLogprobs = dict[int, Logprob]
"""Log probabilities at one position: the chosen (or given) token first, then the best ones, best first."""


@dataclass(slots=True)
class CompletionOutput:
    """One of the ``n`` completions of a request. Under DELTA, text, ids and logprobs hold only what is new."""

    index: int
    text: str
    token_ids: list[int]
    logprobs: list[TokenLogprobs] | None = None
    finish_reason: str | None = None
    """``stop``, ``length`` or ``abort``; None while it goes on."""
    stop_reason: int | str | None = None
    """The stop string or stop token id that matched; None for an end token."""
    vector: "np.ndarray | None" = None
    """Float32 [D]: the answer to a prompt that was to be pooled."""

    @property
    def finished(self) -> bool:
        return self.finish_reason is not None


@dataclass(slots=True)
class RequestTimings:
    """When things happened to a request, in seconds of ``time.time()``; None until they do."""

    arrival: float
    first_scheduled: float | None = None
    first_token: float | None = None
    last_token: float | None = None
    finished: float | None = None
    num_preemptions: int = 0


@dataclass(slots=True)
class RequestOutput:
    """The state of one request: its prompt and its completions."""

    request_id: str
    prompt: str | None
    prompt_token_ids: list[int]
    outputs: list[CompletionOutput]
    finished: bool
    prompt_logprobs: list[TokenLogprobs | None] | None = None
    num_cached_tokens: int = 0
    """Prompt tokens found in the prefix cache."""
    num_generated_tokens: int = 0
    """Tokens generated so far over all completions."""
    timings: RequestTimings = field(default_factory=lambda: RequestTimings(0.0))


@dataclass(slots=True)
class EmbeddingOutput:
    """The vector of one prompt."""

    request_id: str
    prompt: str | None
    prompt_token_ids: list[int]
    embedding: "np.ndarray"
    """Float32 [D]. Of a cross-encoder, whose prompt is a pair of texts: [1], their score."""
    num_cached_tokens: int
    timings: RequestTimings

    @classmethod
    def of(cls, output: RequestOutput) -> "EmbeddingOutput":
        """From the last output of a request that was pooled. Raises ``RequestFailedError`` if it was aborted."""
        vector = output.outputs[0].vector
        if vector is None:
            raise RequestFailedError(f"{output.request_id} was aborted")
        ids, cached = output.prompt_token_ids, output.num_cached_tokens
        return cls(output.request_id, output.prompt, ids, vector, cached, output.timings)
