"""Messages from the EngineCore to an API process: one batch of deltas per step and client."""

from typing import Any

import msgspec

from .errors import ConfigurationError, OctavoError
from .stats import SchedulerStats


class Started(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A request was scheduled for the first time (or again, after a preemption)."""

    handle: int
    time: float
    num_cached_tokens: int


class Finished(msgspec.Struct, frozen=True, array_like=True, omit_defaults=True, gc=False):
    """A request ended. Its last token, if any, is among the deltas of the same message."""

    handle: int
    reason: str
    """``stop``, ``length``, ``abort`` or ``error``."""
    stop_token: int | None = None
    """The stop token that matched; None for an end token."""
    num_preemptions: int = 0
    error: str | None = None


class TokenLogprobsDelta(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Log probabilities of the token at ``index`` in this message's deltas: the chosen one first, then the best."""

    index: int
    token_ids: list[int]
    logprobs: list[float]
    rank: int


class PromptLogprobsDelta(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Log probabilities of prompt tokens from ``start`` on. A later message may begin before an earlier one's end
    (after a preemption) and then replaces what it repeats."""

    handle: int
    start: int
    token_ids: list[list[int]]
    logprobs: list[list[float]]
    ranks: list[int]


class PooledDelta(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """The vector of a request that pools. Its end is in the same message."""

    handle: int
    values: bytes
    """float32, native order."""


class UtilityResult(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """The answer to a ``UtilityCall``."""

    call_id: int
    result: Any = None
    error: str | None = None


class EngineCoreOutputs(msgspec.Struct, array_like=True, omit_defaults=True, gc=False, tag="outputs"):
    """All that one step means for one client. ``handles[i]`` got the token ``token_ids[i]``."""

    time: float
    handles: bytes = b""
    """int32, native order."""
    token_ids: bytes = b""
    """int32, native order."""
    started: list[Started] = []
    finished: list[Finished] = []
    logprobs: list[TokenLogprobsDelta] = []
    prompt_logprobs: list[PromptLogprobsDelta] = []
    results: list[UtilityResult] = []
    stats: SchedulerStats | None = None
    """For client 0 alone."""
    pooled: list[PooledDelta] = []

    @property
    def has_news(self) -> bool:
        """There is something in it for its client."""
        return bool(self.handles or self.started or self.finished or self.prompt_logprobs or self.stats)


class EngineHello(msgspec.Struct, frozen=True, array_like=True, gc=False, tag="hello"):
    """First message of an engine: both sockets are connected."""

    pid: int


class EngineReady(msgspec.Struct, frozen=True, array_like=True, gc=False, tag="ready"):
    """The model is loaded and requests can be taken."""

    num_blocks: int
    max_model_len: int
    """Tokens that one request may have: the configured limit, or what the pool holds if that is less."""
    marks: dict[str, float]
    """When each step of the start was done, in seconds of ``time.time()``."""


class EngineGone(msgspec.Struct, frozen=True, array_like=True, gc=False, tag="gone"):
    """The engine ended, or is about to, with this cause. Nothing comes after this."""

    message: str
    configuration: bool = False
    """True if the user's settings or files are the cause, so that the message alone is what helps."""

    @classmethod
    def of(cls, error: Exception) -> "EngineGone":
        """For an error that ends it."""
        text = str(error) if isinstance(error, OctavoError) else f"{type(error).__name__}: {error}"
        return cls(" ".join(text.split()), isinstance(error, ConfigurationError))


EngineCoreMessage = EngineCoreOutputs | EngineHello | EngineReady | EngineGone
