"""A streamed answer, put together, is the plain answer: for random tokens, random pieces and random options."""

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from stub_app import CHAT, COMPLETIONS, HI, StubApp, join_chunks, run, strict_json
from stub_engine import StubEngine, make_tokenizer

TOKENIZER = make_tokenizer()
TOKENS = st.lists(st.integers(0, TOKENIZER.vocab_size - 1), max_size=24)
TEXTS = st.text(alphabet="ab🧭é漢 \n", max_size=12).map(TOKENIZER.encode)


@st.composite
def engines(draw: st.DrawFn) -> StubEngine:
    """Plays other tokens for each choice, in pieces of changing size."""
    plays = draw(st.lists(TOKENS | TEXTS, min_size=3, max_size=3))
    sizes = draw(st.lists(st.integers(1, 7), min_size=1, max_size=4))
    return StubEngine(
        tokenizer=TOKENIZER,
        plays=lambda ids, params, index: plays[(len(ids) + index) % 3],
        pieces=lambda step: sizes[step % len(sizes)],
    )


OPTIONS = st.fixed_dictionaries(
    {},
    optional={
        "n": st.integers(1, 3),
        "max_tokens": st.integers(1, 30),
        "ignore_eos": st.booleans(),
        "stop": st.lists(st.text(alphabet="ab🧭é漢 \n", min_size=1, max_size=3), max_size=2),
        "stop_token_ids": st.lists(st.integers(0, 60), max_size=3),
        "include_stop_str_in_output": st.booleans(),
        "skip_special_tokens": st.booleans(),
        "return_token_ids": st.booleans(),
        "prompt_logprobs": st.integers(0, 2),
        "echo": st.booleans(),
    },
)


def both(engine: StubEngine, path: str, body: dict[str, Any]) -> tuple[list[dict], dict]:
    """The events of the stream, and the plain answer."""
    app = StubApp(engine)
    events = run(app.events(path, {**body, "stream_options": {"include_usage": True}}))
    plain = run(app.post(path, body))
    assert plain.status_code == 200, plain.text
    return events, strict_json(plain.content)


@settings(max_examples=120)
@given(engines(), OPTIONS, st.none() | st.integers(0, 3))
def test_chat(engine: StubEngine, options: dict[str, Any], top: int | None) -> None:
    logprobs = {} if top is None else {"logprobs": True, "top_logprobs": top}
    if options.get("max_tokens") is None:
        options = {**options, "max_tokens": 40}
    events, plain = both(engine, CHAT, {"messages": HI, **options, **logprobs})
    assert events[-1]["usage"] == plain["usage"] and events[-1]["choices"] == []
    joined = join_chunks(events)
    assert sorted(joined) == list(range(options.get("n", 1)))
    for choice in plain["choices"]:
        streamed = joined[choice["index"]]
        assert streamed.text == choice["message"]["content"]
        assert (streamed.finish_reason, streamed.stop_reason) == (choice["finish_reason"], choice["stop_reason"])
        assert streamed.token_ids == choice.get("token_ids", [])
        assert streamed.logprobs == (choice["logprobs"] or {"content": []})["content"]
    assert events[0].get("prompt_logprobs") == plain.get("prompt_logprobs")
    assert events[0].get("prompt_token_ids") == plain.get("prompt_token_ids")


PROMPTS = st.sampled_from(["a", "Hello world🧭", ["ab", "Hello", "é"], [5, 6, 7], [[200], [9, 10]]])


@settings(max_examples=120)
@given(engines(), OPTIONS, PROMPTS, st.none() | st.integers(0, 3))
def test_completions(engine: StubEngine, options: dict[str, Any], prompt: Any, logprobs: int | None) -> None:
    events, plain = both(engine, COMPLETIONS, {"prompt": prompt, "logprobs": logprobs, **options})
    assert events[-1]["usage"] == plain["usage"] and events[-1]["choices"] == []
    joined = join_chunks(events)
    count = len(prompt) if isinstance(prompt, list) and not isinstance(prompt[0], int) else 1
    assert (
        [choice["index"] for choice in plain["choices"]] == sorted(joined) == list(range(count * options.get("n", 1)))
    )
    extras: dict[int, dict[str, Any]] = {}
    for event in events:
        for part in event["choices"]:
            extras.setdefault(part["index"], {}).update(part)
    for choice in plain["choices"]:
        streamed = joined[choice["index"]]
        assert streamed.text == choice["text"]
        assert (streamed.finish_reason, streamed.stop_reason) == (choice["finish_reason"], choice["stop_reason"])
        assert streamed.token_ids == choice.get("token_ids", [])
        assert streamed.lists == {name: values for name, values in (choice["logprobs"] or {}).items() if values}
        for name in ("prompt_token_ids", "prompt_logprobs"):
            assert extras[choice["index"]].get(name) == choice.get(name)
        if choice["logprobs"] is not None and streamed.lists:
            assert len({len(values) for values in streamed.lists.values()}) == 1
