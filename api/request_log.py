"""One log line per request that was to generate something, with the numbers people want. Never any text of it."""

import logging
import time
from typing import Any

import msgspec
from starlette.types import Scope

from ..core.errors import OctavoError, RequestError
from ..core.logging import FIELDS
from .generation import Generation
from .protocol_answers import Timings

logger = logging.getLogger(__name__)

_LOG = "octavo.request_log"


class RequestLog:
    """Writes the line of one HTTP request. ``http_request_id``: the ``x-request-id`` that the client sent, if any."""

    def __init__(self, endpoint: str, http_request_id: str | None, enabled: bool) -> None:
        self._endpoint = endpoint
        self._http_request_id = http_request_id
        self._enabled = enabled
        self._received = time.monotonic()

    def refused(self, error: OctavoError, status: int) -> None:
        """The request did not get as far as a generation. The error's message stays out: it may quote the request."""
        if not self._enabled:
            return
        code, param = (error.code, error.param) if isinstance(error, RequestError) else (None, None)
        # A path within the request may hold names that the client has chosen.
        shown = "".join(letter if " " <= letter < "\x7f" else "?" for letter in (param or "")[:96])
        outcome = f"error {status}"
        text = outcome + ("" if code is None else f" {code}") + (f" ({shown})" if shown else "")
        fields = {"event": "refusal", "outcome": outcome, "code": code, "param": shown or None}
        self._write(f"{self._endpoint}: {text}, ", fields)

    def finished(self, generation: Generation) -> None:
        """The request was answered in full."""
        reasons = [reason for reason in generation.finish_reasons if reason is not None]
        self.ended(generation, ",".join(sorted(set(reasons))) or "none")

    def ended(self, generation: Generation, why: str) -> None:
        """The request ended early."""
        if not self._enabled:
            return
        prompt, cached = generation.num_prompt_tokens, generation.num_cached_tokens
        output = generation.num_completion_tokens
        tokens = f"prompt {prompt} (cached {cached}), output {output}"
        numbers = {"prompt_tokens": prompt, "cached_tokens": cached, "completion_tokens": output}
        fields = {"event": "request", "request_id": generation.request_id, "outcome": why} | numbers
        times = generation.times_told
        text = f"{generation.request_id} {self._endpoint}: {tokens}, {why}, {_written(times)}"
        self._write(text, fields | msgspec.structs.asdict(times))

    def _write(self, text: str, fields: dict[str, Any]) -> None:
        """The line, and the same by name for a log in JSON."""
        total = time.monotonic() - self._received
        told_id = "" if self._http_request_id is None else f", x-request-id {self._http_request_id}"
        fields |= {"x_request_id": self._http_request_id, "endpoint": self._endpoint}
        fields["total_ms"] = round(1000 * total, 3)
        logger.info("%stotal %.3f s%s", text, total, told_id, extra={FIELDS: fields})


def keep_log(scope: Scope, log: RequestLog) -> None:
    """Have it at hand for ``log_refusal``."""
    scope[_LOG] = log


def log_refusal(scope: Scope, error: OctavoError, status: int) -> None:
    """Write the line of a request that ends with an error before it generated anything, if such requests have one."""
    log: RequestLog | None = scope.get(_LOG)
    if log is not None:
        log.refused(error, status)


def _written(times: Timings) -> str:
    """``queue 2 ms, first token 35 ms, 61.2 tok/s, `` as far as it is known."""
    told = (
        ("queue {:.0f} ms, ", times.queue_ms),
        ("first token {:.0f} ms, ", times.time_to_first_token_ms),
        ("{:.1f} tok/s, ", times.tokens_per_second),
    )
    return "".join(text.format(value) for text, value in told if value is not None)
