"""API keys: what needs one, in which shapes it may come, and that no spelling of a path gets around it."""

import asyncio
import io
import logging

import httpx
import pytest
from live_app import live
from log_capture import logging_to
from stub_app import CHAT, COMPLETIONS, HI, StubApp, check_error, run

from octavo.api.auth import PROBE_PATHS, ApiKeys, check_keys, keys_from_environment
from octavo.api.server_args import ServerArgs
from octavo.core.errors import ConfigurationError
from octavo.core.logging import LineFormatter

KEY = "canary-key-81"
SECOND = "canary-key-82"
ROUTES = [CHAT, COMPLETIONS, "/v1/models", "/v1/models/stub-model", "/tokenize", "/detokenize", "/version", "/metrics",
          "/tokenizer_info", "/docs", "/openapi.json", "/v1/responses", "/v1/messages", "/v1/embeddings", "/",
          "/nowhere"]  # fmt: skip


def keyed(**args: object) -> StubApp:
    return StubApp(api_key=[KEY, SECOND], **args)


async def ask(
    app: StubApp, method: str, path: str, headers: dict[str, str] | list[tuple[str, str]] | None = None
) -> httpx.Response:
    async with app.client() as client:
        return await client.request(method, path, headers=headers, json={"messages": HI} if method == "POST" else None)


def variants(path: str) -> list[str]:
    """Other spellings of a path."""
    encoded = "/" + "".join(f"%{ord(letter):02x}" if letter.isalpha() else letter for letter in path[1:])
    return [
        path,
        "/" + path,
        path + "/",
        path.upper(),
        encoded,
        path + "?a=/health",
        "/health/.." + path,
        path + "/health",
    ]


def every_route() -> set[str]:
    """Those of the OpenAPI document that need a key, and others."""
    document = run(ask(StubApp(), "GET", "/openapi.json")).json()
    return {*ROUTES, *(path.replace("{", "").replace("}", "") for path in document["paths"])} - PROBE_PATHS


@pytest.mark.parametrize("headers", [{}, {"authorization": "bearer wrong-wrong", "x-api-key": "x"}], ids=str)
def test_no_spelling_of_any_route_answers_without_a_key(headers: dict[str, str]) -> None:
    routes = every_route()

    async def check() -> None:
        app = keyed()
        async with app.client() as client:
            for route in routes:
                for path in variants(route):
                    for method in ("GET", "POST", "HEAD", "OPTIONS", "PUT", "DELETE"):
                        response = await client.request(method, "http://stub" + path, headers=headers)
                        assert response.status_code == 401, (method, path, response.text)
                        assert response.headers["www-authenticate"] == "Bearer"
                        if method == "HEAD":
                            assert response.content == b""
                        else:
                            assert response.json()["error"]["code"] == "invalid_api_key"
        assert not app.engine.started

    run(check())


def test_a_refusal_has_the_shape_of_the_dialect() -> None:
    assert check_error(run(ask(keyed(), "POST", CHAT)), 401)["type"] == "invalid_request_error"
    refused = run(ask(keyed(), "POST", "/v1/messages")).json()
    assert refused["type"] == "error" and refused["error"]["type"] == "authentication_error"


@pytest.mark.parametrize("path", ["/health", "/live", "/ready"])
def test_probes_need_no_key(path: str) -> None:
    assert run(ask(keyed(), "GET", path)).status_code == 200
    assert run(ask(keyed(), "HEAD", path)).status_code == 200
    for other in (f"/{path}", path.upper(), f"{path}/", f"{path}//v1/models"):
        assert run(ask(keyed(), "GET", f"http://stub{other}")).status_code == 401


GOOD = [
    {"authorization": f"Bearer {KEY}"},
    {"authorization": f"bearer {SECOND}"},
    {"authorization": f"BEARER   {KEY} "},
    {"x-api-key": KEY},
    {"X-API-KEY": SECOND},
    {"authorization": "Bearer something-else", "x-api-key": KEY},
]
BAD = [
    {},
    {"authorization": "Bearer"},
    {"authorization": "Bearer "},
    {"authorization": KEY},
    {"authorization": f"Basic {KEY}"},
    {"authorization": f"Bearer {KEY}x"},
    {"authorization": f"Bearer {KEY[:-1]}"},
    {"authorization": f"Bearer {KEY.upper()}"},
    {"authorization": f"Bearer {KEY} {SECOND}"},
    {"authorization": f"Bearer {KEY},{SECOND}"},
    {"x-api-key": ""},
    {"x-api-key": f"Bearer {KEY}"},
    {"api-key": KEY},
    {"cookie": f"key={KEY}"},
]


@pytest.mark.parametrize("headers", GOOD, ids=str)
def test_each_key_opens_in_either_header(headers: dict[str, str]) -> None:
    assert run(ask(keyed(), "GET", "/v1/models", headers)).status_code == 200
    assert run(ask(keyed(), "POST", CHAT, headers)).status_code == 200


@pytest.mark.parametrize("headers", BAD, ids=str)
def test_whatever_is_not_exactly_a_key_is_refused(headers: dict[str, str]) -> None:
    assert run(ask(keyed(), "GET", "/v1/models", headers)).status_code == 401


def test_a_key_in_the_query_opens_nothing() -> None:
    assert run(ask(keyed(), "GET", f"/v1/models?api_key={KEY}&key={KEY}")).status_code == 401


def test_bytes_that_are_no_text_are_refused_like_any_wrong_key() -> None:
    assert not ApiKeys([KEY]).allow([(b"authorization", b"Bearer \xff\xfe\x00"), (b"x-api-key", b"\xe9")])


def test_of_two_headers_either_may_hold_the_key() -> None:
    headers = [("authorization", "Bearer wrong-wrong"), ("authorization", f"Bearer {KEY}")]
    assert run(ask(keyed(), "GET", "/v1/models", headers)).status_code == 200


def test_metrics_can_be_opened_for_a_scraper() -> None:
    assert run(ask(keyed(metrics_without_key=True), "GET", "/metrics")).status_code == 200
    assert run(ask(keyed(metrics_without_key=True), "GET", "/version")).status_code == 401
    assert run(ask(keyed(metrics_without_key=True), "POST", "/metrics")).status_code == 401


def test_the_proxys_prefix_changes_nothing() -> None:
    app = keyed(root_path="/llm")
    for path in ("/health", "/llm/health"):
        assert run(ask(app, "GET", path)).status_code == 200
    for path in ("/llm/v1/models", "/v1/models", "/llmx/health", "/llm//health", "/llm/llm/health"):
        assert run(ask(app, "GET", path)).status_code == 401, path
    assert run(ask(app, "GET", "/llm/v1/models", GOOD[0])).status_code == 200


def test_a_refusal_has_a_request_id_and_is_counted_and_logged(caplog: pytest.LogCaptureFixture) -> None:
    app = keyed()
    with caplog.at_level("INFO"):
        response = run(ask(app, "GET", "/v1/models"))
    assert response.headers["x-request-id"]
    assert "GET '/v1/models' refused: 401" in caplog.text
    assert b'octavo:requests_rejected_total{model_name="stub-model",reason="unauthorized"} 1.0' in app.metrics.render()


def test_a_large_body_without_a_key_is_refused_over_a_socket() -> None:
    async def check() -> None:
        async with live(keyed()) as port, httpx.AsyncClient() as client:
            for _ in range(2):
                response = await client.post(f"http://127.0.0.1:{port}{CHAT}", content=b"x" * 3_000_000)
                assert response.status_code == 401
            good = await client.get(f"http://127.0.0.1:{port}/v1/models", headers=GOOD[0])
            assert good.status_code == 200

    run(check())


def test_a_preflight_request_needs_no_key_but_the_request_behind_it_does() -> None:
    app = keyed(allowed_origins=["https://chat.example"])
    asked = {
        "origin": "https://chat.example",
        "access-control-request-method": "POST",
        "access-control-request-headers": "authorization, content-type",
    }
    preflight = run(ask(app, "OPTIONS", CHAT, asked))
    assert preflight.status_code == 200
    assert preflight.headers["access-control-allow-origin"] == "https://chat.example"
    assert "authorization" in preflight.headers["access-control-allow-headers"].lower()
    refused = run(ask(app, "POST", CHAT, {"origin": "https://chat.example"}))
    assert refused.status_code == 401
    assert refused.headers["access-control-allow-origin"] == "https://chat.example"
    assert run(ask(app, "OPTIONS", CHAT, {"origin": "https://chat.example"})).status_code == 401


def test_no_key_shows_in_any_log_or_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    log = io.StringIO()
    handler = logging.StreamHandler(log)
    handler.setFormatter(LineFormatter("api", tracebacks=True))
    wrong = "wrong-canary-99"

    async def everything() -> str:
        app = keyed()
        answers = []
        for key in (KEY, wrong):
            headers = {"authorization": f"Bearer {key}"}
            paths = ("/v1/models", "/metrics", "/version", "/docs", "/openapi.json", "/nowhere")
            answers += [(await ask(app, "GET", path, headers)).text for path in paths]
            answers.append((await ask(app, "POST", CHAT, headers)).text)
            app.engine.fail_after = 0
            answers.append((await ask(app, "POST", CHAT, headers)).text)
            monkeypatch.setattr(app.engine, "prepare", broken)
            answers.append((await ask(app, "POST", CHAT, headers)).text)
            answers.append((await ask(app, "GET", "/v1/models", {"authorization": f"Bearer{key}"})).text)
        async with live(app) as port:
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(f"GET /v1/models HTTP/1.1\r\nauthorization Bearer {KEY}\r\n\r\n".encode())
            answers.append((await reader.read(4000)).decode())
            writer.close()
        answers.append(repr(app.context.args) + str(app.context.args))
        return "".join(answers)

    async def broken(*_arguments: object, **_settings: object) -> None:
        raise ValueError("an injected fault")

    with logging_to(handler, logging.DEBUG, ""), logging_to(handler, logging.DEBUG):
        told = run(everything())
    for text in (told, log.getvalue()):
        assert text and "canary" not in text


def test_no_key_is_needed_where_none_is_set() -> None:
    assert run(ask(StubApp(), "GET", "/v1/models", {"authorization": "Bearer whatever"})).status_code == 200


@pytest.mark.parametrize("key", ["", " ", "with space", "ünicode", "line\nbreak"])
def test_a_key_that_no_client_could_send_is_refused_without_naming_it(key: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        check_keys([KEY, key])
    assert "API key 2 of 2" in str(caught.value)
    assert KEY not in str(caught.value) and (not key.strip() or key not in str(caught.value))


def test_keys_of_the_environment() -> None:
    assert keys_from_environment({}) == []
    assert keys_from_environment({"OCTAVO_API_KEY": f" {KEY} {SECOND}\n"}) == [KEY, SECOND]
    with pytest.raises(ConfigurationError, match="set but empty"):
        keys_from_environment({"OCTAVO_API_KEY": ""})


def test_settings_do_not_show_their_keys() -> None:
    assert KEY not in repr(ServerArgs(api_key=[KEY]))
