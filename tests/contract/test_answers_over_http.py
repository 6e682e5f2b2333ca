"""Raw answers of the default model: text, indices, usage, log probabilities and seeds, streamed and plain.

The greedy answer to one question is the same after all of them as before.
"""

import json
import math
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest
import torch
from greedy_truth import GreedyTruth
from stub_app import CHAT, COMPLETIONS, HI, StreamedChoice, check_error, join_chunks, sse_events, strict_json

PATHS = (CHAT, COMPLETIONS)
RIVERS = "Rivers run north"
CAPITAL = {"prompt": "The capital of France is", "max_tokens": 8, "temperature": 0}


@pytest.fixture(scope="module")
def http(server_url: str) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=server_url, timeout=120) as client:
        yield client


@pytest.fixture(scope="module")
def capital(http: httpx.Client) -> str:
    return plain(http, COMPLETIONS, **CAPITAL)["choices"][0]["text"]


@pytest.fixture(scope="module", autouse=True)
def alive(http: httpx.Client, capital: str) -> Iterator[None]:
    yield
    assert http.get("/health").status_code == 200
    assert plain(http, COMPLETIONS, **CAPITAL)["choices"][0]["text"] == capital


def post(http: httpx.Client, path: str, fields: dict[str, Any]) -> httpx.Response:
    base: dict[str, Any] = {"messages": HI} if path == CHAT else {"prompt": "hi"}
    return http.post(path, json=base | fields)


def plain(http: httpx.Client, path: str, **fields: Any) -> dict[str, Any]:
    response = post(http, path, fields)
    assert response.status_code == 200, response.text
    return strict_json(response.content)


def stream(http: httpx.Client, path: str, **fields: Any) -> list[dict[str, Any]]:
    response = post(http, path, fields | {"stream": True})
    assert response.status_code == 200, response.text
    assert response.headers["content-type"].startswith("text/event-stream")
    events = sse_events(response.content)
    assert events.pop() == "[DONE]"
    return events


def text_of(choice: dict[str, Any]) -> str:
    return choice["message"]["content"] if "message" in choice else choice["text"]


def both(http: httpx.Client, path: str, **fields: Any) -> tuple[dict[str, Any], StreamedChoice]:
    """The plain answer, and the only choice of the stream."""
    return plain(http, path, **fields), join_chunks(stream(http, path, **fields))[0]


# Text.


@pytest.mark.parametrize("path", PATHS)
def test_characters_over_several_tokens_come_whole(http: httpx.Client, path: str) -> None:
    text = "naïve 🧭🧭 漢字 👨‍👩‍👧‍👦 end"
    assert text_of(plain(http, path, guided_choice=[text], max_tokens=80)["choices"][0]) == text
    events = stream(http, path, guided_choice=[text], max_tokens=80)
    assert join_chunks(events)[0].text == text
    for event in events:
        for choice in event["choices"]:
            piece = choice["delta"].get("content", "") if path == CHAT else choice["text"]
            assert "\ufffd" not in piece
            piece.encode()  # half a surrogate pair would fail


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("stop", [["all bo"], ["zzz", "all bo"], "all bo"], ids=str)
def test_a_stop_string_across_tokens_ends_the_text_before_it(http: httpx.Client, path: str, stop: Any) -> None:
    fields = {"guided_choice": ["Nine small boats sail"], "stop": stop, "return_token_ids": True}
    answer, joined = both(http, path, **fields)
    (choice,) = answer["choices"]
    assert text_of(choice) == joined.text == "Nine sm"
    assert (choice["finish_reason"], choice["stop_reason"]) == ("stop", "all bo")
    assert (joined.finish_reason, joined.stop_reason) == ("stop", "all bo")
    # The token that completed the match is counted, and nothing after it.
    ids = choice["token_ids"]
    assert answer["usage"]["completion_tokens"] == len(ids) == len(joined.token_ids)
    said = [http.post("/detokenize", json={"tokens": ids[:count]}).json()["prompt"] for count in (len(ids), -1)]
    assert "all bo" in said[0] and "all bo" not in said[1]


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize(("stop", "max_tokens"), [("efgh", 60), ("efgh", 1), ("efgh", 2), ("f" + "x" * 199, 60)])
def test_text_held_back_for_a_stop_string_is_released(
    http: httpx.Client, path: str, stop: str, max_tokens: int
) -> None:
    answer, joined = both(http, path, guided_choice=["abcdef"], stop=[stop], max_tokens=max_tokens, temperature=0)
    (choice,) = answer["choices"]
    assert joined.text == text_of(choice) and "abcdef".startswith(joined.text) and joined.text
    assert joined.text == "abcdef" or max_tokens < 60
    assert joined.finish_reason == choice["finish_reason"] == ("stop" if max_tokens == 60 else "length")


# Usage, indices and the form of a stream.


@pytest.mark.parametrize("path", PATHS)
def test_usage_is_in_a_stream_only_when_asked_for(http: httpx.Client, path: str) -> None:
    for options in (None, {"include_usage": False}):
        for event in stream(http, path, max_tokens=4, stream_options=options):
            assert event["choices"] and "usage" not in event
    *events, last = stream(http, path, max_tokens=4, stream_options={"include_usage": True})
    assert all(event["usage"] is None and event["choices"] for event in events)
    assert last["choices"] == []
    usage = last["usage"]
    assert usage["total_tokens"] == usage["prompt_tokens"] + usage["completion_tokens"]
    assert usage["prompt_tokens"] == (31 if path == CHAT else 1)
    check_error(post(http, path, {"stream_options": {"include_usage": True}}), 400, "stream_options")


def test_every_chunk_of_a_chat_stream_has_what_strict_clients_need(http: httpx.Client) -> None:
    for n in (1, 3):
        events = stream(http, CHAT, n=n, seed=7, max_tokens=6)
        assert len({(event["id"], event["created"], event["model"]) for event in events}) == 1
        assert {event["object"] for event in events} == {"chat.completion.chunk"}
        by_index: dict[int, list[dict[str, Any]]] = {}
        for event in events:
            for choice in event["choices"]:
                by_index.setdefault(choice["index"], []).append(choice)
        assert sorted(by_index) == list(range(n))
        for first, *rest in by_index.values():
            assert first["delta"]["role"] == "assistant"
            for choice in rest:
                assert "role" not in choice["delta"]
                assert isinstance(choice["delta"].get("content", ""), str)
            ends = [choice["finish_reason"] for choice in (first, *rest)]
            assert ends[-1] is not None and set(ends[:-1]) == {None}


# Log probabilities.


@pytest.fixture(scope="module")
def reference(default_folder: Path) -> GreedyTruth:
    return GreedyTruth(default_folder)


@pytest.fixture(scope="module")
def default_folder() -> Path:
    from octavo.engine.checkpoint.resolver import resolve_model

    return resolve_model(None, quiet=True)


def prompt_logprobs(reference: GreedyTruth, ids: list[int]) -> list[float]:
    """Of each token but the first, by the reference model."""
    with torch.inference_mode():
        logits = reference.model(torch.tensor([ids])).logits[0].float().log_softmax(-1)
    return [logits[place, token].item() for place, token in enumerate(ids[1:])]


def test_an_echoed_prompt_has_the_log_probabilities_of_the_reference_model(
    http: httpx.Client, reference: GreedyTruth
) -> None:
    fields = {"echo": True, "logprobs": 1, "temperature": 0, "return_token_ids": True}
    answer, joined = both(http, COMPLETIONS, prompt=RIVERS, max_tokens=1, **fields)
    (choice,) = answer["choices"]
    lists = choice["logprobs"]
    assert lists["tokens"][:4] == ["R", "ivers", " run", " north"] and len(lists["tokens"]) == 5
    assert lists["text_offset"] == [0, 1, 6, 10, 16]
    assert lists["token_logprobs"][0] is None and all(map(math.isfinite, lists["token_logprobs"][1:]))
    assert choice["text"].startswith(RIVERS) and joined.text == choice["text"] and joined.lists == lists
    ids = choice["prompt_token_ids"] + choice["token_ids"]
    assert lists["token_logprobs"][1:] == pytest.approx(prompt_logprobs(reference, ids), abs=1e-3)
    both_prompts = plain(http, COMPLETIONS, prompt=[RIVERS, "The sea is deep"], max_tokens=0, **fields)["choices"]
    for scored in both_prompts:
        total = sum(scored["logprobs"]["token_logprobs"][1:])
        assert total == pytest.approx(sum(prompt_logprobs(reference, scored["prompt_token_ids"])), abs=1e-3)
    assert both_prompts[0]["logprobs"]["text_offset"] == [0, 1, 6, 10] and both_prompts[0]["text"] == RIVERS


@pytest.mark.parametrize("path", PATHS)
def test_the_chosen_token_and_so_many_alternatives_as_were_asked_for(
    http: httpx.Client, path: str, reference: GreedyTruth
) -> None:
    asked = {"logprobs": True, "top_logprobs": 2} if path == CHAT else {"logprobs": 2}
    outside = 0
    for seed in range(1, 5):
        fields = {"temperature": 2, "seed": seed, "max_tokens": 20, "return_token_ids": True, **asked}
        answer = plain(http, path, **fields)
        (choice,) = answer["choices"]
        prompt_ids = (answer if path == CHAT else choice)["prompt_token_ids"]
        truth = prompt_logprobs(reference, prompt_ids + choice["token_ids"])[-len(choice["token_ids"]) :]
        if path == CHAT:
            entries = choice["logprobs"]["content"]
            told = [entry["logprob"] for entry in entries]
            for entry in entries:
                values = [best["logprob"] for best in entry["top_logprobs"]]
                assert len(values) == 2 and values == sorted(values, reverse=True)
                same = [best["logprob"] for best in entry["top_logprobs"] if best["bytes"] == entry["bytes"]]
                assert all(value == entry["logprob"] for value in same)
                outside += not same
        else:
            lists = choice["logprobs"]
            told = lists["token_logprobs"]
            for token, value, best in zip(lists["tokens"], told, lists["top_logprobs"], strict=True):
                assert best[token] == value and len(best) in (2, 3)
                outside += len(best) == 3
        assert told == pytest.approx(truth, abs=1e-3)
    assert outside > 2
    limits = [{"logprobs": True, "top_logprobs": 21}, {"logprobs": True, "top_logprobs": -1}]
    for wrong in limits if path == CHAT else [{"logprobs": 21}, {"logprobs": -1}]:
        check_error(post(http, path, wrong), 400, [*wrong][-1])


def test_impossible_tokens_have_log_probabilities_that_json_can_say(http: httpx.Client) -> None:
    echoed = {"prompt": RIVERS, "temperature": 1, "top_k": 1, "logprobs": 5, "echo": True, "max_tokens": 3}
    yes = {"allowed_token_ids": [10539], "logprobs": True, "top_logprobs": 5, "max_tokens": 3}
    chosen = {"guided_choice": ["zebra"], "logprobs": True, "top_logprobs": 5}
    for path, fields in ((COMPLETIONS, echoed), (CHAT, yes), (CHAT, chosen)):
        answer, joined = both(http, path, **fields)
        (choice,) = answer["choices"]
        if path == CHAT:
            values = [entry["logprob"] for entry in choice["logprobs"]["content"]]
            assert joined.logprobs == choice["logprobs"]["content"]
        else:
            values = choice["logprobs"]["token_logprobs"][1:]
            assert joined.lists == choice["logprobs"]
        assert values and all(isinstance(value, float) and -9999.0 < value <= 0 for value in values)


# Seeds and temperatures.


def test_a_seeded_answer_is_the_same_alone_and_among_others(http: httpx.Client) -> None:
    seeded = {"seed": 42, "temperature": 0.8, "max_tokens": 16}
    alone = plain(http, COMPLETIONS, **seeded)["choices"][0]["text"]
    neighbour = {"prompt": "Tell me", "temperature": 1.1, "max_tokens": 12, "ignore_eos": True}
    others = []
    with ThreadPoolExecutor(5) as pool:
        for _ in range(4):
            beside = [pool.submit(plain, http, COMPLETIONS, **neighbour) for _ in range(4)]
            assert plain(http, COMPLETIONS, **seeded)["choices"][0]["text"] == alone
            others += [answer.result()["choices"][0]["text"] for answer in beside]
    assert len(set(others)) == len(others)


@pytest.mark.parametrize("temperature", [1e-5, 1e-7, 1e-45])
def test_a_tiny_temperature_is_greedy(http: httpx.Client, capital: str, temperature: float) -> None:
    assert plain(http, COMPLETIONS, **CAPITAL | {"temperature": temperature})["choices"][0]["text"] == capital


@pytest.mark.parametrize("path", PATHS)
def test_numbers_that_are_none_are_refused_by_a_body_that_is_json(http: httpx.Client, path: str) -> None:
    base = json.dumps({"messages": HI} if path == CHAT else {"prompt": "hi"})[:-1]
    for word in ("NaN", "Infinity", "-Infinity", "1e400"):
        for field in ('"temperature":', '"logit_bias":{"5":', '"chat_template_kwargs":{"a":'):
            close = "}}" if "{" in field else "}"
            response = http.post(path, content=f"{base},{field}{word}{close}".encode())
            if "chat" not in field or path == CHAT:
                check_error(response, 400)
