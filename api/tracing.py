"""OpenTelemetry traces: one span per request that generates, with a child each for its queue, prefill and decode time.

The packages are the optional extra ``otel`` and imported only when ``--otlp-endpoint`` asks for traces. Spans carry
numbers and names, never any text of a request.
"""

import importlib.util
import os
import threading
import time
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from ..core.errors import ConfigurationError
from ..core.logging import adopt_logger

if TYPE_CHECKING:
    from opentelemetry.sdk.trace.export import SpanExporter

    from .generation import Generation
    from .server_args import ServerArgs

TRACES_PATH = "/v1/traces"
TRACING = "octavo.tracing"
"""Where the ASGI scope of a request holds the ``Tracing``, if there is one."""
CLOSE_SECONDS = 1.0
_PACKAGES = ("opentelemetry.sdk", "opentelemetry.exporter.otlp.proto.http")


def check_tracing(args: "ServerArgs") -> None:
    """Raises ``ConfigurationError`` if traces are asked for and cannot be sent."""
    if args.otlp_endpoint is None:
        return
    parts = urlsplit(args.otlp_endpoint)
    if parts.scheme not in ("http", "https") or not parts.netloc:
        raise ConfigurationError(
            f"--otlp-endpoint {args.otlp_endpoint!r} is no URL of a collector; write it like http://localhost:4318"
        )
    if not all(_installed(package) for package in _PACKAGES):
        raise ConfigurationError(
            "--otlp-endpoint needs the OpenTelemetry packages: pip install 'octavo[otel]', or leave the flag out"
        )


def _installed(package: str) -> bool:
    try:
        return importlib.util.find_spec(package) is not None
    except ModuleNotFoundError:
        return False


def open_tracing(endpoint: str | None, model_name: str) -> "Tracing | None":
    """Traces to the collector at ``endpoint``; None if there is none."""
    if endpoint is None:
        return None
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter

    adopt_logger("opentelemetry")
    url = endpoint if urlsplit(endpoint).path.strip("/") else endpoint.rstrip("/") + TRACES_PATH
    return Tracing(OTLPSpanExporter(endpoint=url), model_name)


class Tracing:
    """Makes the spans of ended requests; a thread of its own sends them in batches."""

    def __init__(self, exporter: "SpanExporter", model_name: str) -> None:
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor

        # The variable is the field's own way to name a service; it wins.
        named = {} if "OTEL_SERVICE_NAME" in os.environ else {"service.name": "octavo"}
        # Not at the interpreter's exit, which would wait for a collector that is gone.
        self._provider = TracerProvider(resource=Resource.create(named), shutdown_on_exit=False)
        self._provider.add_span_processor(BatchSpanProcessor(exporter))
        self._tracer = self._provider.get_tracer("octavo")
        self._model_name = model_name

    def record(self, generation: "Generation", headers: list[tuple[bytes, bytes]], path: str, outcome: str) -> None:
        """The spans of a request that has just ended; a ``traceparent`` among ``headers`` becomes their parent.

        ``outcome``: ``ok``, ``client gone`` or ``error`` with the HTTP status.
        """
        from opentelemetry.trace import SpanKind, Status, StatusCode, set_span_in_context
        from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

        end = time.time()
        phases = generation.phases
        carrier = {
            name.decode("latin-1"): value.decode("latin-1")
            for name, value in headers
            if name in (b"traceparent", b"tracestate")
        }
        parent = TraceContextTextMapPropagator().extract(carrier)
        start = end if phases is None else phases.arrival
        span = self._tracer.start_span("llm_request", parent, SpanKind.SERVER, start_time=_nanoseconds(start))
        span.set_attributes(self._attributes(generation, path, end))
        if outcome.startswith("error"):
            span.set_status(Status(StatusCode.ERROR, outcome))
        if phases is not None:
            inside = set_span_in_context(span)
            marks = {"queue": phases.queue, "prefill": phases.prefill, "decode": phases.decode}
            for name, interval in marks.items():
                if interval is not None:
                    child = self._tracer.start_span(name, inside, start_time=_nanoseconds(interval[0]))
                    child.end(_nanoseconds(interval[1]))
        span.end(_nanoseconds(end))

    def _attributes(self, generation: "Generation", path: str, end: float) -> dict[str, Any]:
        reasons = sorted({reason for reason in generation.finish_reasons if reason is not None})
        attributes: dict[str, Any] = {
            "http.route": path,
            "gen_ai.request.id": generation.request_id,
            "gen_ai.response.model": self._model_name,
            "gen_ai.request.n": generation.n,
            "gen_ai.usage.prompt_tokens": generation.num_prompt_tokens,
            "gen_ai.usage.cached_tokens": generation.num_cached_tokens,
            "gen_ai.usage.completion_tokens": generation.num_completion_tokens,
            "gen_ai.response.finish_reasons": reasons,
        }
        phases = generation.phases
        if phases is None:
            return attributes
        attributes["gen_ai.latency.e2e"] = end - phases.arrival
        if phases.queue is not None:
            attributes["gen_ai.latency.time_in_queue"] = phases.queue[1] - phases.queue[0]
        if phases.prefill is not None:
            attributes["gen_ai.latency.time_in_model_prefill"] = phases.prefill[1] - phases.prefill[0]
            attributes["gen_ai.latency.time_to_first_token"] = phases.prefill[1] - phases.arrival
        if phases.decode is not None:
            attributes["gen_ai.latency.time_in_model_decode"] = phases.decode[1] - phases.decode[0]
        return attributes

    def close(self) -> None:
        """Send what is left, for at most ``CLOSE_SECONDS``: a collector that is gone must not hold up the end."""
        thread = threading.Thread(target=self._provider.shutdown, name="traces", daemon=True)
        thread.start()
        thread.join(CLOSE_SECONDS)


def _nanoseconds(seconds: float) -> int:
    return int(seconds * 1e9)
