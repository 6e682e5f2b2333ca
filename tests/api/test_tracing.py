"""OpenTelemetry traces: one span per request with its phases, never any text; and clear words where they cannot be."""

import json
import subprocess
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode
from stub_app import CHAT, COMPLETIONS, HI, MODEL, StubApp, run
from stub_engine import StubEngine

from octavo.api import tracing
from octavo.api.app import build_app
from octavo.api.server_args import ServerArgs
from octavo.api.tracing import Tracing, check_tracing, open_tracing
from octavo.core.errors import ConfigurationError

PARENT = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"


def traced(engine: StubEngine | None = None) -> tuple[StubApp, Tracing, InMemorySpanExporter]:
    app = StubApp(engine)
    exporter = InMemorySpanExporter()
    tracer = Tracing(exporter, MODEL)
    app.app = build_app(app.context, app.metrics, tracer)
    return app, tracer, exporter


def spans_of(tracer: Tracing, exporter: InMemorySpanExporter) -> dict[str, ReadableSpan]:
    tracer.close()
    return {span.name: span for span in exporter.get_finished_spans()}


@pytest.mark.parametrize("stream", [False, True])
def test_a_request_is_a_span_with_its_phases_as_children(stream: bool) -> None:
    app, tracer, exporter = traced(StubEngine(step_seconds=0.005))
    secret = [{"role": "user", "content": "a secret text"}]
    run(app.post(CHAT, {"messages": secret, "stream": stream}, {"traceparent": PARENT}))
    spans = spans_of(tracer, exporter)
    assert set(spans) == {"llm_request", "queue", "prefill", "decode"}
    root = spans["llm_request"]
    assert root.kind is SpanKind.SERVER and root.parent is not None
    assert f"{root.context.trace_id:032x}" == "4bf92f3577b34da6a3ce929d0e0e4736"
    assert f"{root.parent.span_id:016x}" == "00f067aa0ba902b7"
    attributes = dict(root.attributes or {})
    assert attributes["gen_ai.response.model"] == MODEL and attributes["http.route"] == CHAT
    assert attributes["gen_ai.usage.completion_tokens"] == len(app.engine.tokenizer.encode("Hello world")) + 1
    assert attributes["gen_ai.response.finish_reasons"] == ("stop",)
    assert attributes["gen_ai.latency.time_in_model_decode"] > 0
    assert attributes["gen_ai.latency.e2e"] >= attributes["gen_ai.latency.time_to_first_token"]
    for name in ("queue", "prefill", "decode"):
        child = spans[name]
        assert child.parent is not None and child.parent.span_id == root.context.span_id
        assert root.start_time <= child.start_time <= child.end_time <= root.end_time
    assert spans["prefill"].end_time == spans["decode"].start_time
    assert "secret" not in "".join(span.to_json() for span in spans.values())


def test_a_failed_request_is_an_error_and_a_refused_one_no_span() -> None:
    app, tracer, exporter = traced(StubEngine(fail_after=0))
    run(app.post(COMPLETIONS, {"prompt": "a"}))
    run(app.post(CHAT, {"messages": HI, "temperature": -1}))
    run(app.get("/v1/models"))
    spans = spans_of(tracer, exporter)
    assert spans["llm_request"].status.status_code is StatusCode.ERROR
    assert len(exporter.get_finished_spans()) == 1


def test_spans_reach_a_collector() -> None:
    received: list[tuple[str, bytes]] = []

    class Collector(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            received.append((self.path, self.rfile.read(int(self.headers["content-length"]))))
            self.send_response(200)
            self.end_headers()

        def log_message(self, *_arguments: object) -> None:
            pass

    server = HTTPServer(("127.0.0.1", 0), Collector)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        tracer = open_tracing(f"http://127.0.0.1:{server.server_port}", MODEL)
        assert tracer is not None
        app = StubApp()
        app.app = build_app(app.context, app.metrics, tracer)
        run(app.post(CHAT, {"messages": HI}))
        tracer.close()
    finally:
        server.shutdown()
        server.server_close()
        thread.join(5)
    assert [path for path, _ in received] == ["/v1/traces"]
    assert b"llm_request" in received[0][1] and b"octavo" in received[0][1]


def test_a_collector_that_is_gone_does_not_hold_up_the_end() -> None:
    code = (
        "import sys; sys.path.insert(0, sys.argv[1])\n"
        "from stub_app import CHAT, HI, MODEL, StubApp, run\n"
        "from octavo.api.app import build_app\n"
        "from octavo.api.tracing import open_tracing\n"
        "app, tracer = StubApp(), open_tracing('http://127.0.0.1:9', MODEL)\n"
        "app.app = build_app(app.context, app.metrics, tracer)\n"
        "assert run(app.post(CHAT, {'messages': HI})).status_code == 200\n"
        "began = time.monotonic()\n"
        "tracer.close()\n"
        "print(time.monotonic() - began)\n"
    )
    support = str(Path(__file__).parents[1] / "support")
    command = [sys.executable, "-P", "-c", "import time\n" + code, support]
    began = time.monotonic()
    result = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    closing = float(result.stdout)
    # The exporter itself would try again for more than seven seconds, before close returns or at the exit.
    assert closing < 6 and time.monotonic() - began < closing + 30
    assert "127.0.0.1" in result.stderr


def test_without_an_endpoint_nothing_is_traced() -> None:
    check_tracing(ServerArgs())
    assert open_tracing(None, MODEL) is None


@pytest.mark.parametrize("endpoint", ["localhost:4318", "grpc://localhost:4317", "http://", ""])
def test_an_endpoint_that_is_no_url_is_told(endpoint: str) -> None:
    with pytest.raises(ConfigurationError, match="--otlp-endpoint"):
        check_tracing(ServerArgs(otlp_endpoint=endpoint))


def test_missing_packages_are_told_with_the_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tracing, "_PACKAGES", ("opentelemetry.sdk", "no_such_package.exporter"))
    with pytest.raises(ConfigurationError, match=r"octavo\[otel\]"):
        check_tracing(ServerArgs(otlp_endpoint="http://localhost:4318"))


def test_spans_can_be_read_as_json() -> None:
    app, tracer, exporter = traced()
    run(app.post(COMPLETIONS, {"prompt": ["a", "b"], "n": 2}))
    span = spans_of(tracer, exporter)["llm_request"]
    assert json.loads(span.to_json())["attributes"]["gen_ai.request.n"] == 2
