"""From grammars to matchers, over llguidance. Nothing else in Octavo knows that library.

Imports no torch: the API process compiles grammars as well, to tell at the door which ones are wrong.
"""

import re

import llguidance
import numpy as np
from llguidance.gbnf_to_lark import gbnf_to_lark
from tokenizers import Tokenizer

from ..core.grammar import BLANKS, JSON_SCHEMA, REGEX, GrammarSpec
from .grammar_cache import GrammarError, Vocabulary

Matcher = llguidance.LLMatcher
"""Follows one output through a grammar; ``deep_copy`` of a fresh one starts another."""

_SPECIAL = b"\xff"
"""How llguidance marks a token that is no text: this byte stands in no UTF-8."""

_LIMITS = {"max_lexer_states": 50_000, "max_items_in_row": 10_000, "verbose_errors": False}
"""A state takes 1 to 2 kB; the library's own limit would allow half a gigabyte for one grammar. Its limit of items is
too low for an object of a few hundred optional properties; with this one a mask takes at most some 20 ms."""

_GBNF_RULE = re.compile(r"^\s*[\w-]+\s*::=", re.MULTILINE)
_ONE_OF = "oneOf constraints are not supported. Enable 'coerce_one_of' option to approximate oneOf with anyOf"
_UNIMPLEMENTED = re.compile(r"Unimplemented keys: \[([^\]]*)\]")
_MAX_MESSAGE = 500


class GrammarCompiler:
    """Compiles for one vocabulary. Safe to use from several threads; the interpreter lock is free meanwhile."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        wrapper = llguidance.TokenizerWrapper(_TokenTable(vocabulary))
        self._tokenizer = llguidance.LLTokenizer(
            wrapper, n_vocab=len(vocabulary.token_bytes), eos_token=list(vocabulary.end_ids)
        )
        self._end_ids = vocabulary.end_ids
        self.mask_words = -(-len(vocabulary.token_bytes) // 32)
        """Words of 32 bits in one mask."""

    def compile(self, spec: GrammarSpec) -> Matcher:
        """A matcher at the beginning of the grammar. Raises ``GrammarError``."""
        matcher = Matcher(self._tokenizer, _library_grammar(spec), log_level=0, limits=_limits())
        if matcher.is_error():
            raise GrammarError(_readable(matcher.get_error()))
        probe = matcher.deep_copy()
        mask = np.zeros((1, self.mask_words), np.int32)
        probe.unsafe_compute_mask_ptr(mask.ctypes.data, mask.nbytes)
        if probe.is_error() or not mask.any():
            raise GrammarError(f"no text satisfies it ({_readable(probe.get_error()) or 'nothing can begin'})")
        return matcher


class _TokenTable:
    """A vocabulary in the shape that llguidance asks for."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        special = {*vocabulary.special_ids, *vocabulary.end_ids}
        self.tokens = [
            _SPECIAL + (text or b"<%d>" % token) if token in special else text
            for token, text in enumerate(vocabulary.token_bytes)
        ]
        self.special_token_ids = sorted(special)
        self.eos_token_id = vocabulary.end_ids[0]
        self.bos_token_id = None
        self._backend = Tokenizer.from_str(vocabulary.definition)
        self._ids = {text: token for token, text in enumerate(vocabulary.token_bytes) if text and token not in special}
        self._longest = max(map(len, self._ids), default=1)

    def __call__(self, text: bytes) -> list[int]:
        """Token ids of exactly these bytes: as the tokenizer cuts them, or, where it adds or changes something, the
        longest tokens that fit."""
        try:
            ids = self._backend.encode(text.decode(), add_special_tokens=False).ids
        except UnicodeDecodeError:
            ids = []
        if b"".join(self.tokens[token] for token in ids if token < len(self.tokens)) == text:
            return ids
        return self._greedy(text)

    def _greedy(self, text: bytes) -> list[int]:
        ids: list[int] = []
        place = 0
        while place < len(text):
            for end in range(min(len(text), place + self._longest), place, -1):
                token = self._ids.get(text[place:end])
                if token is not None:
                    ids.append(token)
                    place = end
                    break
            else:
                place += 1  # a byte that no token stands for: what needs it cannot be written at all
        return ids


def _limits() -> llguidance.LLParserLimits:
    return llguidance.LLParserLimits(**_LIMITS)


def _library_grammar(spec: GrammarSpec) -> str:
    if spec.kind == JSON_SCHEMA:
        return Matcher.grammar_from_json_schema(spec.text, overrides={"whitespace_pattern": BLANKS})
    if spec.kind == REGEX:
        return Matcher.grammar_from_regex(spec.text)
    if _GBNF_RULE.search(spec.text) is None:
        return Matcher.grammar_from_lark(spec.text)
    try:
        return Matcher.grammar_from_lark(gbnf_to_lark(spec.text))
    except Exception as error:  # the converter has a parser of its own, which raises what it likes
        raise GrammarError(f"it is no grammar that can be read: {error}") from error


def _readable(message: str) -> str:
    """The library's message without its dump of the parser's state, and of the grammar around the place it names."""
    text = " ".join(re.split(r"<state>|<backtrace>|<non-verbose/>|\n\s*\d+ \| ", message)[0].split())[:_MAX_MESSAGE]
    text = text.replace(_ONE_OF, "oneOf is only supported where its branches exclude each other; use anyOf")
    unknown = _UNIMPLEMENTED.search(text)
    if unknown is None:
        return text
    keywords = unknown.group(1).replace('"', "")
    return text.replace(unknown.group(0), f"the JSON schema cannot be enforced here because of: {keywords}")
