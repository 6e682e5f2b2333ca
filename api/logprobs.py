"""Log probabilities in the two shapes that clients know: chat's list of objects, and completions' parallel lists."""

from ..core.outputs import Logprob, TokenLogprobs
from .protocol_answers import AlternativeToken, CompletionLogprobs, PromptLogprobs, TokenLogprob

LOWEST_LOGPROB = -9999.0
"""Stands for minus infinity, which JSON cannot say."""


def finite(logprob: float) -> float:
    """The value, or the floor for minus infinity and for a NaN (which compares false with everything)."""
    return logprob if logprob > LOWEST_LOGPROB else LOWEST_LOGPROB


def token_name(token_id: int, entry: Logprob) -> str:
    """The token's text; ``bytes:\\xf0\\x9f`` for one that holds only part of a character, as the reference API does.

    Without that, all partial tokens would read U+FFFD and collide as keys of a map.
    """
    if entry.token_bytes is not None:
        try:
            return entry.token_bytes.decode()
        except UnicodeDecodeError:
            return "bytes:" + "".join(f"\\x{byte:02x}" for byte in entry.token_bytes)
    return entry.decoded_token if entry.decoded_token is not None else f"token_id:{token_id}"


def best_tokens(position: TokenLogprobs, count: int) -> list[tuple[int, Logprob]]:
    """The ``count`` best tokens from high to low. The chosen token is one of them only if it belongs there."""
    best = sorted(position.items(), key=lambda item: (-finite(item[1].logprob), item[1].rank or len(position)))
    return best[:count]


def chat_logprobs(positions: list[TokenLogprobs], count: int) -> list[TokenLogprob]:
    """One entry per position, with its ``count`` best tokens."""
    entries = []
    for position in positions:
        token_id, chosen = next(iter(position.items()))
        best = [
            AlternativeToken(token_name(other_id, other), finite(other.logprob), _byte_list(other))
            for other_id, other in best_tokens(position, count)
        ]
        entries.append(TokenLogprob(token_name(token_id, chosen), finite(chosen.logprob), _byte_list(chosen), best))
    return entries


def _byte_list(entry: Logprob) -> list[int] | None:
    return None if entry.token_bytes is None else list(entry.token_bytes)


def prompt_logprobs_answer(positions: list[TokenLogprobs | None]) -> PromptLogprobs:
    """Per prompt token the map from token id to its log probability, rank and text; None stays None."""
    return [
        None
        if position is None
        else {
            str(token_id): {
                "logprob": finite(entry.logprob),
                "rank": entry.rank,
                "decoded_token": token_name(token_id, entry),
            }
            for token_id, entry in position.items()
        }
        for position in positions
    ]


class CompletionLogprobsWriter:
    """Writes the four lists of one completion piece by piece, counting ``text_offset`` across the pieces.

    Offsets count characters by the UTF-8 bytes of the tokens, so the tokens that share one character share its offset.
    Special tokens (``special_ids``) that the text leaves out have none: of an echoed prompt that was a text (``echo``),
    those that it does not hold, else all unless ``shows_special``.
    """

    def __init__(self, count: int, special_ids: frozenset[int], shows_special: bool) -> None:
        self._count = count
        self._special_ids = special_ids
        self._shows_special = shows_special
        self._started = 0  # characters whose first byte has been seen

    def prompt(self, token_id: int, text: str, text_bytes: bytes, echo: str | None) -> CompletionLogprobs:
        """The first token of an echoed prompt, which has no log probability."""
        return CompletionLogprobs([text], [None], [None], [self._offset(token_id, text_bytes, echo)])

    def positions(self, positions: list[TokenLogprobs], echo: str | None = None) -> CompletionLogprobs:
        """The next tokens. A map holds ``count`` entries, and one more for a chosen token outside of the best."""
        lists = CompletionLogprobs([], [], [], [])
        for position in positions:
            token_id, chosen = next(iter(position.items()))
            name = token_name(token_id, chosen)
            value = finite(chosen.logprob)
            lists.tokens.append(name)
            lists.token_logprobs.append(value)
            best = {
                token_name(other_id, other): finite(other.logprob)
                for other_id, other in best_tokens(position, self._count)
            }
            best.setdefault(name, value)
            lists.top_logprobs.append(best)
            text_bytes = chosen.token_bytes if chosen.token_bytes is not None else name.encode()
            lists.text_offset.append(self._offset(token_id, text_bytes, echo))
        return lists

    def _offset(self, token_id: int, text_bytes: bytes, echo: str | None) -> int:
        """Offset of a token with these bytes, which are counted if the text has them."""
        if token_id in self._special_ids and not self._shows(text_bytes.decode(errors="replace"), echo):
            text_bytes = b""
        continues = bool(text_bytes) and text_bytes[0] & 0xC0 == 0x80
        offset = max(0, self._started - 1) if continues else self._started
        self._started += sum(byte & 0xC0 != 0x80 for byte in text_bytes)
        return offset

    def _shows(self, special: str, echo: str | None) -> bool:
        if echo is None:
            return self._shows_special
        # One character further left, too: some tokenizers put a space before a text.
        return echo.find(special, max(0, self._started - 1), self._started + len(special)) >= 0
