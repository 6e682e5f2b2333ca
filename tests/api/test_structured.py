"""``response_format``, ``structured_outputs`` and ``guided_*``: what they ask of the engine, and what is a 400."""

import asyncio
import json
import re
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from checkpoints import make_checkpoint
from random_schemas import complaint
from stub_app import CHAT, COMPLETIONS, HI, StubApp, check_error, join_chunks, run

from octavo.core.engine_args import EngineArgs
from octavo.core.grammar import StructuredOutputs
from octavo.engine.async_llm import AsyncLLM

FIVE = {"type": "integer", "minimum": 5}
PATHS = (CHAT, COMPLETIONS)


def _body(path: str, fields: dict[str, Any]) -> dict[str, Any]:
    return ({"messages": HI} if path == CHAT else {"prompt": "hi"}) | fields


def _schema(schema: Any, **more: Any) -> dict[str, Any]:
    return {"response_format": {"type": "json_schema", "json_schema": {"name": "n", "schema": schema} | more}}


ASKED: list[tuple[dict[str, Any], StructuredOutputs | None]] = [
    ({"response_format": {"type": "text"}}, None),
    ({"response_format": None, "structured_outputs": {}, "guided_json": None}, None),
    ({"response_format": {"type": "json_object"}}, StructuredOutputs(json_object=True)),
    (_schema(FIVE, strict=True, description="d"), StructuredOutputs(json=FIVE)),
    (_schema(FIVE, strict=False), StructuredOutputs(json=FIVE)),
    ({"structured_outputs": {"json": FIVE}}, StructuredOutputs(json=FIVE)),
    ({"structured_outputs": {"json": json.dumps(FIVE)}}, StructuredOutputs(json=json.dumps(FIVE))),
    ({"structured_outputs": {"choice": ["a", "b"]}}, StructuredOutputs(choice=["a", "b"])),
    ({"structured_outputs": {"json_object": True}}, StructuredOutputs(json_object=True)),
    ({"guided_json": FIVE}, StructuredOutputs(json=FIVE)),
    ({"guided_regex": "a+", "guided_decoding_backend": "outlines"}, StructuredOutputs(regex="a+")),
    ({"guided_choice": ["a"]}, StructuredOutputs(choice=["a"])),
    ({"guided_grammar": 'root ::= "a"'}, StructuredOutputs(grammar='root ::= "a"')),
    ({"response_format": {"type": "text"}, "guided_regex": "a"}, StructuredOutputs(regex="a")),
]


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize(("fields", "wanted"), ASKED)
def test_every_way_to_ask_reaches_the_engine(
    path: str, fields: dict[str, Any], wanted: StructuredOutputs | None
) -> None:
    app = StubApp()
    response = run(app.post(path, _body(path, fields)))
    assert response.status_code == 200, response.text
    assert app.engine.started[0][2].structured_outputs == wanted


BAD: list[tuple[dict[str, Any], str, str]] = [
    (_schema({"type": "objekt"}), "response_format", "objekt"),
    (_schema({"type": "string", "pattern": "["}), "response_format", "unclosed"),
    (_schema({"properties": 5}), "response_format", "properties"),
    (_schema("x"), "response_format", "object or a boolean"),
    (_schema({"$ref": "#/nope"}), "response_format", "nope"),
    (_schema({"type": "array", "uniqueItems": True}), "response_format", "uniqueItems"),
    (_schema({"$defs": {"a": {"not": {}}}, "$ref": "#/$defs/a"}), "response_format", "not"),
    ({"response_format": {"type": "json_schema"}}, "response_format", "json_schema.schema"),
    ({"response_format": {"type": "json_schema", "json_schema": {"name": "n"}}}, "response_format", "schema"),
    ({"response_format": {"type": "yaml"}}, "response_format.type", "yaml"),
    ({"response_format": {}}, "response_format.type", "required"),
    ({"response_format": "json"}, "response_format", "object"),
    ({"structured_outputs": {"regex": "("}}, "structured_outputs", "unclosed group"),
    ({"guided_regex": "("}, "guided_regex", "unclosed group"),
    ({"guided_regex": "[z-"}, "guided_regex", "unclosed"),
    ({"guided_regex": "b{5,2}"}, "guided_regex", "repetition"),
    ({"guided_regex": "\\"}, "guided_regex", "backslash"),
    ({"guided_json": "x"}, "guided_json", "no JSON"),
    ({"guided_grammar": 'root ::= foo "a"'}, "guided_grammar", "foo"),
    ({"guided_choice": []}, "guided_choice", "empty"),
    ({"guided_choice": [5]}, "guided_choice[0]", "str"),
    ({"structured_outputs": {"choice": ["a"], "regex": "a"}}, "structured_outputs", "only one"),
    ({"guided_choice": ["a"], "guided_regex": "a"}, "guided_regex", "only one"),
    (_schema(FIVE) | {"guided_regex": "a"}, "response_format", "only one"),
    ({"structured_outputs": {"json": FIVE, "whitespace_pattern": " "}}, "structured_outputs", "whitespace_pattern"),
    ({"structured_outputs": {"json_object": False}}, "structured_outputs", "must be given"),
    ({"guided_regex": "a", "allowed_token_ids": [5]}, "allowed_token_ids", "only one"),
    ({"response_format": {"type": "structural_tag"}}, "response_format", "at least one"),
    ({"guided_whitespace_pattern": " "}, "guided_whitespace_pattern", "not supported"),
]


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize(("fields", "param", "reason"), BAD)
def test_a_bad_constraint_is_a_400_that_says_why(path: str, fields: dict[str, Any], param: str, reason: str) -> None:
    app = StubApp()
    for stream in (False, True):
        error = check_error(run(app.post(path, _body(path, fields | {"stream": stream}))), param=param)
        assert reason in error["message"], error
    assert not app.engine.started


def test_without_a_tokenizer_it_is_a_400() -> None:
    from stub_engine import StubEngine

    error = check_error(
        run(StubApp(StubEngine(tokenizer=None)).post(COMPLETIONS, {"prompt": [5], "guided_regex": "a"})),
        param="guided_regex",
    )
    assert "tokenizer" in error["message"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    yield make_checkpoint(tmp_path_factory.mktemp("model"))


@asynccontextmanager
async def _real(folder: Path) -> AsyncIterator[StubApp]:
    """The application over a real engine with a small random model, in a thread."""
    engine = AsyncLLM.from_engine_args(EngineArgs(model=str(folder), dtype="float32"), multiprocess=False)
    try:
        await engine.wait_ready()
        yield StubApp(engine)  # type: ignore[arg-type]
    finally:
        await engine.shutdown()


SHAPES: list[tuple[dict[str, Any], str]] = [
    ({"guided_choice": ["red", "blue"]}, "red|blue"),
    ({"structured_outputs": {"regex": "[0-9]{5}"}}, "[0-9]{5}"),
    (_schema({"type": "boolean"}), "true|false"),
]


def test_an_answer_is_exactly_the_structure_streamed_or_not(folder: Path) -> None:
    async def work() -> None:
        async with _real(folder) as app:
            for fields, pattern in SHAPES:
                for path in PATHS:
                    body = _body(path, fields | {"max_tokens": 50, "n": 4, "seed": 5, "stop": ["@@"]})
                    response = await app.post(path, body)
                    assert response.status_code == 200, response.text
                    choices = response.json()["choices"]
                    texts = [c["message"]["content"] if path == CHAT else c["text"] for c in choices]
                    assert all(re.fullmatch(pattern, text) for text in texts), texts
                    assert {choice["finish_reason"] for choice in choices} == {"stop"}
                    assert response.json()["usage"]["completion_tokens"] <= sum(map(len, texts)) + 4
                    streamed = join_chunks(await app.events(path, body))
                    assert [streamed[index].text for index in range(4)] == texts
                    assert {choice.finish_reason for choice in streamed.values()} == {"stop"}

    run(work())


def test_bad_constraints_disturb_nobody(folder: Path) -> None:
    long = {"prompt": "Once upon", "max_tokens": 120, "temperature": 0, "ignore_eos": True}

    async def work() -> None:
        async with _real(folder) as app:
            alone = (await app.post(COMPLETIONS, long)).json()["choices"][0]["text"]
            beside = asyncio.create_task(app.post(COMPLETIONS, long))
            for pattern in ("[a-z]+", "(|q.*)"):
                answer = await app.post(COMPLETIONS, {"prompt": "x", "guided_regex": pattern, "max_tokens": 9})
                assert answer.status_code == 200
                text, reason = (answer.json()["choices"][0][name] for name in ("text", "finish_reason"))
                assert re.fullmatch(pattern, text) or reason == "length"
                for fields, _, _ in BAD:
                    assert (await app.post(COMPLETIONS, _body(COMPLETIONS, fields))).status_code == 400
            assert (await beside).json()["choices"][0]["text"] == alone
            assert (await app.post(COMPLETIONS, long)).json()["choices"][0]["text"] == alone

    run(work())


def test_a_grammar_that_takes_long_to_compile_delays_nobody(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The workers' compiler hangs on one grammar until the test is done with the others."""
    import threading

    from octavo.worker.grammar_cache import GrammarCache

    gate = threading.Event()
    compile_now = GrammarCache._compile

    def compile_slowly(cache: GrammarCache, spec: Any) -> Any:
        if spec.text == "slow":
            assert gate.wait(30)
        return compile_now(cache, spec)

    monkeypatch.setattr(GrammarCache, "_compile", compile_slowly)

    async def work() -> None:
        async with _real(folder) as app:
            slow = asyncio.create_task(app.post(COMPLETIONS, {"prompt": "x", "guided_regex": "slow"}))
            given_up = asyncio.create_task(app.post(COMPLETIONS, {"prompt": "x", "guided_regex": "slow"}))
            for fields in ({}, {"guided_regex": "quick"}, {"guided_choice": ["a"]}):
                answer = await app.post(COMPLETIONS, {"prompt": "x", "max_tokens": 8} | fields)
                assert answer.status_code == 200
            assert not slow.done()
            given_up.cancel()
            gate.set()
            assert (await slow).json()["choices"][0]["text"] == "slow"

    try:
        run(work())
    finally:
        gate.set()


def test_schemas_with_every_feature_of_a_request(folder: Path) -> None:
    schema = {
        "type": "object", "required": ["word", "count"], "additionalProperties": False,
        "properties": {
            "word": {"type": "string", "pattern": "^[a-c]{2}$"},
            "count": {"type": "integer", "maximum": 9, "minimum": 0},
        },
    }  # fmt: skip
    fields = {
        "max_tokens": 200,
        "seed": 1,
        "logprobs": True,
        "top_logprobs": 2,
        "repetition_penalty": 1.2,
        "min_tokens": 3,
    }

    async def work() -> None:
        async with _real(folder) as app:
            response = await app.post(CHAT, {"messages": HI} | _schema(schema) | fields)
            choice = response.json()["choices"][0]
            assert choice["finish_reason"] == "stop" and not complaint(schema, choice["message"]["content"])
            text = "".join(entry["token"] for entry in choice["logprobs"]["content"])
            assert text.startswith(choice["message"]["content"])

    run(work())
