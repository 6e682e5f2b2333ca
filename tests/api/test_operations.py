"""What operators use: probes, queue limit, CORS, TLS, Unix sockets, reverse proxies, logs, timings, the docs page."""

import asyncio
import contextlib
import json
import logging
import re
import shutil
import socket
import ssl
import subprocess
from collections.abc import AsyncIterator, Coroutine
from pathlib import Path
from typing import Any

import httpx
import msgspec
import pytest
import uvloop
from log_capture import logging_to
from stub_app import CHAT, COMPLETIONS, HI, StubApp, check_error, run
from stub_engine import StubEngine, until

from octavo.api.http_server import HttpServer
from octavo.api.listener import listener_url, listening
from octavo.api.server_args import ServerArgs
from octavo.api.tls import server_tls
from octavo.core.errors import ConfigurationError
from octavo.core.logging import FIELDS, JsonFormatter, configure_logging

BODIES = {CHAT: {"messages": HI}, COMPLETIONS: {"prompt": "Hello"}}


def run_as_served(work: Coroutine[Any, Any, None]) -> None:
    """Run a test's coroutine on the server's own kind of event loop."""
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(work)


@contextlib.asynccontextmanager
async def serving(app: StubApp) -> AsyncIterator[str]:
    """The application behind the listener and TLS that its settings ask for; gives the URL."""
    args = app.context.args
    tls = server_tls(args)
    with listening(args) as listener:
        server = HttpServer(app.app, listener, tls)
        await server.start()
        try:
            yield listener_url(listener, args.host, "http" if tls is None else "https")
        finally:
            await server.close()


# Probes.


def test_live_while_loading_and_draining_ready_only_when_requests_can_be_served() -> None:
    app = StubApp()

    def probes() -> tuple[int, int, int]:
        live, ready, health = (run(app.get(path)).status_code for path in ("/live", "/ready", "/health"))
        return live, ready, health

    assert probes() == (200, 200, 200)
    app.engine.status = "loading"
    assert probes() == (200, 503, 503)
    app.engine.status = "ready"
    app.context.stopping = True
    assert probes() == (200, 503, 503)
    app.engine.die("gone")
    assert probes() == (503, 503, 503)


# The queue limit.


def test_beyond_the_queue_limit_requests_get_429_and_later_ones_are_served() -> None:
    async def check() -> None:
        engine = StubEngine(hold_after=1)
        scheduler = msgspec.structs.replace(engine.config.scheduler, max_num_seqs=2)
        engine.config = msgspec.structs.replace(engine.config, scheduler=scheduler)
        app = StubApp(engine, max_queued_requests=3)
        waiting = [asyncio.create_task(app.post(CHAT, {"messages": HI, "n": n})) for n in (1, 1, 3)]
        await until(lambda: len(engine.running) == 3)
        for path, body in BODIES.items():
            for stream in (False, True):
                refused = await app.post(path, body | {"stream": stream})
                error = check_error(refused, 429)
                assert error["code"] == "overloaded" and error["type"] == "rate_limit_error"
                assert int(refused.headers["retry-after"]) >= 1
        assert len(engine.started) == 3
        assert (await app.get("/health")).status_code == 200
        assert b'reason="overloaded"} 4.0' in app.metrics.render()
        engine.release.set()
        assert [response.status_code for response in await asyncio.gather(*waiting)] == [200] * 3
        assert (await app.post(CHAT, BODIES[CHAT])).status_code == 200
        assert app.context.open_requests.completions == 0

    run(check())


def test_the_limit_holds_for_requests_that_are_prepared_at_the_same_time() -> None:
    async def check() -> None:
        engine = StubEngine(hold_after=1)
        app = StubApp(engine, max_queued_requests=0)
        limit = engine.config.scheduler.max_num_seqs
        prepare = engine.prepare

        async def slow(*arguments: Any, **settings: Any) -> Any:
            await asyncio.sleep(0.005)
            return await prepare(*arguments, **settings)

        engine.prepare = slow  # type: ignore[method-assign]
        bodies = {"prompt": ["a"] * 32, "n": 4}
        tasks = [asyncio.create_task(app.post(COMPLETIONS, bodies)) for _ in range(5)]
        await until(lambda: sum(task.done() for task in tasks) == 5 - limit // 128)
        engine.release.set()
        codes = sorted(response.status_code for response in await asyncio.gather(*tasks))
        assert codes == [200] * (limit // 128) + [429] * (5 - limit // 128)

    run(check())


def test_a_request_that_is_larger_than_the_limit_runs_on_an_idle_server() -> None:
    app = StubApp(max_queued_requests=0)
    response = run(app.post(COMPLETIONS, {"prompt": ["a"] * 100, "n": 8}))
    assert response.status_code == 200 and len(response.json()["choices"]) == 800


# Who may come, and how.


async def options(app: StubApp, origin: str) -> httpx.Response:
    async with app.client() as client:
        return await client.options(CHAT, headers={"origin": origin, "access-control-request-method": "POST"})


def test_only_allowed_origins_may_use_the_server() -> None:
    app = StubApp(allowed_origins=["https://a.example", "http://localhost:3000"])
    good = run(options(app, "http://localhost:3000"))
    assert (good.status_code, good.headers["access-control-allow-origin"]) == (200, "http://localhost:3000")
    bad = run(options(app, "https://b.example"))
    assert bad.status_code == 400 and "access-control-allow-origin" not in bad.headers
    answer = run(app.post(CHAT, {"messages": HI}, {"origin": "https://a.example"}))
    assert answer.status_code == 200 and answer.headers["access-control-allow-origin"] == "https://a.example"
    assert "x-request-id" in answer.headers["access-control-expose-headers"]


def test_without_the_flag_no_origin_is_allowed() -> None:
    response = run(options(StubApp(), "https://a.example"))
    assert response.status_code == 405 and "access-control-allow-origin" not in response.headers


@pytest.mark.parametrize("origin", ["example.com", "https://a.example/", "https://a.example/path", ""])
def test_an_origin_that_would_never_match_is_told(origin: str) -> None:
    with pytest.raises(ConfigurationError, match="--allowed-origins"):
        ServerArgs(allowed_origins=[origin]).check()


@pytest.mark.parametrize("prefix", ["/llm", "/llm/"])
def test_behind_a_proxy_the_prefix_may_be_left_in_or_stripped(prefix: str) -> None:
    app = StubApp(root_path=prefix)
    for path in ("/v1/models", "/llm/v1/models"):
        assert run(app.get(path)).status_code == 200
    assert run(app.get("/llm/openapi.json")).json()["servers"] == [{"url": "/llm"}]
    assert run(app.get("/llm/docs")).status_code == 200
    with pytest.raises(ConfigurationError, match="--root-path"):
        ServerArgs(root_path="llm").check()


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A certificate for localhost and its key."""
    if shutil.which("openssl") is None:
        pytest.skip("needs the openssl command to make a certificate")
    folder = tmp_path_factory.mktemp("tls")
    cert, key = folder / "cert.pem", folder / "key.pem"
    command = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]
    command += ["-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1", "-days", "2"]
    subprocess.run([*command, "-keyout", str(key), "-out", str(cert)], check=True, capture_output=True)
    return cert, key


def test_tls_serves_https_and_only_that(certificate: tuple[Path, Path]) -> None:
    cert, key = certificate

    async def check() -> None:
        app = StubApp(port=0, ssl_certfile=str(cert), ssl_keyfile=str(key))
        async with serving(app) as url:
            assert url.startswith("https://127.0.0.1:")
            async with httpx.AsyncClient(verify=ssl.create_default_context(cafile=str(cert))) as client:
                assert (await client.get(f"{url}/health")).json() == {"status": "ready"}
                answer = await client.post(f"{url}{CHAT}", json={"messages": HI})
                assert answer.json()["choices"][0]["message"]["content"] == "Hello world"
            async with httpx.AsyncClient() as client:
                with pytest.raises(httpx.ConnectError):
                    await client.get(f"{url}/health")
                with pytest.raises(httpx.TransportError):
                    await client.get(f"{url}/health".replace("https", "http"))

    run_as_served(check())


def test_with_authorities_a_client_needs_a_certificate(certificate: tuple[Path, Path]) -> None:
    cert, key = certificate

    async def check() -> None:
        app = StubApp(port=0, ssl_certfile=str(cert), ssl_keyfile=str(key), ssl_ca_certs=str(cert))
        async with serving(app) as url:
            context = ssl.create_default_context(cafile=str(cert))
            async with httpx.AsyncClient(verify=context) as client:
                with pytest.raises(httpx.TransportError):
                    await client.get(f"{url}/health")
            context = ssl.create_default_context(cafile=str(cert))
            context.load_cert_chain(cert, key)
            async with httpx.AsyncClient(verify=context) as client:
                assert (await client.get(f"{url}/health")).status_code == 200

    run_as_served(check())


def test_files_that_are_no_certificate_are_told_before_anything_starts(
    certificate: tuple[Path, Path], tmp_path: Path
) -> None:
    cert, key = certificate
    junk = tmp_path / "junk.pem"
    junk.write_text("nothing")
    for files in ((junk, key), (cert, junk), (tmp_path / "none.pem", key), (cert, None)):
        with pytest.raises(ConfigurationError, match="--ssl-certfile"):
            server_tls(ServerArgs(ssl_certfile=str(files[0]), ssl_keyfile=files[1] and str(files[1])))
    with pytest.raises(ConfigurationError, match="--ssl-ca-certs"):
        server_tls(ServerArgs(ssl_certfile=str(cert), ssl_keyfile=str(key), ssl_ca_certs=str(junk)))
    with pytest.raises(ConfigurationError, match="need --ssl-certfile"):
        ServerArgs(ssl_keyfile=str(key)).check()


def test_a_unix_socket_serves_and_its_file_goes_with_the_server(tmp_path: Path) -> None:
    path = tmp_path / "octavo.sock"

    async def check() -> None:
        async with serving(StubApp(uds=str(path))) as url:
            assert url == f"unix:{path}" and path.is_socket()
            async with httpx.AsyncClient(transport=httpx.AsyncHTTPTransport(uds=str(path))) as client:
                answer = await client.post(f"http://local{CHAT}", json={"messages": HI})
                assert answer.json()["choices"][0]["message"]["content"] == "Hello world"
            with pytest.raises(ConfigurationError, match="in use"), listening(ServerArgs(uds=str(path))):
                pass
            assert path.is_socket()
        assert not path.exists()

    run_as_served(check())


def test_a_socket_file_that_a_killed_server_left_is_replaced(tmp_path: Path) -> None:
    path = tmp_path / "octavo.sock"
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(path))
    assert path.is_socket()
    with listening(ServerArgs(uds=str(path))), socket.socket(socket.AF_UNIX) as client:
        client.connect(str(path))
    assert not path.exists()


def test_a_file_that_is_no_socket_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "notes.txt"
    path.write_text("mine")
    with pytest.raises(ConfigurationError, match="no socket"), listening(ServerArgs(uds=str(path))):
        pass
    assert path.read_text() == "mine"
    for bad in (tmp_path / "none" / "octavo.sock", tmp_path / ("x" * 200)):
        with pytest.raises(ConfigurationError, match="--uds"), listening(ServerArgs(uds=str(bad))):
            pass


# What operators read.


@pytest.mark.parametrize("path", [CHAT, COMPLETIONS])
def test_timings_are_told_when_asked_for(path: str) -> None:
    app = StubApp(StubEngine(step_seconds=0.01))
    body = BODIES[path]
    assert "timings" not in run(app.post(path, body)).json()
    plain = run(app.post(path, body | {"timings": True})).json()["timings"]
    assert set(plain) == {"queue_ms", "prefill_ms", "decode_ms", "time_to_first_token_ms", "tokens_per_second"}
    assert plain["queue_ms"] >= 0 and plain["prefill_ms"] > 0 and plain["decode_ms"] > 0
    assert plain["time_to_first_token_ms"] == pytest.approx(plain["queue_ms"] + plain["prefill_ms"], abs=0.01)
    # "Hello world" and the end token: everything but the first token is decoding.
    tokens = len(app.engine.tokenizer.encode("Hello world"))
    assert plain["tokens_per_second"] == pytest.approx(tokens / (plain["decode_ms"] / 1000), rel=0.01)
    streamed = run(app.events(path, body | {"timings": True}))
    assert streamed[-1]["choices"] == [] and set(streamed[-1]["timings"]) == set(plain)
    assert "usage" not in streamed[-1] and not any("timings" in event for event in streamed[:-1])
    both = run(app.events(path, body | {"timings": True, "stream_options": {"include_usage": True}}))
    assert both[-1]["usage"]["total_tokens"] and both[-1]["timings"]["decode_ms"]


def test_timings_of_several_prompts_are_of_the_whole() -> None:
    answer = run(
        StubApp(StubEngine(step_seconds=0.01)).post(COMPLETIONS, {"prompt": ["a", "b"], "timings": True, "n": 2})
    )
    assert answer.json()["timings"]["tokens_per_second"] > 0


def test_the_docs_page_tells_every_route_and_loads_nothing() -> None:
    app = StubApp()
    page = run(app.get("/docs"))
    document = run(app.get("/openapi.json")).json()
    assert page.status_code == 200 and page.headers["content-type"].startswith("text/html")
    for path in document["paths"]:
        assert f"<code>{path}</code>" in page.text
    for name, schema in document["components"]["schemas"].items():
        assert f"id='{name}'" in page.text
        for field in schema.get("properties", {}):
            assert f"<code>{field}</code>" in page.text
    assert not re.search(r"<script|<link|<img|<iframe|@import|url\(|https?://", page.text)
    assert page.headers["content-security-policy"].startswith("default-src 'none'")
    assert run(app.get("/redoc")).status_code == 404


def test_a_log_in_json_has_one_object_per_line_with_the_numbers() -> None:
    formatter = JsonFormatter("api")
    lines: list[dict[str, Any]] = []

    class Collect(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            line = formatter.format(record)
            assert "\n" not in line
            lines.append(json.loads(line))

    with logging_to(Collect(), logging.INFO):
        run(
            StubApp().post(
                CHAT, {"messages": [{"role": "user", "content": "a secret\ntext"}]}, {"x-request-id": "mine-1"}
            )
        )
    (line,) = [line for line in lines if line.get("event") == "request"]
    assert line["level"] == "INFO" and line["process"] == "api" and line["endpoint"] == CHAT
    assert line["outcome"] == "stop" and line["completion_tokens"] > 0 and line["prefill_ms"] is not None
    assert line["x_request_id"] == "mine-1" and line["time"].endswith("+00:00")
    assert not any("secret" in json.dumps(line) for line in lines)


def test_an_exception_in_a_json_log_stays_on_one_line_and_fields_never_hide_the_message() -> None:
    def broken() -> logging.LogRecord:
        try:
            raise ValueError("several\nlines")
        except ValueError as error:
            info = (type(error), error, error.__traceback__)
        return logging.LogRecord("octavo.x", logging.ERROR, "", 0, "it %s", ("broke",), info)

    record = broken()
    record.__dict__[FIELDS] = {"message": "other", "handle": 5, "path": Path("/x")}
    line = JsonFormatter("api").format(record)
    assert "\n" not in line
    assert json.loads(line) | {"time": ""} == {
        "time": "", "level": "ERROR", "process": "api", "logger": "octavo.x", "message": "it broke",
        "error": "ValueError: several\nlines", "handle": 5, "path": "/x",
    }  # fmt: skip
    assert "Traceback" in json.loads(JsonFormatter("api", tracebacks=True).format(record))["traceback"]


def test_the_log_format_comes_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    logger = logging.getLogger("octavo")
    monkeypatch.setattr(logger, "handlers", [])
    monkeypatch.setattr(logger, "propagate", True)
    monkeypatch.setenv("OCTAVO_LOGGING_FORMAT", "json")
    configure_logging("engine-0")
    assert isinstance(logger.handlers[0].formatter, JsonFormatter)
    monkeypatch.setenv("OCTAVO_LOGGING_FORMAT", "yaml")
    with pytest.raises(ConfigurationError, match="OCTAVO_LOGGING_FORMAT"):
        configure_logging("engine-0")
