"""How one request wants its tokens chosen and its output shaped."""

import math
from enum import IntEnum
from typing import Any

import msgspec

from .errors import RequestError
from .grammar import StructuredOutputs

MAX_STOP_STRINGS = 64
MAX_LOGIT_BIAS = 1024
MAX_CHOICES = 128
_SEED_LIMIT = 2**63


class RequestOutputKind(IntEnum):
    """What each yielded ``RequestOutput`` holds."""

    CUMULATIVE = 0  # everything so far
    DELTA = 1  # what is new since the last one
    FINAL_ONLY = 2  # one output, at the end


class SamplingParams(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Sampling parameters, with OpenAI's meanings and the field's common extras.

    Values are checked on construction; a bad one raises ``RequestError`` that names the field. What depends on the
    model (token ids against the vocabulary, lengths against the context) is checked by the ``InputProcessor``.
    """

    n: int = 1
    """Number of independent completions of the prompt."""
    temperature: float = 1.0
    """Divides the logits. 0 is greedy, the lowest token id winning a tie."""
    top_p: float = 1.0
    """Keep the smallest set of best tokens whose probabilities sum to at least this."""
    top_k: int = 0
    """Keep only this many best tokens. 0 (or -1) keeps all."""
    min_p: float = 0.0
    """Keep tokens with at least this share of the best token's probability."""
    presence_penalty: float = 0.0
    """Subtracted once from the logit of each token that is in the output so far."""
    frequency_penalty: float = 0.0
    """Subtracted from a token's logit for each time it is in the output so far."""
    repetition_penalty: float = 1.0
    """Divides a positive logit (multiplies a negative one) of each token in the prompt or the output."""
    seed: int | None = None
    """Makes the draws repeatable: the noise is a function of the seed and the position alone."""
    max_tokens: int | None = 16
    """Most tokens to generate. None: as many as the context holds."""
    min_tokens: int = 0
    """End and stop tokens cannot be drawn before this many tokens."""
    stop: list[str] = []
    """Texts that end the output where they first appear."""
    stop_token_ids: list[int] = []
    """Token ids that end the output."""
    include_stop_str_in_output: bool = False
    """Keep the stop string, or the text of the stop token, in the output."""
    ignore_eos: bool = False
    """Do not stop at the model's end tokens."""
    logprobs: int | None = None
    """Return the chosen token's log probability and those of this many best tokens."""
    prompt_logprobs: int | None = None
    """The same for each prompt token. Turns off prefix-cache hits for the request."""
    logit_bias: dict[int, float] | None = None
    """Added to the logits of these token ids."""
    allowed_token_ids: list[int] | None = None
    """Only these token ids can be drawn."""
    bad_words: list[str] = []
    """Words that cannot appear in the output."""
    structured_outputs: StructuredOutputs | None = None
    """The shape that the output must have: a JSON schema, a pattern, a choice or a grammar."""
    detokenize: bool = True
    """Produce text. Without it outputs carry token ids only."""
    skip_special_tokens: bool = True
    """Leave special tokens out of the text."""
    spaces_between_special_tokens: bool = True
    """Put a space between neighbouring special tokens when they are kept in the text."""
    output_kind: RequestOutputKind = RequestOutputKind.CUMULATIVE
    """What each yielded output holds."""
    priority: int = 0
    """Lower is served first under the priority policy."""

    def __post_init__(self) -> None:
        self._normalize()
        self._check_numbers()
        self._check_counts()
        self._check_lists()

    @property
    def greedy(self) -> bool:
        """True if the best token is taken, without noise."""
        return self.temperature == 0.0

    def replace(self, **changes: Any) -> "SamplingParams":
        """A copy with some fields changed; checked again."""
        return msgspec.structs.replace(self, **changes)

    def _normalize(self) -> None:
        force = msgspec.structs.force_setattr
        if isinstance(self.stop, str):
            force(self, "stop", [self.stop])
        if self.stop is None:
            force(self, "stop", [])
        if self.top_k == -1:
            force(self, "top_k", 0)

    def _check_numbers(self) -> None:
        ranges = (
            ("temperature", 0.0, 1e6),
            ("top_p", 0.0, 1.0),
            ("min_p", 0.0, 1.0),
            ("presence_penalty", -2.0, 2.0),
            ("frequency_penalty", -2.0, 2.0),
            ("repetition_penalty", 0.0, 1e6),
        )
        for name, low, high in ranges:
            value = getattr(self, name)
            # A NaN compares false with everything, so finiteness is asked for by name.
            if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
                raise RequestError.at(name, f"must be a finite number, not {value!r}")
            if not low <= value <= high:
                raise RequestError.at(name, f"must be between {low:g} and {high:g}, not {value!r}")
        if self.top_p == 0.0:
            raise RequestError.at("top_p", "must be above 0 (use temperature 0 for greedy decoding)")
        if self.repetition_penalty == 0.0:
            raise RequestError.at("repetition_penalty", "must be above 0")

    def _check_counts(self) -> None:
        limits = (
            ("n", 1, MAX_CHOICES),
            ("top_k", 0, 2**31 - 1),
            ("max_tokens", 1, 2**31 - 1),
            ("min_tokens", 0, 2**31 - 1),
            ("logprobs", 0, 2**31 - 1),
            ("prompt_logprobs", 0, 2**31 - 1),
            ("seed", -_SEED_LIMIT, 2 * _SEED_LIMIT - 1),
            ("priority", -(2**31), 2**31 - 1),
        )
        for name, low, high in limits:
            value = getattr(self, name)
            if value is None and name in ("max_tokens", "logprobs", "prompt_logprobs", "seed"):
                continue
            if isinstance(value, bool) or not isinstance(value, int):
                raise RequestError.at(name, f"must be an integer, not {value!r}")
            if not low <= value <= high:
                raise RequestError.at(name, f"must be between {low} and {high}, not {value}")
        if self.max_tokens is not None and self.min_tokens > self.max_tokens:
            raise RequestError.at("min_tokens", f"is {self.min_tokens}, above max_tokens, {self.max_tokens}")

    def _check_lists(self) -> None:
        for name, limit in (("stop", MAX_STOP_STRINGS), ("bad_words", 1024)):
            texts = getattr(self, name)
            if not isinstance(texts, list) or not all(isinstance(text, str) for text in texts):
                raise RequestError.at(name, "must be a list of strings")
            if "" in texts:
                raise RequestError.at(name, "must not contain an empty string")
            if len(texts) > limit:
                raise RequestError.at(name, f"has {len(texts)} entries; at most {limit} are allowed")
        for name in ("stop_token_ids", "allowed_token_ids"):
            ids = getattr(self, name)
            if ids is not None and not isinstance(ids, list | tuple):
                raise RequestError.at(name, f"must be a list of token ids, not {type(ids).__name__}")
            if ids is not None and any(isinstance(i, bool) or not isinstance(i, int) or i < 0 for i in ids):
                raise RequestError.at(name, "must hold token ids, integers of at least 0")
        if self.allowed_token_ids is not None and not self.allowed_token_ids:
            raise RequestError.at("allowed_token_ids", "must not be empty")
        if self.structured_outputs is not None and not isinstance(self.structured_outputs, StructuredOutputs):
            raise RequestError.at(
                "structured_outputs", f"must be StructuredOutputs, not {type(self.structured_outputs).__name__}"
            )
        if self.structured_outputs is not None and self.allowed_token_ids is not None:
            raise RequestError.at(
                "allowed_token_ids", "and structured_outputs both say which tokens may come; give only one"
            )
        if self.stop and not self.detokenize:
            raise RequestError("stop strings need detokenize; use stop_token_ids instead", "stop")
        self._check_logit_bias()

    def _check_logit_bias(self) -> None:
        if self.logit_bias is None:
            return
        if not isinstance(self.logit_bias, dict):
            raise RequestError.at(
                "logit_bias", f"must map token ids to numbers, not be a {type(self.logit_bias).__name__}"
            )
        if len(self.logit_bias) > MAX_LOGIT_BIAS:
            raise RequestError.at(
                "logit_bias", f"has {len(self.logit_bias)} entries; at most {MAX_LOGIT_BIAS} are allowed"
            )
        for token, bias in self.logit_bias.items():
            if isinstance(token, bool) or not isinstance(token, int) or token < 0:
                raise RequestError.at("logit_bias", f"has {token!r} where a token id is expected")
            if isinstance(bias, bool) or not isinstance(bias, int | float):
                raise RequestError.at("logit_bias", f"of token {token} must be a number, not {bias!r}")
            if not math.isfinite(bias) or not -100.0 <= bias <= 100.0:
                raise RequestError.at("logit_bias", f"of token {token} must be between -100 and 100")
