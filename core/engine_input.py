"""Messages from an API process to the EngineCore."""

from typing import Any

import msgspec

from .grammar import GrammarSpec
from .pooling_params import PoolingParams
from .sampling_params import SamplingParams


class EngineCoreRequest(msgspec.Struct, frozen=True, array_like=True, omit_defaults=True, gc=False, tag="add"):
    """One completion to generate, or one prompt to pool, everything resolved against the model: ids, limits, seed."""

    request_id: str
    handle: int
    """The sender's number for it; unique per client, and what every delta refers to."""
    client_index: int
    prompt_token_ids: bytes
    """int32, native order."""
    params: SamplingParams
    seed: int
    max_total_tokens: int
    """The request ends with ``length`` when prompt and output together reach this."""
    arrival_time: float
    eos_token_ids: list[int] = []
    """End tokens in force; empty under ignore_eos."""
    bad_words: list[list[int]] = []
    cache_salt: str | None = None
    output_token_ids: bytes = b""
    """Tokens generated before (a resumed request); int32, native order."""
    grammar: GrammarSpec | None = None
    """What the output must satisfy; ``params.structured_outputs`` made ready to compile."""
    whole_prompt: bool = False
    """Compute every token of the prompt, whatever of it is cached."""
    pooling: PoolingParams | None = None
    """Generate nothing: the answer is the vector of the prompt. Of ``params`` only the priority means something."""


class AbortRequests(msgspec.Struct, frozen=True, array_like=True, gc=False, tag="abort"):
    """Stop these requests and free all they hold. Unknown handles are ignored: the request may just have ended."""

    client_index: int
    handles: list[int]


class UtilityCall(msgspec.Struct, frozen=True, array_like=True, gc=False, tag="call"):
    """Call a method of the EngineCore by name; the answer carries the same ``call_id``."""

    client_index: int
    call_id: int
    method: str
    arguments: list[Any] = []


EngineCoreInput = EngineCoreRequest | AbortRequests | UtilityCall
