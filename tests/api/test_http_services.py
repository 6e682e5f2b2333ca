"""Models, health, version, tokenizing and the OpenAPI document."""

import httpx
import msgspec
import pytest
from stub_app import CHAT, HI, MODEL, StubApp, check_error, run, strict_json
from stub_engine import StubEngine

from octavo import __version__
from octavo.api.protocol import ChatCompletionRequest


def test_models_lists_every_served_name() -> None:
    app = StubApp()
    listed = strict_json(run(app.get("/v1/models")).content)
    assert listed["object"] == "list"
    assert [card["id"] for card in listed["data"]] == [MODEL, "other-name"]
    assert all(card["object"] == "model" and card["max_model_len"] == 256 for card in listed["data"])
    assert strict_json(run(app.get(f"/v1/models/{MODEL}")).content) == listed["data"][0]
    check_error(run(app.get("/v1/models/else")), 404, "model")


def test_health_tells_the_state_and_the_cause_of_death() -> None:
    app = StubApp()
    assert strict_json(run(app.get("/health")).content) == {"status": "ready"}
    app.engine.status = "loading"
    assert (run(app.get("/health")).status_code, run(app.get("/health")).json()) == (503, {"status": "loading"})
    app.engine.die("out of memory")
    dead = run(app.get("/health"))
    assert (dead.status_code, dead.json()) == (503, {"status": "dead", "error": "out of memory"})


def test_health_answers_head_requests() -> None:
    async def head() -> httpx.Response:
        async with StubApp().client() as client:
            return await client.head("/health")

    assert run(head()).status_code == 200


def test_version_is_the_packages_own() -> None:
    assert run(StubApp().get("/version")).json() == {"version": __version__}


def test_tokenize_and_detokenize_are_inverse() -> None:
    app = StubApp()
    text = "Hello world 🧭"
    answer = run(app.post("/tokenize", {"prompt": text, "return_token_strs": True})).json()
    assert answer["count"] == len(answer["tokens"]) == len(answer["token_strs"])
    assert answer["max_model_len"] == 256 and answer["token_strs"][:3] == ["Hell", "o", " world"]
    assert run(app.post("/detokenize", {"tokens": answer["tokens"]})).json() == {"prompt": text}


@pytest.mark.parametrize("length", [300, 200_000])
def test_more_than_the_context_is_tokenized_too(length: int) -> None:
    app = StubApp()
    answer = run(app.post("/tokenize", {"prompt": "x" * length, "return_token_strs": True})).json()
    assert answer["count"] == len(answer["tokens"]) == len(answer["token_strs"]) == length
    messages = [{"role": "user", "content": [{"type": "text", "text": "x" * length}]}]
    assert run(app.post("/tokenize", {"messages": messages})).json()["count"] > length


def test_tokenize_of_messages_is_what_a_chat_runs_on() -> None:
    app = StubApp()
    tokens = run(app.post("/tokenize", {"messages": HI})).json()["tokens"]
    run(app.post(CHAT, {"messages": HI}))
    assert app.engine.started[0][1] == tokens


def test_tokenizer_info_is_what_a_client_needs_to_tokenize_here() -> None:
    app = StubApp()
    tokenizer = app.engine.tokenizer
    assert tokenizer is not None
    assert run(app.get("/tokenizer_info")).json() == {
        "bos_token": None,
        "eos_token": "<|im_end|>",
        "pad_token": None,
        "vocab_size": tokenizer.vocab_size,
        "chat_template": tokenizer.chat_template,
    }
    check_error(run(StubApp(StubEngine(tokenizer=None)).get("/tokenizer_info")))


def test_an_empty_text_has_no_tokens() -> None:
    answer = run(StubApp().post("/tokenize", {"prompt": ""}))
    assert (answer.status_code, answer.json()["tokens"]) == (200, [])


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/tokenize", {}),
        ("/tokenize", {"prompt": "a", "messages": HI}),
        ("/tokenize", {"prompt": 5}),
        ("/tokenize", {"messages": []}),
        ("/detokenize", {}),
        ("/detokenize", {"tokens": [-1]}),
        ("/detokenize", {"tokens": [10**6]}),
        ("/detokenize", {"tokens": [2**70]}),
        ("/detokenize", {"tokens": [1.5]}),
        ("/detokenize", {"tokens": "a"}),
    ],
)
def test_bad_tokenizing_is_refused(path: str, body: dict) -> None:
    check_error(run(StubApp().post(path, body)))


def test_without_a_tokenizer_tokenizing_is_refused() -> None:
    app = StubApp(StubEngine(tokenizer=None))
    for path, body in (("/tokenize", {"prompt": "a"}), ("/detokenize", {"tokens": [3]})):
        assert "tokenizer" in check_error(run(app.post(path, body)))["message"]


def test_the_openapi_document_shows_the_structs_that_decode_the_requests() -> None:
    document = run(StubApp().get("/openapi.json")).json()
    schemas = document["components"]["schemas"]
    assert set(schemas["ChatCompletionRequest"]["properties"]) == set(ChatCompletionRequest.__struct_fields__)
    assert schemas["ChatCompletionRequest"]["required"] == ["messages"]
    for path in (CHAT, "/v1/completions", "/tokenize", "/detokenize"):
        operation = document["paths"][path]["post"]
        name = operation["requestBody"]["content"]["application/json"]["schema"]["$ref"].rsplit("/", 1)[1]
        assert name in schemas
        assert {"200", "400", "404", "413"} <= set(operation["responses"]) and "422" not in operation["responses"]
    references = [word for word in msgspec.json.encode(document).decode().split('"') if word.startswith("#/components")]
    assert references and all(reference.rsplit("/", 1)[1] in schemas for reference in references)


def test_docs_page_is_there() -> None:
    assert run(StubApp().get("/docs")).status_code == 200
