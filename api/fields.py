"""Which fields each endpoint knows, and what happens to every other one.

A field of a request is one of four things, and none is dropped in silence:

    offered        an attribute of the request's Struct in ``protocol.py``
    without effect accepted with any value, since no value of it changes the answer
    refused        known from the field's APIs, but not offered: 400, unless its value asks for nothing (null, default)
    unknown        a slip away from a known name: 400 with "did you mean"; else ignored, and named in the log and in the
                   response header ``x-octavo-ignored-fields`` (400 under ``--strict-fields``)

Names within messages, tools and other objects are offered, without effect or unknown in the same way
(``nested_fields.py``).
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

import msgspec

from ..core.errors import RequestError, UnsupportedFieldError
from .nested_fields import NestedNames, UnknownName
from .protocol import ChatCompletionRequest, CompletionRequest, DetokenizeRequest, TokenizeRequest

T_co = TypeVar("T_co", bound=msgspec.Struct, covariant=True)

IGNORED_FIELDS_HEADER = "x-octavo-ignored-fields"
MAX_UNKNOWN_FIELDS = 64

# There is one grammar backend, so naming one changes nothing.
SHARED_WITHOUT_EFFECT = frozenset(
    {"user", "metadata", "service_tier", "safety_identifier", "prompt_cache_key", "guided_decoding_backend"}
)

CACHE_OPTIONS = frozenset({"prompt_cache_retention", "prompt_cache_options"})
"""Of a cache that is managed by itself here: none of them can change an answer."""


def whatever(names: str) -> dict[str, tuple[Any, ...]]:
    """Names of fields that are refused with any value but null."""
    return dict.fromkeys(names.split(), ())


_SHARED_REFUSED: dict[str, tuple[Any, ...]] = {
    "best_of": (1,),
    "top_a": (0,),
    "use_beam_search": (False,),
    "length_penalty": (1.0,),
    "early_stopping": (False,),
    "logits_processors": ([],),
    "return_tokens_as_token_ids": (False,),
    "kv_transfer_params": ({},),
    "vllm_xargs": ({},),
    "store": (False,),
    **whatever("guided_whitespace_pattern truncate_prompt_tokens"),
}

_CHAT_REFUSED: dict[str, tuple[Any, ...]] = {
    "functions": ([],),
    "function_call": ("none", "auto"),
    "verbosity": ("medium",),
    "modalities": (["text"],),
    "documents": ([],),
    "mm_processor_kwargs": ({},),
    **whatever("audio prediction web_search_options moderation chat_template"),
}

_COMPLETION_REFUSED: dict[str, tuple[Any, ...]] = {"suffix": ("",), "prompt_embeds": ()}

_INSTEAD = {
    "best_of": "ask for n completions and choose among them",
    "chat_template": "the server's operator sets it with --chat-template",
    "suffix": "send the whole prompt as prompt",
    "functions": "send them as tools",
    "function_call": "send it as tool_choice",
    "store": "answers are not kept; leave it out or send false",
    "prompt_embeds": "send text or token ids as prompt",
}


@dataclass(frozen=True)
class EndpointFields(Generic[T_co]):
    """The fields of one endpoint: those of its request Struct, and what others it knows."""

    request_type: type[T_co]
    without_effect: frozenset[str] = frozenset()
    refused: dict[str, tuple[Any, ...]] = field(default_factory=dict)
    """Known but not offered: name to the values, beside null, that ask for nothing."""

    @property
    def offered(self) -> frozenset[str]:
        """Names of the request Struct's attributes."""
        return frozenset(self.request_type.__struct_fields__)


CHAT_FIELDS = EndpointFields(
    ChatCompletionRequest, SHARED_WITHOUT_EFFECT | CACHE_OPTIONS, _SHARED_REFUSED | _CHAT_REFUSED
)
COMPLETION_FIELDS = EndpointFields(CompletionRequest, SHARED_WITHOUT_EFFECT, _SHARED_REFUSED | _COMPLETION_REFUSED)
TOKENIZE_FIELDS = EndpointFields(TokenizeRequest, refused={"chat_template": ()})
DETOKENIZE_FIELDS = EndpointFields(DetokenizeRequest)


class FieldCheck:
    """Sorts the names in a request body by the table of its endpoint."""

    def __init__(self, fields: EndpointFields[msgspec.Struct], strict: bool) -> None:
        self._accepted = fields.offered | fields.without_effect
        self._refused = fields.refused
        self._known = tuple(sorted(self._accepted | fields.refused.keys()))
        self._strict = strict
        self._nested = NestedNames(fields.request_type)

    def check(self, body: dict[str, msgspec.Raw]) -> list[str]:
        """The names of ignored fields. Raises ``RequestError`` for a refused one, a slip, and if strict any unknown."""
        unknown: list[UnknownName] = []
        for name, raw in body.items():
            if name in self._accepted:
                continue
            if name in self._refused:
                self._refuse(name, raw)
            else:
                unknown.append(UnknownName("", name, self._known))
        unknown += self._nested.unknown(body)
        if len(unknown) > MAX_UNKNOWN_FIELDS:
            raise RequestError(
                f"the request has {len(unknown)} unknown fields; at most {MAX_UNKNOWN_FIELDS} are allowed"
            )
        shown = [_shown(one.place + one.name) for one in unknown]
        for one, told in zip(unknown, shown, strict=True):
            meant = nearest_name(one.name, one.known)
            if meant is not None:
                reason = f"did you mean {one.place + meant!r}?"
                raise RequestError(f"unknown field {told}; {reason}", told, "unknown_parameter")
        if self._strict and shown:
            raise RequestError(
                f"unknown field {shown[0]}; this server runs with --strict-fields", shown[0], "unknown_parameter"
            )
        return shown

    def _refuse(self, name: str, raw: msgspec.Raw) -> None:
        value = msgspec.json.decode(raw)
        if value is None or any(_same(value, neutral) for neutral in self._refused[name]):
            return
        instead = _INSTEAD.get(name, "leave it out")
        raise UnsupportedFieldError.at(name, f"is not supported by this server: {instead}")


def _same(value: Any, neutral: Any) -> bool:
    # True == 1 in Python, but {"best_of": true} is no count.
    return value == neutral and isinstance(value, bool) == isinstance(neutral, bool)


def _shown(name: str) -> str:
    """A client's field name made safe for headers and logs: printable ASCII, at most 64 characters."""
    safe = "".join(character if " " < character < "\x7f" and character != "," else "?" for character in name[:64])
    return safe or "?"


def nearest_name(name: str, known: Sequence[str]) -> str | None:
    """The known name that ``name`` is a slip away from, if there is one.

    A slip is another case or separator (``maxTokens``, ``max-tokens``), or one wrong, missing, doubled or swapped
    character; two in names of eight and more characters. Names of up to three characters must only differ in case.
    """
    plain = _plain(name)
    best: tuple[int, str] | None = None
    for candidate in known:
        if plain == _plain(candidate):
            return candidate
        limit = 0 if min(len(name), len(candidate)) < 4 else 1 if len(name) < 8 else 2
        if abs(len(name) - len(candidate)) > limit or limit == 0:
            continue
        distance = edit_distance(name.lower(), candidate)
        if distance <= limit and (best is None or distance < best[0]):
            best = (distance, candidate)
    return best[1] if best else None


def _plain(name: str) -> str:
    return name.lower().replace("_", "").replace("-", "")


def edit_distance(left: str, right: str) -> int:
    """Insertions, deletions, replacements and swaps of neighbours that turn ``left`` into ``right``."""
    before: list[int] = []
    previous = list(range(len(right) + 1))
    for i, a in enumerate(left, 1):
        current = [i]
        for j, b in enumerate(right, 1):
            cost = min(previous[j] + 1, current[j - 1] + 1, previous[j - 1] + (a != b))
            if i > 1 and j > 1 and a == right[j - 2] and left[i - 2] == b:
                cost = min(cost, before[j - 2] + 1)
            current.append(cost)
        before, previous = previous, current
    return previous[-1]
