"""A real engine behind the application: limits, cache, preemption, aborts in every state, and that nothing is left."""

import asyncio
import json
import random
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from checkpoints import make_checkpoint
from live_app import live, send_request
from real_app import held_requests, real_app, samples
from stub_app import CHAT, COMPLETIONS, HI, StubApp, check_error, join_chunks, run, strict_json
from stub_engine import until

BLOCK = 16
SETTINGS: dict[str, Any] = {"max_model_len": 256, "block_size": BLOCK, "max_num_seqs": 8}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_checkpoint(tmp_path_factory.mktemp("model"), max_position_embeddings=16_384)


def on(folder: Path, work: Callable[[StubApp], Coroutine[Any, Any, None]], **settings: Any) -> None:
    """Run a test on an engine of its own."""

    async def whole() -> None:
        async with real_app(folder, **SETTINGS | settings) as app:
            await work(app)

    run(whole())


def prompt_ids(length: int, seed: int = 0) -> list[int]:
    return random.Random(seed).choices(range(3, 250), k=length)


async def complete(app: StubApp, **fields: Any) -> dict[str, Any]:
    """A plain completion that must succeed."""
    response = await app.post(COMPLETIONS, {"temperature": 0, "return_token_ids": True} | fields)
    assert response.status_code == 200, response.text
    return strict_json(response.content)


# The context.


def test_edges_of_the_context(folder: Path) -> None:
    async def work(app: StubApp) -> None:
        async def post(length: int, **fields: Any) -> Any:
            return await app.post(COMPLETIONS, {"prompt": [70] * length, **fields})

        for length, fields, tokens in ((255, {"max_tokens": 1}, 1), (250, {"ignore_eos": True}, 6)):
            answer = strict_json((await post(length, **fields)).content)
            assert answer["usage"]["completion_tokens"] == tokens
            assert answer["choices"][0]["finish_reason"] == "length" or tokens == 1
        for length, max_tokens, numbers in (
            (255, 2, "256 255 2"),
            (256, 1, "256"),
            (256, None, "256"),
            (300, 1, "300"),
        ):
            error = check_error(await post(length, max_tokens=max_tokens))
            assert error["code"] == "context_length_exceeded"
            assert all(number in error["message"] for number in ("256", *numbers.split()))

    on(folder, work)


# The prefix cache.


@pytest.mark.parametrize("max_tokens", [1, 8])
def test_a_repeated_prompt_is_found_in_whole_blocks_and_says_the_same(folder: Path, max_tokens: int) -> None:
    async def work(app: StubApp) -> None:
        for length in (BLOCK, 2 * BLOCK, 2 * BLOCK + 1, 2 * BLOCK - 1):
            ids = prompt_ids(length, seed=length)
            answers = [await complete(app, prompt=ids, max_tokens=max_tokens) for _ in range(3)]
            assert len({tuple(answer["choices"][0]["token_ids"]) for answer in answers}) == 1
            cached = [answer["usage"]["prompt_tokens_details"]["cached_tokens"] for answer in answers]
            assert cached == [0, *[(length - 1) // BLOCK * BLOCK] * 2]

    on(folder, work)


# Preemption.

SCHEMA = {"type": "string", "pattern": "^[a-f]{60}$"}
VARIANTS: dict[str, dict[str, Any]] = {
    "greedy": {},
    "penalty": {"repetition_penalty": 1.3},
    "seed": {"temperature": 1.0, "seed": 5},
    "schema": {"guided_json": SCHEMA, "temperature": 1.0, "seed": 3, "max_tokens": 80},
    "logprobs": {"logprobs": 2, "presence_penalty": 0.5},
    "n": {"n": 2, "temperature": 0.7, "seed": 9},
}


@pytest.mark.parametrize("variant", VARIANTS)
def test_a_preempted_request_says_what_it_says_alone(folder: Path, variant: str) -> None:
    fields = {"max_tokens": 64, "temperature": 0, "ignore_eos": True, "return_token_ids": True} | VARIANTS[variant]

    async def work(app: StubApp) -> None:
        bodies = [fields | {"prompt": prompt_ids(32, seed)} for seed in range(4)]
        alone = [(await complete(app, **body))["choices"] for body in bodies]
        before = samples(app)["octavo:num_preemptions_total"]
        together = await asyncio.gather(*(app.events(COMPLETIONS, body) for body in bodies))
        assert samples(app)["octavo:num_preemptions_total"] > before
        for choices, events in zip(alone, together, strict=True):
            joined = join_chunks(events)
            for choice in choices:
                streamed = joined[choice["index"]]
                assert streamed.token_ids == choice["token_ids"] and streamed.text == choice["text"]
                assert streamed.finish_reason == choice["finish_reason"]
                if variant == "schema":
                    assert choice["finish_reason"] == "stop"
                    jsonschema.validate(json.loads(streamed.text), SCHEMA)
                else:
                    assert len(streamed.token_ids) == 64
                if variant == "logprobs":
                    assert streamed.lists["tokens"] == choice["logprobs"]["tokens"]
                    assert len(streamed.lists["token_logprobs"]) == 64
        await until(lambda: samples(app)["octavo:kv_cache_usage_perc"] == 0)

    on(folder, work, num_gpu_blocks_override=18, max_num_batched_tokens=64)


# Clients that go away.


@pytest.mark.parametrize(
    ("path", "fields", "waits"),
    [
        (CHAT, {"messages": HI, "stream": True}, False), (CHAT, {"messages": HI}, False),
        (COMPLETIONS, {"prompt": "a", "n": 4}, False), (COMPLETIONS, {"prompt": "a"}, True),
        (COMPLETIONS, {"prompt": "a", "n": 3, "stream": True}, True),
        ("/v1/responses", {"input": "a", "max_output_tokens": 7000, "stream": True}, False),
        ("/v1/messages", {"messages": HI, "max_tokens": 7000}, False),
    ],
)  # fmt: skip
def test_a_client_that_goes_away_is_gone_from_the_metrics_too(
    folder: Path, path: str, fields: dict[str, Any], waits: bool
) -> None:
    endless = {"ignore_eos": True} | ({} if path == "/v1/responses" else {"max_tokens": 7000})

    async def work(app: StubApp) -> None:
        async with live(app) as port:
            first = None
            if waits:
                _, first = await send_request(port, COMPLETIONS, {"prompt": "b", "n": 4, **endless})
                await until(lambda: samples(app)["octavo:num_requests_running"] == 4)
            reader, writer = await send_request(port, path, fields | endless)
            name = "octavo:num_requests_waiting" if waits else "octavo:num_requests_running"
            await until(lambda: samples(app)[name] == fields.get("n", 1))
            if fields.get("stream") and not waits:
                await reader.readuntil(b"data: ")
            writer.close()
            await until(lambda: samples(app)[name] == 0, 2)
            if first is not None:
                first.close()
            await until(lambda: set(held_requests(app).values()) == {0}, 2)
            # The client forgets them before the engine does, which the gauges wait for.
            gauges = ("octavo:kv_cache_usage_perc", "octavo:num_requests_running")
            await until(lambda: all(samples(app)[gauge] == 0 for gauge in gauges), 2)
            assert samples(app)["octavo:request_success_total|abort"] == (2 if waits else 1)
        assert (await complete(app, prompt=[5], max_tokens=2))["usage"]["completion_tokens"] == 2

    on(folder, work, max_model_len=8000, max_num_seqs=4)


def test_requests_aborted_in_any_state_leave_nothing_and_disturb_nobody(
    folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Waiting, in the middle of a prompt, decoding, preempted, waiting for a grammar, or on the very last step."""
    chance = random.Random(11)
    shared = prompt_ids(50, 1)
    reference = {"prompt": prompt_ids(20, 2), "max_tokens": 24}
    partner = {"prompt": [*shared, 9], "max_tokens": 16}

    def body(number: int) -> dict[str, Any]:
        kind = chance.randrange(5)
        fields: dict[str, Any] = {"max_tokens": chance.randint(1, 60), "ignore_eos": True}
        if kind == 0:
            return fields | {"prompt": prompt_ids(190, number)}
        if kind == 1:
            return fields | {"prompt": "x", "guided_regex": f"[a-f]{{{number + 5}}}"}
        if kind == 2:
            return fields | {"prompt": [*shared, number % 200 + 5], "n": 2}
        return fields | {"prompt": prompt_ids(chance.randint(1, 40), number), "stream": kind == 3}

    async def work(app: StubApp) -> None:
        expected = [(await complete(app, **fields))["choices"] for fields in (reference, partner)]
        async with live(app) as port:
            slots = asyncio.Semaphore(8)

            async def leave(number: int) -> None:
                async with slots:
                    reader, writer = await send_request(port, COMPLETIONS, body(number))
                    if chance.random() < 0.3:
                        await reader.read(chance.randint(1, 3000))
                    else:
                        await asyncio.sleep(chance.uniform(0, 0.06))
                    writer.close()

            rounds = [asyncio.create_task(leave(number)) for number in range(200)]
            for _ in range(4):
                assert (await complete(app, **partner))["choices"] == expected[1]
            await asyncio.gather(*rounds)
            await until(lambda: len(app.context.open_requests) == 0, 20)
        assert (await complete(app, **reference))["choices"] == expected[0]
        await until(lambda: set(held_requests(app).values()) == {0}, 10)
        found = samples(app)
        assert found["octavo:num_requests_running"] == found["octavo:num_requests_waiting"] == 0
        assert found["octavo:kv_cache_usage_perc"] == 0 and found["octavo:request_success_total|abort"] > 0
        await app.engine.call("check_integrity")  # type: ignore[attr-defined]

    on(folder, work, num_gpu_blocks_override=26, max_num_batched_tokens=64)
    assert not [record for record in caplog.records if record.levelname in ("ERROR", "CRITICAL")], caplog.text


def test_after_requests_of_every_kind_every_table_is_empty(folder: Path) -> None:
    chance = random.Random(3)

    def asked(number: int) -> tuple[str, dict[str, Any]]:
        fields: dict[str, Any] = {"max_tokens": 6, "stream": number % 3 == 0}
        kind = number % 7
        if kind == 0:
            fields |= {"temperature": "warm"}
        elif kind == 1:
            schema = {"type": "object", "properties": {f"p{number}": {"type": "integer"}}, "required": [f"p{number}"]}
            fields |= {"guided_json": schema}
        elif kind == 2:
            fields |= {"logprobs": 2}
        if kind == 3:
            return CHAT, fields | {"messages": HI, "n": 2}
        if kind == 4:
            return "/v1/responses", {"input": f"say {number}", "max_output_tokens": 5, "stream": number % 2 == 0}
        if kind == 5:
            return "/v1/messages", fields | {"messages": HI}
        return COMPLETIONS, fields | {"prompt": prompt_ids(chance.randint(1, 60), number)}

    async def work(app: StubApp) -> None:
        async def ask(number: int) -> int:
            path, fields = asked(number)
            return (await app.post(path, fields)).status_code

        codes = await asyncio.gather(*(ask(number) for number in range(140)))
        assert set(codes) == {200, 400} and codes.count(400) == 20
        await complete(app, prompt=[5], max_tokens=1)
        await until(lambda: set(held_requests(app).values()) == {0}, 10)
        await until(lambda: asyncio.all_tasks() == {asyncio.current_task()})

    on(folder, work)


# Long prompts beside others.


def test_a_long_prompt_holds_up_neither_a_stream_nor_a_short_prompt_and_says_the_same(folder: Path) -> None:
    long = {"prompt": prompt_ids(1000, 4), "max_tokens": 8}
    alone: list[Any] = []

    async def unchunked(app: StubApp) -> None:
        alone.extend((await complete(app, **long))["choices"])

    async def work(app: StubApp) -> None:
        seen: list[str] = []

        async def read(name: str, body: dict[str, Any]) -> None:
            """Note each token as it comes."""
            reader, _ = await send_request(port, COMPLETIONS, body | {"stream": True, "return_token_ids": True})
            while line := await reader.readline():
                if line.startswith(b"data: {"):
                    (choice,) = json.loads(line[6:])["choices"]
                    seen.extend([name] * len(choice.get("token_ids", [])))
                if b"[DONE]" in line:
                    return

        async with live(app) as port:
            stream = asyncio.create_task(read("a", {"prompt": [9], "max_tokens": 900, "ignore_eos": True}))
            await until(lambda: len(seen) > 3)
            before = len(seen)
            others = [asyncio.create_task(read("b", long)), asyncio.create_task(read("c", {"prompt": [7], **short}))]
            await asyncio.gather(*others)
            stream.cancel()
        during = seen[before : seen.index("b")]
        assert during.count("a") >= 15 and "c" in during
        assert (await complete(app, **long))["choices"] == alone

    short = {"max_tokens": 2, "ignore_eos": True}
    on(folder, unchunked, max_model_len=1020, max_num_batched_tokens=2048)
    on(folder, work, max_model_len=1020, max_num_batched_tokens=64, enable_prefix_caching=False)


# Structure.

LAMP = {"type": "object", "properties": {"level": {"type": "integer", "minimum": 0, "maximum": 9}},
        "required": ["level"], "additionalProperties": False}  # fmt: skip
SCHEMA_OF = {"set_lamp": LAMP, "list_rooms": {"type": "object", "maxProperties": 0}}
TOOLS = [
    {"type": "function", "function": {"name": "set_lamp", "parameters": LAMP}},
    {"type": "function", "function": {"name": "list_rooms", "parameters": {"type": "object", "properties": {},
                                                                          "additionalProperties": False}}},
]  # fmt: skip

TEXT, NUMBER = {"type": "string"}, {"type": "integer"}
KEYWORDS: dict[str, Any] = {
    "multipleOf": {"type": "integer", "multipleOf": 7}, "multipleOf ": {"type": "number", "multipleOf": 0.1},
    "uniqueItems": {"type": "array", "items": {"enum": [1, 2]}, "uniqueItems": True},
    "not": {"not": {"type": "string"}}, "if": {"if": {"minimum": 5}, "then": {"maximum": 9}, "type": "integer"},
    "patternProperties": {"type": "object", "patternProperties": {"^a": NUMBER}, "additionalProperties": False},
    "propertyNames": {"type": "object", "propertyNames": {"maxLength": 2}},
    "dependentRequired": {"type": "object", "properties": {"a": NUMBER}, "dependentRequired": {"a": ["b"]}},
    "contains": {"type": "array", "contains": {"const": 5}}, "minProperties": {"type": "object", "minProperties": 2},
    "pattern maxLength": TEXT | {"pattern": "b+", "maxLength": 4},
    "pattern minLength": TEXT | {"pattern": "^[ab]*$", "minLength": 3},
    "format": TEXT | {"format": "ipv4"}, "format ": TEXT | {"format": "date"},
    "minItems maxItems": {"type": "array", "items": {"type": "boolean"}, "minItems": 3, "maxItems": 3},
    "minimum maximum": {"type": "integer", "minimum": -3, "maximum": 17}, "const": {"const": {"a": [1, None]}},
    "enum": {"enum": [1, "a", None, [2], {"b": 1.5}, False]},
    "additionalProperties": {"type": "object", "properties": {"a": NUMBER}, "additionalProperties": False},
    "prefixItems": {"type": "array", "prefixItems": [NUMBER, {"type": "boolean"}], "items": False},
}  # fmt: skip


def test_every_keyword_of_a_schema_is_kept_or_refused_by_name(folder: Path) -> None:
    async def work(app: StubApp) -> None:
        kept = []
        for name, schema in KEYWORDS.items():
            body = {"prompt": "Say:", "guided_json": schema, "n": 20, "temperature": 1.5, "max_tokens": 60, "seed": 1}
            response = await app.post(COMPLETIONS, body)
            if response.status_code == 400:
                assert name.split()[0] in check_error(response)["message"]
                continue
            choices = strict_json(response.content)["choices"]
            ended = [json.loads(choice["text"]) for choice in choices if choice["finish_reason"] == "stop"]
            for value in ended:
                jsonschema.validate(value, schema, format_checker=jsonschema.FormatChecker())
            kept.append(name)
            assert len(ended) >= 5, name
        assert len(kept) >= 11

    on(folder, work, max_num_seqs=20)


@pytest.mark.parametrize("choice", ["required", {"type": "function", "function": {"name": "set_lamp"}}], ids=str)
def test_each_of_several_answers_is_a_call_of_its_own(folder: Path, choice: Any) -> None:
    body = {"messages": HI, "tools": TOOLS, "tool_choice": choice, "n": 4, "seed": 2, "max_tokens": 400}

    async def work(app: StubApp) -> None:
        choices = strict_json((await app.post(CHAT, body)).content)["choices"]
        called: list[str] = []
        for answer in choices:
            message = answer["message"]
            assert message["content"] is None or answer["finish_reason"] == "length"
            if answer["finish_reason"] != "length":
                for call in message["tool_calls"]:
                    called.append(call["function"]["arguments"])
                    schema = SCHEMA_OF[call["function"]["name"]]
                    jsonschema.validate(json.loads(call["function"]["arguments"]), schema)
        assert len(set(called)) > 1
        joined: dict[int, str] = {}
        for event in await app.events(CHAT, body):
            for part in event["choices"]:
                for call in part["delta"].get("tool_calls", []):
                    joined[part["index"]] = joined.get(part["index"], "") + call["function"]["arguments"]
        plain = {answer["index"]: answer["message"].get("tool_calls", []) for answer in choices}
        assert joined == {
            index: "".join(call["function"]["arguments"] for call in calls) for index, calls in plain.items() if calls
        }

    on(folder, work, max_model_len=4096)


# End tokens.


def set_end_tokens(folder: Path, generation: Any, config: Any, tokenizer: bool = True) -> None:
    """Say which tokens end an answer; a value that is None is left out, and [] written as null."""
    settings = json.loads((folder / "config.json").read_text())
    settings.pop("eos_token_id", None)
    if config is not None:
        settings["eos_token_id"] = config or None
    (folder / "config.json").write_text(json.dumps(settings))
    (folder / "generation_config.json").write_text("{}" if generation is None else
                                                   json.dumps({"eos_token_id": generation or None}))  # fmt: skip
    if not tokenizer:
        path = folder / "tokenizer_config.json"
        path.write_text(json.dumps({k: v for k, v in json.loads(path.read_text()).items() if k != "eos_token"}))


@pytest.mark.parametrize(
    ("generation", "config", "tokenizer", "ends"),
    [([2, 0], 2, True, {2, 0}), ([], 2, True, {2}), (None, [0, 2], True, {0, 2}), (None, None, True, {2}),
     ([], [], False, set()), (None, None, False, set())],
)  # fmt: skip
def test_every_end_token_of_the_model_ends_an_answer(
    tmp_path: Path, generation: Any, config: Any, tokenizer: bool, ends: set[int], caplog: pytest.LogCaptureFixture
) -> None:
    folder = make_checkpoint(tmp_path)
    set_end_tokens(folder, generation, config, tokenizer)

    async def work(app: StubApp) -> None:
        for token in (0, 2):
            for ignored in (False, True):
                fields = {"logit_bias": {str(token): 100}, "max_tokens": 4, "ignore_eos": ignored}
                answer = await complete(app, prompt="Hello", **fields)
                (choice,) = answer["choices"]
                ended = token in ends and not ignored
                assert choice["finish_reason"] == ("stop" if ended else "length")
                assert choice["stop_reason"] is None and choice["text"] == ""
                assert answer["usage"]["completion_tokens"] == (1 if ended else 4)

    on(folder, work)
    assert ("no end token" in caplog.text) == (not ends)
