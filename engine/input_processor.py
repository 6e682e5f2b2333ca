"""From what a caller asks to what the engine runs: text becomes ids, and every check that needs the model is made.

Everything a client can get wrong ends here as a ``RequestError`` that names the field; nothing of it reaches the step
loop.
"""

import logging
import random
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
import numpy as np

from ..core.config import EngineConfig
from ..core.engine_input import EngineCoreRequest
from ..core.errors import ContextLengthError, RequestError
from ..core.pooling_params import PoolingParams
from ..core.sampling_params import RequestOutputKind, SamplingParams
from .grammar_door import GrammarDoor
from .tokenizer import Tokenizer

logger = logging.getLogger("octavo.engine")

PromptInput = str | Sequence[int] | Mapping[str, Any]
"""Text, token ids, or a dict with ``prompt`` and/or ``prompt_token_ids``."""

LONG_TEXT = 20_000
"""Characters above which tokenizing takes long enough to be kept off an event loop."""


@dataclass(slots=True)
class PreparedRequest:
    """A request that passed every check."""

    prompt: str | None
    prompt_token_ids: list[int]
    params: SamplingParams
    message: EngineCoreRequest
    """What the engine is sent, but for the names and seeds of the completions."""

    def core_request(self, request_id: str, handle: int, index: int) -> EngineCoreRequest:
        """The message for completion ``index``. Each one has a seed of its own."""
        return msgspec.structs.replace(
            self.message,
            request_id=request_id if self.params.n == 1 else f"{request_id}-{index}",
            handle=handle,
            seed=(self.message.seed + index + 2**63) % 2**64 - 2**63,  # the sampler takes it modulo 2**64 as well
        )


class InputProcessor:
    """Prepares requests for one model. Safe to use from several threads."""

    def __init__(self, config: EngineConfig, tokenizer: Tokenizer | None, client_index: int = 0) -> None:
        self._config = config
        self._tokenizer = tokenizer
        self._client_index = client_index
        self._vocab_size = config.model.vocab_size
        self.max_model_len = config.scheduler.max_model_len
        """Tokens that one request may have; the engine may lower it once it knows its memory."""
        # Requests without a seed get one, so that every request can be repeated. A string seeds independent streams.
        self._seeds = random.Random(f"{config.device.seed} {client_index}")
        self._eos_token_ids = self._end_tokens()
        if not self._eos_token_ids and not config.model.is_encoder:
            logger.warning("the model names no end token (eos_token_id): answers end by max_tokens or a stop of yours")
        self._grammars = GrammarDoor(tokenizer, self._vocab_size, self._eos_token_ids)

    def _end_tokens(self) -> list[int]:
        ids = list(self._config.model.eos_token_ids)
        if not ids and self._tokenizer is not None and self._tokenizer.eos_token_id is not None:
            ids = [self._tokenizer.eos_token_id]
        return sorted({i for i in ids if 0 <= i < self._vocab_size})

    def takes_long(self, prompt: PromptInput, params: SamplingParams | PoolingParams | None = None) -> bool:
        """True if ``prepare`` should not run on an event loop."""
        if isinstance(params, SamplingParams) and params.structured_outputs is not None:
            return True
        text = prompt.get("prompt") if isinstance(prompt, Mapping) else prompt
        return isinstance(text, str) and len(text) > LONG_TEXT

    def prepare(
        self, prompt: PromptInput, params: SamplingParams | PoolingParams, cache_salt: str | None = None
    ) -> PreparedRequest:
        """Check a request and resolve it against the model. Raises ``RequestError``."""
        if isinstance(params, PoolingParams):
            return self._prepare_pooling(prompt, params, cache_salt)
        check_generates(self._config)
        text, token_ids = self._tokens(prompt)
        self._check_params(params)
        _check_salt(cache_salt)
        length = len(token_ids)
        room = self.max_model_len - length
        if room < 1:
            raise self._too_long(f"{length}, and at least one must be left for the answer")
        if params.max_tokens is not None and params.max_tokens > room:
            raise ContextLengthError.over(
                self.max_model_len,
                f"the prompt has {length} and max_tokens asks for {params.max_tokens} more, "
                f"{length + params.max_tokens} in all",
                "max_tokens",
            )
        max_tokens = params.max_tokens if params.max_tokens is not None else room
        if params.min_tokens > max_tokens:
            raise RequestError.at(
                "min_tokens", f"is {params.min_tokens}, but only {max_tokens} tokens can be generated"
            )
        grammar = None if params.structured_outputs is None else self._grammars.admit(params.structured_outputs)
        seed = params.seed if params.seed is not None else self._seeds.getrandbits(62)
        message = EngineCoreRequest(
            request_id="",
            handle=0,
            client_index=self._client_index,
            prompt_token_ids=np.array(token_ids, dtype=np.int32).tobytes(),
            # The workers need the grammar, not what it was made of.
            params=params if grammar is None else params.replace(structured_outputs=None),
            seed=seed,
            max_total_tokens=length + max_tokens,
            # A complete grammar allows nothing but an end token, so that one ends the request in any case.
            eos_token_ids=[] if params.ignore_eos and grammar is None else self._eos_token_ids,
            bad_words=self._tokenizer.encode_bad_words(params.bad_words) if self._tokenizer else [],
            cache_salt=cache_salt,
            arrival_time=time.time(),
            grammar=grammar,
        )
        return PreparedRequest(text, token_ids, params, message)

    def _prepare_pooling(self, prompt: PromptInput, params: PoolingParams, cache_salt: str | None) -> PreparedRequest:
        _check_salt(cache_salt)
        pooling = self._config.model.pooling
        pair = params.second_text_at is not None
        if pooling.scores_pairs and not pair:
            raise RequestError("this model is a cross-encoder: it has no embeddings; ask it for scores of pairs")
        if pair and not pooling.scores_pairs:
            raise RequestError("this model takes one text at a time: only a cross-encoder reads pairs", "prompt")
        self._check_dimensions(params.dimensions)
        text, ids = self._tokens(prompt, params.cut_to(self.max_model_len))
        if len(ids) > self.max_model_len:
            raise self._too_long(f"{len(ids)}; shorten it, or cut it with truncate_prompt_tokens")
        unsaid = SamplingParams(detokenize=False, output_kind=RequestOutputKind.FINAL_ONLY, priority=params.priority)
        message = EngineCoreRequest(
            request_id="",
            handle=0,
            client_index=self._client_index,
            prompt_token_ids=np.array(ids, dtype=np.int32).tobytes(),
            params=unsaid,
            seed=0,
            max_total_tokens=len(ids) + 1,
            cache_salt=cache_salt,
            arrival_time=time.time(),
            pooling=params.replace(normalize=pooling.normalize) if params.normalize is None else params,
            whole_prompt=pooling.kind == "mean",
        )
        return PreparedRequest(text, ids, unsaid, message)

    def _too_long(self, told: str) -> ContextLengthError:
        return ContextLengthError.over(self.max_model_len, f"the prompt is too long: it has {told}", "prompt")

    def _check_dimensions(self, dimensions: int | None) -> None:
        pooling, size = self._config.model.pooling, self._config.model.hidden_size
        if dimensions is None or (dimensions == size and not pooling.scores_pairs):
            return
        if not pooling.matryoshka:
            raise RequestError(
                f"this model's vectors cannot be cut: it was not trained for it (no Matryoshka embeddings); leave "
                f"dimensions out, or ask for all {size}",
                "dimensions",
            )
        allowed = f"one of {pooling.dimensions}" if pooling.dimensions else f"between 1 and {size}"
        if dimensions > size or (pooling.dimensions and dimensions not in pooling.dimensions):
            raise RequestError.at("dimensions", f"must be {allowed}, not {dimensions}")

    def _tokens(self, prompt: PromptInput, limit: int | None = None) -> tuple[str | None, list[int]]:
        """The prompt's text, where there is one, and its ids, checked, at most ``limit`` of them."""
        text = None
        ids: Any = prompt
        if isinstance(prompt, str):
            text, ids = prompt, None
        elif isinstance(prompt, Mapping):
            text, ids = prompt.get("prompt"), prompt.get("prompt_token_ids")
            if text is None and ids is None:
                raise RequestError("the prompt has neither prompt nor prompt_token_ids", "prompt")
        if text is not None and not isinstance(text, str):
            raise RequestError(f"the prompt must be text or token ids, not {type(text).__name__}", "prompt")
        ids = self._encode(text, limit) if ids is None and text is not None else self._check_ids(ids)[:limit]
        if not ids:
            raise RequestError("the prompt is empty", "prompt")
        return text, ids

    def _encode(self, text: str, limit: int | None) -> list[int]:
        if self._tokenizer is None:
            raise RequestError("no tokenizer is loaded (skip_tokenizer_init): give prompts as token ids", "prompt")
        # Tokenizing megabytes only to refuse them would cost seconds; no token is longer than this many characters.
        longest = self._tokenizer.max_token_characters
        if len(text) > self.max_model_len * longest and limit is None:
            least = -(-len(text) // longest)
            raise self._too_long(f"{len(text)} characters, at least {least} tokens")
        if limit is None:
            return self._tokenizer.encode(text)
        return self._tokenizer.encode_whole(text, limit=limit)[0]

    def _check_ids(self, given: Any) -> list[int]:
        # Bytes and the keys of a dict would pass for numbers, too.
        if not isinstance(given, Sequence) or isinstance(given, str | bytes | bytearray | memoryview):
            raise RequestError(f"the prompt must be text or token ids, not {type(given).__name__}", "prompt")
        ids = list(given)
        if set(map(type, ids)) == {int} and min(ids) >= 0 and max(ids) < self._vocab_size:
            return ids
        for token in ids:
            if type(token) is not int or not 0 <= token < self._vocab_size:
                raise RequestError(
                    f"the prompt has {token!r} where a token id from 0 to {self._vocab_size - 1} is expected", "prompt"
                )
        return ids

    def _check_params(self, params: SamplingParams) -> None:
        _check_types(params)
        limit = self._config.max_logprobs
        for name in ("logprobs", "prompt_logprobs"):
            value = getattr(params, name)
            if value is not None and value > limit:
                raise RequestError.at(name, f"is {value}; at most {limit} are allowed (--max-logprobs)")
        named = (
            ("stop_token_ids", params.stop_token_ids),
            ("allowed_token_ids", params.allowed_token_ids or ()),
            ("logit_bias", params.logit_bias or ()),
        )
        for name, ids in named:
            for token in ids:
                if token >= self._vocab_size:
                    raise RequestError.at(name, f"has {token}; the vocabulary ends at {self._vocab_size - 1}")
        if self._tokenizer is None and (params.stop or params.bad_words):
            name = "stop" if params.stop else "bad_words"
            raise RequestError.at(name, "needs a tokenizer, and none is loaded (skip_tokenizer_init)")


def check_generates(config: EngineConfig) -> None:
    """Raises ``RequestError`` for a model that generates no text."""
    if config.model.is_encoder:
        gives = "scores of pairs" if config.model.pooling.scores_pairs else "embeddings and scores"
        raise RequestError(f"this model ({config.model.architecture}) is an encoder: it gives {gives}, and no text")


def _check_types(params: SamplingParams) -> None:
    """The engine must be able to read what it is sent: construction checks ranges, but not every type."""
    if not isinstance(params, SamplingParams):
        raise RequestError.at("sampling_params", f"must be SamplingParams, not {type(params).__name__}")
    try:
        msgspec.msgpack.decode(msgspec.msgpack.encode(params), type=SamplingParams)
    except msgspec.ValidationError as error:
        reason, _, path = str(error).partition(" - at `$.")
        name = path.partition("`")[0].partition("[")[0]
        raise RequestError(f"{name}: {reason}" if name else str(error), name or None) from error
    except (TypeError, OverflowError, UnicodeEncodeError) as error:
        raise RequestError(f"the sampling parameters cannot be sent to the engine: {error}") from error


def _check_salt(cache_salt: Any) -> None:
    if cache_salt is not None and not (isinstance(cache_salt, str) and is_unicode(cache_salt)):
        raise RequestError.at("cache_salt", f"must be text, not {cache_salt!r}")


def is_unicode(text: str) -> bool:
    """False for text with half a surrogate pair, which JSON can carry and UTF-8 cannot."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True
