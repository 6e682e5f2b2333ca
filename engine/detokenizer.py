"""Token ids to text, piece by piece: what is returned never has to be taken back.

Joined, the pieces equal what the tokenizer's decoding of all ids has behind that of the prompt's. (Where it would make
one run of bytes all U+FFFD for a wrong one at the end, the right ones before are characters here: they were shown.)
Characters whose bytes are not all there yet, and text that may be the beginning of a stop string, are held back until
the next tokens, or ``finish``, decide.
"""

import codecs
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from itertools import takewhile

from tokenizers import Tokenizer as Backend

from .stop_strings import StopScanner

_REPLACEMENT = "\ufffd"
_CONTEXT = 8
"""Tokens before the next one that can have a say in its text; one with text of its own is enough."""
_new_utf8_decoder = codecs.getincrementaldecoder("utf-8")


class TextDecoder(ABC):
    """How ids of one stream become text. Which one fits is a property of the tokenizer, chosen once for it."""

    @abstractmethod
    def step(self, token_ids: Sequence[int]) -> str:
        """The text that these ids make certain."""

    @abstractmethod
    def flush(self) -> str:
        """What is left at the end, an incomplete character as U+FFFD."""


class PieceTable(dict[int, str | bytes]):
    """Each token's own text, or its bytes where they are not whole characters. Filled as tokens come up.

    Shared by all streams of a tokenizer; a token that no stream shows (a special one) is the empty string.
    """

    def __init__(self, token_bytes: Callable[[int], bytes], hidden: frozenset[int]) -> None:
        super().__init__()
        self._token_bytes = token_bytes
        self._hidden = hidden

    def __missing__(self, token_id: int) -> str | bytes:
        raw = b"" if token_id in self._hidden else self._token_bytes(token_id)
        try:
            piece: str | bytes = raw.decode()
        except UnicodeDecodeError:
            piece = raw
        self[token_id] = piece
        return piece


class ByteLevelDecoder(TextDecoder):
    """For tokenizers whose text is the UTF-8 decoding of the tokens' bytes, one after the other."""

    def __init__(self, pieces: PieceTable) -> None:
        self._pieces = pieces
        self._utf8 = _new_utf8_decoder("replace")
        self._pending = False

    def step(self, token_ids: Sequence[int]) -> str:
        pieces = self._pieces
        if len(token_ids) == 1 and not self._pending:
            # By far the commonest case: one token of whole characters.
            piece = pieces[token_ids[0]]
            if isinstance(piece, str):
                return piece
        parts = []
        for token_id in token_ids:
            piece = pieces[token_id]
            if isinstance(piece, str):
                if not self._pending:
                    parts.append(piece)
                    continue
                piece = piece.encode()
            parts.append(self._utf8.decode(piece))
            self._pending = self._utf8.getstate()[0] != b""
        return "".join(parts)

    def flush(self) -> str:
        self._pending = False
        return self._utf8.decode(b"", final=True)


class WindowDecoder(TextDecoder):
    """For every other tokenizer: decode a window of the last tokens, and show by how much its text grew.

    The window begins with tokens that came before (the context), because a token's text can depend on its neighbour:
    the first of a text has no space before it, and the first of a completion is not the first of the text. Ids are held
    back while they end in a part of a character: in byte tokens, or, if any other token can hold one
    (``partial_characters``), in text that does.
    """

    def __init__(
        self,
        backend: Backend,
        hidden: frozenset[int],
        byte_tokens: dict[int, int],
        partial_characters: bool,
        context: Sequence[int] = (),
    ) -> None:
        """``byte_tokens``: each one's byte; ``context``: the tokens before the first one to be decoded."""
        self._backend = backend
        self._hidden = hidden
        self._byte_tokens = byte_tokens
        self._partial_characters = partial_characters
        self._context = [i for i in context[-_CONTEXT:] if i not in hidden]
        self._context_text = self._decode(self._context)
        if self._context_text.endswith(_REPLACEMENT):
            self._context, self._context_text = [], ""  # the rest of that character would change its text
        self._pending: list[int] = []

    def step(self, token_ids: Sequence[int]) -> str:
        self._pending += [i for i in token_ids if i not in self._hidden]
        if not self._pending or self._in_bytes_of_a_character():
            return ""
        grown = self._decode(self._context + self._pending)
        if self._partial_characters and grown.endswith(_REPLACEMENT):
            return ""
        return self._show(grown)

    def flush(self) -> str:
        return self._show(self._decode(self._context + self._pending)) if self._pending else ""

    def _in_bytes_of_a_character(self) -> bool:
        run = takewhile(self._byte_tokens.__contains__, reversed(self._pending))
        utf8 = _new_utf8_decoder("replace")
        utf8.decode(bytes(self._byte_tokens[i] for i in run)[::-1])
        return utf8.getstate()[0] != b""

    def _show(self, grown: str) -> str:
        new = grown[len(self._context_text) :]
        known = self._context + self._pending
        for context in (self._pending, known[-_CONTEXT:], known):
            self._context, self._context_text = context, self._decode(context)
            if self._context_text:  # without any, the next token would look like the first of all
                break
        self._pending = []
        return new

    def _decode(self, token_ids: list[int]) -> str:
        return self._backend.decode(token_ids, skip_special_tokens=False)


class UnspacedDecoder(TextDecoder):
    """Around another decoder: no space between neighbouring special tokens, where that one would put it."""

    def __init__(self, inner: TextDecoder, special_texts: dict[int, str]) -> None:
        self._inner = inner
        self._special_texts = special_texts
        self._after_special = False

    def step(self, token_ids: Sequence[int]) -> str:
        parts = []
        for token_id in token_ids:
            text = self._inner.step([token_id])
            special = self._special_texts.get(token_id)
            joined = special is not None and self._after_special and text.endswith(special)
            parts.append(special if joined and special is not None else text)
            self._after_special = special is not None
        return "".join(parts)

    def flush(self) -> str:
        return self._inner.flush()


class IncrementalDetokenizer:
    """The text of one completion. ``Tokenizer.detokenizer`` makes it."""

    def __init__(
        self, decoder: TextDecoder, scanner: StopScanner | None, min_tokens: int, keep_stop_token: bool
    ) -> None:
        self._decoder = decoder
        self._scanner = scanner
        self._min_tokens = min_tokens
        self._keep_stop_token = keep_stop_token
        self._num_tokens = 0
        self.stop_string: str | None = None
        """The stop string that ended the text."""
        self.tokens_used = 0
        """How many of the ids last appended belong to the completion: all, or those up to the stop string's last."""

    def append(self, token_ids: Sequence[int], ends_with_stop_token: bool = False) -> str:
        """Take the next ids; return the text that is certain now. After a stop string has matched, nothing more.

        ``ends_with_stop_token``: the last id is the end or stop token that finished the completion, whose text is
        shown only if the request asked to keep it.
        """
        shown = token_ids[:-1] if ends_with_stop_token and not self._keep_stop_token else token_ids
        self.tokens_used = len(token_ids)
        if self._scanner is None:
            return self._decoder.step(shown)
        if self.stop_string is not None:
            self.tokens_used = 0
            return ""
        parts = []
        for used, token_id in enumerate(shown, 1):
            self._num_tokens += 1
            armed = self._num_tokens >= self._min_tokens
            parts.append(self._scanner.feed(self._decoder.step((token_id,)), armed))
            if self._scanner.matched is not None:
                self.stop_string = self._scanner.matched
                self.tokens_used = used
                break
        return "".join(parts)

    def finish(self) -> str:
        """The completion is over, for whatever reason: the text that was still held back."""
        if self.stop_string is not None:
            return ""
        rest = self._decoder.flush()
        if self._scanner is None:
            return rest
        # The end is no place for a new match: the tokens are counted already.
        return self._scanner.feed(rest, armed=False) + self._scanner.flush()
