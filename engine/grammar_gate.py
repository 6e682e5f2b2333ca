"""Between arrival and the waiting queue: the workers compile a request's grammar while the steps go on."""

import logging
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

import msgspec

from ..core.config import EngineConfig
from ..core.grammar import GrammarSpec
from ..core.request import Request
from ..executor.executor import Executor
from .grammar_door import make_vocabulary
from .tokenizer import Tokenizer

logger = logging.getLogger("octavo.engine")

COMPILE_SECONDS = 30.0
"""Longest time that all workers together may take for one grammar. The door's limit is tighter."""

_POLL_SECONDS = 0.003
_THREADS = 8


class GrammarReady(NamedTuple):
    """What came of a request's grammar."""

    request: Request
    started: bool
    """The workers hold it, and must be told when the request is over."""
    error: str
    """Why the request cannot run; "" if it can."""


class GrammarGate:
    """Has grammars compiled by every worker, and says when all are done. Costs nothing until the first one comes."""

    def __init__(self, config: EngineConfig, executor: Executor, on_ready: Callable[[GrammarReady], None]) -> None:
        self._config = config
        self._executor = executor
        self._on_ready = on_ready
        self._threads = ThreadPoolExecutor(_THREADS, thread_name_prefix="octavo-grammar-gate")
        self._vocabulary_sent = False
        self._sending = threading.Lock()
        self._closed = threading.Event()

    def start(self, request: Request) -> None:
        """Returns at once; ``on_ready`` is called later, on another thread."""
        self._threads.submit(self._run, request)

    def close(self) -> None:
        """Give up what is being waited for."""
        self._closed.set()
        self._threads.shutdown(wait=False, cancel_futures=True)

    def _run(self, request: Request) -> None:
        assert request.grammar is not None
        started = False
        try:
            self._send_vocabulary(request.source.eos_token_ids)
            states = self._executor.call("start_grammar", request.grammar.kind, request.grammar.text)
            started = True
            error = self._wait(request.grammar, states)
        except Exception as failure:  # this request's trouble; if the workers are gone, the next step says so
            logger.debug("the grammar of %s failed", request.request_id, exc_info=True)
            error = f"the grammar failed to compile: {type(failure).__name__}: {failure}"
        self._on_ready(GrammarReady(request, started, error))

    def _wait(self, spec: GrammarSpec, states: list[str | None]) -> str:
        deadline = time.monotonic() + COMPILE_SECONDS
        while any(state is None for state in states):
            if time.monotonic() > deadline:
                return f"the grammar took longer than {COMPILE_SECONDS:g} s to compile"
            if self._closed.wait(_POLL_SECONDS):
                return "the engine was shut down"
            states = self._executor.call("grammar_state", spec.kind, spec.text)
        return next((state for state in states if state), "")

    def _send_vocabulary(self, end_ids: list[int]) -> None:
        with self._sending:
            if self._vocabulary_sent:
                return
            assert self._config.tokenizer is not None, "a grammar without a tokenizer passed the door"
            tokenizer = Tokenizer.from_folder(self._config.tokenizer)
            vocabulary = make_vocabulary(tokenizer, self._config.model.vocab_size, end_ids)
            self._executor.call("provide_vocabulary", *msgspec.structs.astuple(vocabulary))
            self._vocabulary_sent = True
