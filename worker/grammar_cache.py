"""Compiled grammars by their text: made in the background, kept while anyone needs them.

The compiler and its library are only loaded when the first grammar comes.
"""

import threading
from collections import OrderedDict
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TYPE_CHECKING

import msgspec

from ..core.grammar import GrammarSpec

if TYPE_CHECKING:
    from .grammar_compiler import GrammarCompiler, Matcher


class GrammarError(Exception):
    """A grammar that does not compile, or that no text can satisfy. The message is meant for its author."""


class Vocabulary(msgspec.Struct, frozen=True, kw_only=True):
    """What a tokenizer's ids stand for."""

    token_bytes: list[bytes]
    """By id, up to the model's vocabulary size; none for an id without text."""
    special_ids: list[int]
    """Ids that are no plain text, whatever their name."""
    end_ids: list[int]
    """Ids that end an answer; at least one."""
    definition: str
    """The tokenizer as JSON of the ``tokenizers`` library: text that a grammar forces is cut into its tokens."""


class GrammarCache:
    """What is compiled, by spec: all that unfinished requests hold, and the ones used last of the others.

    ``start`` and ``release`` come in pairs; ``matcher`` may be called in between, any number of times.
    """

    def __init__(self, capacity: int = 128) -> None:
        self._capacity = capacity
        self._vocabulary: Vocabulary | None = None
        self._compiler: GrammarCompiler | None = None
        self._building = threading.Lock()
        self._lock = threading.Lock()
        self._entries: OrderedDict[GrammarSpec, Future[Matcher]] = OrderedDict()
        self._holds: dict[GrammarSpec, int] = {}
        self._threads: ThreadPoolExecutor | None = None

    def provide(self, vocabulary: Vocabulary) -> None:
        """The vocabulary; needed before the first ``start``. What it takes is done when the first grammar comes."""
        self._vocabulary = vocabulary

    def start(self, spec: GrammarSpec) -> None:
        """Have it compiled in the background, unless it is already, and keep it until ``release``."""
        with self._lock:
            self._holds[spec] = self._holds.get(spec, 0) + 1
            if spec in self._entries:
                self._entries.move_to_end(spec)
                return
            if self._threads is None:
                self._threads = ThreadPoolExecutor(2, thread_name_prefix="octavo-grammar")
            self._entries[spec] = self._threads.submit(self._compile, spec)
            self._evict()

    def state(self, spec: GrammarSpec) -> str | None:
        """Of a started one: None while it compiles, then "" or what is wrong with it."""
        with self._lock:
            entry = self._entries[spec]
        if not entry.done():
            return None
        error = entry.exception()
        return "" if error is None else str(error) or type(error).__name__

    def matcher(self, spec: GrammarSpec) -> "Matcher":
        """A matcher at the beginning of the grammar. Waits if it is not compiled yet. Raises ``GrammarError``."""
        with self._lock:
            entry = self._entries[spec]
        return entry.result().deep_copy()

    def release(self, spec: GrammarSpec) -> None:
        """A request that started it is over."""
        with self._lock:
            left = self._holds[spec] - 1
            if left:
                self._holds[spec] = left
            else:
                del self._holds[spec]
                self._evict()

    def _evict(self) -> None:
        for spec in list(self._entries):
            if len(self._entries) <= self._capacity:
                return
            if spec not in self._holds:
                del self._entries[spec]

    def _compile(self, spec: GrammarSpec) -> "Matcher":
        return self.compiler().compile(spec)

    def compiler(self) -> "GrammarCompiler":
        """The compiler, built when it is needed for the first time (a tenth of a second)."""
        with self._building:
            if self._compiler is None:
                assert self._vocabulary is not None, "a grammar came before the vocabulary"
                from .grammar_compiler import GrammarCompiler

                self._compiler, self._vocabulary = GrammarCompiler(self._vocabulary), None
            return self._compiler

    def close(self) -> None:
        """End the threads."""
        if self._threads is not None:
            self._threads.shutdown(wait=False, cancel_futures=True)
