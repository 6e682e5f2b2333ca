"""The loop around ``EngineCore.step()``: takes what came in, steps, hands out what came of it."""

import logging
import queue
from collections.abc import Callable

from ..core.engine_input import AbortRequests, EngineCoreInput, EngineCoreRequest, UtilityCall
from ..core.engine_output import EngineCoreOutputs, Finished, UtilityResult
from ..core.errors import EngineDeadError, EngineError
from ..core.request import Request
from .engine_core import EngineCore
from .grammar_gate import GrammarReady

logger = logging.getLogger("octavo.engine")

Emit = Callable[[int, EngineCoreOutputs], None]
"""Sends a message to a client, by index. Called from the loop's and the input's threads."""

_UTILITIES = ("reset_prefix_cache", "request_timeline", "check_integrity")


class EngineLoop:
    """Runs on one thread. Input comes from others through ``receive``, which does all work that needs no state."""

    def __init__(self, core: EngineCore, emit: Emit) -> None:
        self.core = core
        self._emit = emit
        self._inputs: queue.SimpleQueue[Request | AbortRequests | UtilityCall | GrammarReady | EngineError | None]
        self._inputs = queue.SimpleQueue()
        self._turns = 0
        self._waits = False
        core.on_grammar = self._inputs.put
        core.executor.watch(self._fail)

    def receive(self, message: EngineCoreInput) -> None:
        """Take a message from a client, on the client's or the input thread. An error here is that request's error."""
        if isinstance(message, EngineCoreRequest):
            try:
                self._inputs.put(self.core.prepare(message))
            except Exception as error:
                logger.warning("request %s refused: %s", message.request_id, error)
                finished = Finished(message.handle, "error", error=f"{type(error).__name__}: {error}")
                self._emit(message.client_index, EngineCoreOutputs(0.0, finished=[finished]))
        else:
            self._inputs.put(message)

    def stop(self) -> None:
        """Let ``run`` return after the current step."""
        self._inputs.put(None)

    def _fail(self, cause: str) -> None:
        self._inputs.put(EngineDeadError(cause))

    def turns(self) -> int | None:
        """How many steps there were; None while there is nothing to do. Any thread may ask."""
        return None if self._waits else self._turns

    def run(self) -> None:
        """Until ``stop``. An exception of the model or of our own code ends the loop: the state may be half changed."""
        while self._take_inputs():
            for client, message in enumerate(self.core.step()):
                if message.has_news:
                    self._emit(client, message)
            self._turns += 1

    def _take_inputs(self) -> bool:
        """Apply what came in. Waits, without using any CPU, while there is nothing to do. False: stop."""
        changed = False
        while True:
            if self.core.has_work:
                try:
                    item = self._inputs.get_nowait()
                except queue.Empty:
                    return True
            else:
                if changed and self._inputs.empty():
                    self._report_idle()
                    changed = False
                self._waits = True
                item = self._inputs.get()
                self._waits = False
            if item is None:
                return False
            if isinstance(item, EngineError):
                raise item
            self._apply(item)
            changed = True

    def _apply(self, item: Request | AbortRequests | UtilityCall | GrammarReady) -> None:
        if isinstance(item, Request):
            self.core.add_request(item)
        elif isinstance(item, AbortRequests):
            self.core.abort(item)
        elif isinstance(item, GrammarReady):
            finished = self.core.grammar_ready(item)
            if finished is not None:
                self._emit(item.request.client_index, EngineCoreOutputs(0.0, finished=[finished]))
        else:
            self._emit(item.client_index, EngineCoreOutputs(0.0, results=[self._call(item)]))

    def _call(self, call: UtilityCall) -> UtilityResult:
        if call.method not in _UTILITIES:
            return UtilityResult(call.call_id, error=f"the engine has no utility {call.method!r}")
        try:
            return UtilityResult(call.call_id, getattr(self.core, call.method)(*call.arguments))
        except Exception as error:  # the caller's trouble; utilities only read, or change one thing at once
            return UtilityResult(call.call_id, error=f"{type(error).__name__}: {error}")

    def _report_idle(self) -> None:
        """Aborts that left nothing to do were no step, so no step's statistics told of them."""
        self._emit(0, EngineCoreOutputs(0.0, stats=self.core.scheduler.stats()))
