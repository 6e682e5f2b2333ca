"""Grammars at the door: each one is compiled once before its request runs, so that a wrong one is a 400."""

import hashlib
import logging
import threading
from collections import OrderedDict
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

from ..core.errors import RequestError
from ..core.grammar import PARAM, GrammarSpec, StructuredOutputs
from ..worker.grammar_cache import GrammarError, Vocabulary
from .tokenizer import Tokenizer

if TYPE_CHECKING:
    from ..worker.grammar_compiler import GrammarCompiler

logger = logging.getLogger("octavo.engine")

COMPILE_SECONDS = 10.0
"""Longest time that one grammar may take. The library limits the work as well; the slowest seen took 0.4 s."""

_THREADS = 4
_VERDICTS = 1024


def make_vocabulary(tokenizer: Tokenizer, vocab_size: int, end_ids: list[int]) -> Vocabulary:
    """What the ids of a model with ``vocab_size`` ids stand for."""
    return Vocabulary(
        token_bytes=[tokenizer.token_bytes(token) for token in range(vocab_size)],
        special_ids=sorted(token for token in tokenizer.special_ids if token < vocab_size),
        end_ids=end_ids,
        definition=tokenizer.definition,
    )


class GrammarDoor:
    """Checks grammars against one model's vocabulary. Safe to use from several threads."""

    def __init__(self, tokenizer: Tokenizer | None, vocab_size: int, end_ids: list[int]) -> None:
        self._tokenizer = tokenizer
        self._vocab_size = vocab_size
        self._end_ids = end_ids
        self._compiler: GrammarCompiler | None = None
        self._lock = threading.Lock()
        self._threads = ThreadPoolExecutor(_THREADS, thread_name_prefix="octavo-grammar")
        self._verdicts: OrderedDict[bytes, str] = OrderedDict()
        """What was wrong with the grammars seen last, by digest; "" for the good ones."""

    def admit(self, wanted: StructuredOutputs) -> GrammarSpec:
        """The grammar to send to the engine. May take a while: not for an event loop. Raises ``RequestError``."""
        if self._tokenizer is None:
            raise RequestError("structured output needs a tokenizer, and none is loaded (skip_tokenizer_init)", PARAM)
        if not self._end_ids:
            raise RequestError("structured output needs a model with an end token, and this one has none", PARAM)
        spec = wanted.spec(self._tokenizer.special_texts)
        digest = hashlib.sha256(f"{spec.kind} {spec.text}".encode("utf-8", "surrogatepass")).digest()
        verdict = self._verdicts.get(digest)
        if verdict is None:
            verdict = self._judge(spec, wanted)
            with self._lock:
                self._verdicts[digest] = verdict
                if len(self._verdicts) > _VERDICTS:
                    self._verdicts.popitem(last=False)
        if verdict:
            raise RequestError(f"{wanted.given[0]}: {verdict}", PARAM)
        return spec

    def _judge(self, spec: GrammarSpec, wanted: StructuredOutputs) -> str:
        self._ready_compiler()  # its own time does not count
        try:
            return self._threads.submit(self._compile, spec).result(COMPILE_SECONDS)
        except TimeoutError as error:  # no verdict to be kept: perhaps only the machine was busy
            reason = f"compiling it takes longer than {COMPILE_SECONDS:g} s; make it smaller"
            raise RequestError(f"{wanted.given[0]}: {reason}", PARAM) from error

    def _compile(self, spec: GrammarSpec) -> str:
        try:
            spec.text.encode()
            self._ready_compiler().compile(spec)
        except GrammarError as error:
            return str(error)
        except UnicodeEncodeError as error:
            return f"it is not valid Unicode: {error}"
        except Exception as error:  # of the library: this grammar's trouble, whatever it is
            logger.warning("a grammar failed to compile: %s", error)
            return f"it cannot be compiled: {type(error).__name__}"
        return ""

    def _ready_compiler(self) -> "GrammarCompiler":
        with self._lock:
            if self._compiler is None:
                # Imported here: only servers that are asked for a shape need the library.
                from ..worker.grammar_compiler import GrammarCompiler

                assert self._tokenizer is not None
                vocabulary = make_vocabulary(self._tokenizer, self._vocab_size, self._end_ids)
                self._compiler = GrammarCompiler(vocabulary)
            return self._compiler
