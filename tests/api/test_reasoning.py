"""Reasoning is told from content: by the end of the prompt, in any split, with and without calls."""

import random
from typing import Any, get_args

import pytest
from answer_reading import TOOLS, Answer, collect, cut, read
from chat_answers import CALL, LAMP, both
from hypothesis import given, settings
from hypothesis import strategies as st
from openai.types.shared_params.reasoning_effort import ReasoningEffort
from stub_app import CHAT, HI, StubApp, check_error, run, strict_json
from stub_engine import StubEngine, make_tokenizer

from octavo.api.answer_parts import Part
from octavo.api.answer_splitter import AnswerSplitter
from octavo.api.reasoning import REASONING_FORMATS, ReasoningMachine, reasoning_format
from octavo.api.tools.json_calls import HermesParser
from octavo.core.errors import ConfigurationError

QWEN = REASONING_FORMATS["qwen3"]
THINKING = (
    "{% for message in messages %}{{ message.role + ': ' + message.content + '\n' }}{% endfor %}"
    "{% if reasoning_effort %}effort {{ reasoning_effort }}{{ '\n' }}{% endif %}assistant: "
    "{% if enable_thinking is defined and not enable_thinking %}{{ '<think>\n\n</think>\n\n' }}"
    "{% elif begin_thinking %}{{ '<think>\n' }}{% endif %}"
)


def playing(text: str, template: str = THINKING, piece: int = 1) -> StubEngine:
    """An engine that says this, with a template that has thinking in it."""
    tokenizer = make_tokenizer()
    tokenizer.chat_templates["default"] = template
    return StubEngine(tokenizer=tokenizer, text=text, context=8000, pieces=lambda step: piece)


@pytest.mark.parametrize(
    ("state", "text", "reasoning", "content"),
    [
        ("unknown", "<think>\nI weigh it.\n</think>\n\nYes.\n", "I weigh it.", "Yes.\n"),
        ("unknown", "\n<think>a</think>b", "a", "b"),
        ("unknown", "Yes.", "", "Yes."),
        ("unknown", " Yes <think>no</think>", "", " Yes <think>no</think>"),
        ("unknown", "<thin", "", "<thin"),
        ("unknown", "<think></think>Yes", "", "Yes"),
        ("unknown", "<think>\n\n</think>\n\nYes", "", "Yes"),
        ("unknown", "<think>cut off", "cut off", ""),
        ("unknown", "<think>a</think>b</think>c<think>", "a", "b</think>c<think>"),
        ("unknown", "<think>a <think> b</think>c", "a <think> b", "c"),
        ("open", "I weigh it.\n</think>\n\nYes.", "I weigh it.", "Yes."),
        ("open", "<think>\nOnce more.</think>Yes.", "Once more.", "Yes."),
        ("open", "</think>Yes.", "", "Yes."),
        ("open", "still </thi", "still </thi", ""),
        ("open", "", "", ""),
        ("unknown", "", "", ""),
        ("unknown", "  ", "", "  "),
    ],
)
def test_reasoning_is_split_off_in_every_split(state: str, text: str, reasoning: str, content: str) -> None:
    expected = Answer(content, reasoning)
    assert read(ReasoningMachine(QWEN, state), [text]) == expected
    assert read(ReasoningMachine(QWEN, state), text) == expected
    for place in range(len(text)):
        assert read(ReasoningMachine(QWEN, state), cut(text, [place])) == expected


@pytest.mark.parametrize(
    ("prompt", "open_text", "state"),
    [
        ("user: hi\nassistant: <think>\n", "", "open"), ("user: <think>\nassistant: ", "", "unknown"),
        ("user: say </think>\nassistant:", "", "unknown"), ("<think>\n\n</think>\n\n", "", "closed"),
        ("a: <think>one", "<think>one", "open"), ("a: <think>one</think> two", "<think>one</think> two", "closed"),
        ("a: two", "two", "unknown"), ("", "", "unknown"),
    ],
)  # fmt: skip
def test_only_the_end_of_the_prompt_says_what_the_answer_begins_with(prompt: str, open_text: str, state: str) -> None:
    assert QWEN.state_after(prompt, open_text) == state


FRAGMENTS = ["<think>", "</think>", "<thi", "</", "\n", " ", "text", CALL, "<tool_call>", "🧭"]


@settings(max_examples=200, deadline=None)
@given(st.lists(st.sampled_from(FRAGMENTS), max_size=10), st.sampled_from(["open", "unknown"]), st.data())
def test_reasoning_and_calls_together_are_read_the_same_in_any_split(
    pieces: list[str], state: str, data: st.DataObject
) -> None:
    def split(texts: Any) -> Answer:
        splitter = AnswerSplitter(ReasoningMachine(QWEN, state), HermesParser(TOOLS))
        parts: list[Part] = []
        for text in texts:
            parts += splitter.feed(text)
        return collect(parts + splitter.finish())

    text = "".join(pieces)
    whole = split([text])
    assert split(text) == whole == split(pieces)
    assert split(cut(text, data.draw(st.lists(st.integers(0, len(text)), max_size=8)))) == whole


@pytest.mark.parametrize("piece", [1, 4, 500])
def test_reasoning_comes_under_both_names_streamed_and_plain(piece: int) -> None:
    [answer] = both(playing("<think>\nI weigh it.\n</think>\n\nYes.", piece=piece))
    assert answer["message"] == {
        "role": "assistant", "content": "Yes.", "reasoning_content": "I weigh it.", "reasoning": "I weigh it.",
        "refusal": None,
    }  # fmt: skip
    assert answer["finish_reason"] == "stop"


def test_a_template_that_opens_the_reasoning_is_followed() -> None:
    [answer] = both(playing("So.\n</think>\nYes."), chat_template_kwargs={"begin_thinking": True})
    assert (answer["message"]["reasoning_content"], answer["message"]["content"]) == ("So.", "Yes.")


def test_tags_in_the_conversation_do_not_matter() -> None:
    [answer] = both(playing("Yes."), messages=[{"role": "user", "content": "What is <think> for?"}])
    assert answer["message"] == {"role": "assistant", "content": "Yes.", "refusal": None}


def test_reasoning_can_be_left_out() -> None:
    [answer] = both(playing("<think>I weigh it.</think>Yes."), include_reasoning=False)
    assert answer["message"] == {"role": "assistant", "content": "Yes.", "refusal": None}


def test_calls_follow_reasoning_and_markup_within_it_is_none() -> None:
    [answer] = both(playing(f"<think>A {CALL}?</think>\n\n{CALL}"), tools=[LAMP])
    message = answer["message"]
    assert message["content"] is None and len(message["tool_calls"]) == 1
    assert message["reasoning_content"] == f"A {CALL}?" and answer["finish_reason"] == "tool_calls"


def test_reasoning_tokens_are_counted() -> None:
    for piece in (1, 500):
        body = {"messages": HI}
        answer = strict_json(run(StubApp(playing("<think>ab</think>", piece=piece)).post(CHAT, body)).content)
        # Every character is a token; the end token follows the closing tag.
        counted = answer["usage"]["completion_tokens_details"]["reasoning_tokens"]
        assert counted in (len("<think>ab</think>"), answer["usage"]["completion_tokens"])
    plain = strict_json(run(StubApp(playing("Yes.")).post(CHAT, {"messages": HI})).content)
    assert "completion_tokens_details" not in plain["usage"]


def test_reasoning_effort_reaches_the_template_and_none_ends_thinking() -> None:
    engine = playing("Yes.")
    assert engine.tokenizer is not None
    for effort in get_args(get_args(ReasoningEffort)[0]):  # all that the official client knows
        both(engine, reasoning_effort=effort)
        assert f"effort {effort}\n" in engine.tokenizer.decode(engine.started[-1][1])
    for path, body in (
        ("/v1/responses", {"input": "hi", "reasoning": {"effort": "max"}}),
        ("/v1/messages", {"messages": HI, "max_tokens": 9, "output_config": {"effort": "max"}}),
    ):
        assert run(StubApp(engine).post(path, body)).status_code == 200
        assert "effort max\n" in engine.tokenizer.decode(engine.started[-1][1])
    both(engine, reasoning_effort="none")
    assert engine.tokenizer.decode(engine.started[-1][1]).endswith("<think>\n\n</think>\n\n")
    both(engine, reasoning_effort="none", chat_template_kwargs={"enable_thinking": True})
    assert engine.tokenizer.decode(engine.started[-1][1]).endswith("assistant: ")
    check_error(run(StubApp(engine).post(CHAT, {"messages": HI, "reasoning_effort": "lots"})), 400, "reasoning_effort")


def test_without_tags_in_the_template_everything_is_content() -> None:
    [answer] = both(playing("<think>a</think>b", "{{ messages[0].content }}"))
    assert answer["message"]["content"] == "<think>a</think>b"
    [answer] = both(playing("<think>a</think>b", "{{ messages[0].content }}"), {"reasoning_parser": "deepseek_r1"})
    assert answer["message"]["content"] == "b"
    [answer] = both(playing("<think>a</think>b"), {"reasoning_parser": "none"})
    assert answer["message"]["content"] == "<think>a</think>b"


def test_formats_are_found_by_their_tags() -> None:
    assert reasoning_format("auto", "{{ content.split('</think>')[-1] }}") == QWEN
    assert reasoning_format("auto", "[THINK]{{ x }}[/THINK]") == REASONING_FORMATS["mistral"]
    assert reasoning_format("auto", "plain") is None
    with pytest.raises(ConfigurationError, match="no such parser"):
        reasoning_format("qwen4", "")


def test_random_pieces_of_a_long_reasoning_join_to_it() -> None:
    chance = random.Random(1)
    thought = " ".join(chance.choice(["a", "<", "</", "think>", "\n\n", "</thin"]) for _ in range(3000)).strip()
    text = f"<think>{thought}</think> end"
    answer = read(ReasoningMachine(QWEN, "unknown"), cut(text, chance.sample(range(len(text)), 800)))
    assert answer == Answer("end", thought)
