"""Deltas become outputs: the same text and tokens however they are read, and one request's trouble is its own."""

import itertools
from collections.abc import Callable, Sequence
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scripted_transport import outputs, text_config, text_tokenizer

from octavo.core.engine_output import EngineCoreOutputs, Finished, PromptLogprobsDelta, Started, TokenLogprobsDelta
from octavo.core.errors import EngineDeadError, RequestFailedError
from octavo.core.outputs import RequestOutput
from octavo.core.sampling_params import RequestOutputKind, SamplingParams
from octavo.core.stats import FinishedRequestStats, SchedulerStats
from octavo.engine.input_processor import InputProcessor
from octavo.engine.output_processor import OutputProcessor, RequestState
from octavo.engine.tokenizer import Tokenizer

DELTA, CUMULATIVE, FINAL = RequestOutputKind.DELTA, RequestOutputKind.CUMULATIVE, RequestOutputKind.FINAL_ONLY
EOS = 2


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    return text_tokenizer(tmp_path_factory.mktemp("tokenizer"))


class Desk:
    """An output processor, its requests, and how often each was told of news."""

    def __init__(self, tokenizer: Tokenizer | None, loggers: Sequence[Any] = ()) -> None:
        self.tokenizer = tokenizer
        self.processor = OutputProcessor(tokenizer, loggers)
        self.inputs = InputProcessor(text_config(), tokenizer)
        self.news: dict[str, int] = {}

    def add(self, name: str = "r", prompt: Sequence[int] = (5,), **params: Any) -> tuple[RequestState, list[int]]:
        """A request; its state and handles."""
        self.news[name] = 0

        def on_news() -> None:
            self.news[name] += 1

        request = self.inputs.prepare(list(prompt), SamplingParams(**{"max_tokens": 100, **params}))
        messages = self.processor.add(name, request, on_news)
        return self.processor.requests[name], [message.handle for message in messages]

    def play(self, handle: int, tokens: Sequence[int], reason: str | None = "length", **end: Any) -> list[int]:
        """One step for each token; the last one ends the completion. Returns the handles to abort."""
        aborted = []
        for place, token in enumerate(tokens):
            last = reason is not None and place == len(tokens) - 1
            finished = [Finished(handle, reason, **end)] if last and reason is not None else []
            aborted += self.processor.process(outputs([(handle, token)], finished=finished))
        return aborted


@pytest.fixture
def desk(tokenizer: Tokenizer) -> Desk:
    return Desk(tokenizer)


def taken(state: RequestState) -> RequestOutput:
    output = state.take()
    assert output is not None
    return output


# Three ways to read, one result.


def read_all(tokenizer: Tokenizer, kind: RequestOutputKind, tokens: list[int], reads: list[bool], **params: Any) -> Any:
    """Text, ids, logprobs, finish and stop reason of a completion whose reader takes at some of the steps."""
    desk = Desk(tokenizer)
    state, (handle,) = desk.add(output_kind=kind, logprobs=1, **params)
    got: list[RequestOutput] = []
    for place, token in enumerate(tokens):
        finished = [Finished(handle, "length")] if place == len(tokens) - 1 else []
        entry = TokenLogprobsDelta(0, [token, 9], [-float(place) - 1.0, -0.5], 2)
        desk.processor.process(outputs([(handle, token)], finished=finished, logprobs=[entry]))
        if (reads[place % len(reads)] or finished or state.finished) and (output := state.take()) is not None:
            got.append(output)
        if state.finished:
            break
    assert got[-1].finished
    assert [output.finished for output in got[:-1]] == [False] * (len(got) - 1)
    parts = [output.outputs[0] for output in got]
    if kind is not DELTA:
        assert all(later.text.startswith(part.text) for part, later in itertools.pairwise(parts))
        parts = parts[-1:]
    end = parts[-1]
    logprobs = [place for part in parts for place in part.logprobs or []]
    ids = [token for part in parts for token in part.token_ids]
    return "".join(part.text for part in parts), ids, logprobs, end.finish_reason, end.stop_reason


@settings(max_examples=60)
@given(
    text=st.text(alphabet="the hat inö漢🙂\n", min_size=1, max_size=30),
    reads=st.lists(st.booleans(), min_size=1, max_size=5),
    stop=st.sampled_from([[], ["hat"], ["t i", "🙂"], ["zzz"]]),
    include=st.booleans(),
)
def test_every_output_kind_and_every_pace_of_reading_gives_the_same(
    tokenizer: Tokenizer, text: str, reads: list[bool], stop: list[str], include: bool
) -> None:
    tokens = tokenizer.encode(text)
    read = [
        read_all(tokenizer, kind, tokens, pace, stop=stop, include_stop_str_in_output=include)
        for kind in RequestOutputKind
        for pace in (reads, [True])
    ]
    assert all(result == read[0] for result in read)
    places = [text.find(word) for word in stop if word in text]
    if not places:
        assert read[0][0] == text
        assert read[0][1] == tokens
    else:
        assert read[0][3] == "stop"
        assert text.startswith(read[0][0])


def test_what_piles_up_while_the_reader_is_busy_comes_as_one_output(desk: Desk) -> None:
    state, (handle,) = desk.add(output_kind=DELTA)
    tokens = encode(desk, "the hat")
    desk.play(handle, tokens, reason=None)
    output = taken(state)
    assert output.outputs[0].text == "the hat"
    assert output.outputs[0].token_ids == tokens
    assert state.take() is None
    desk.play(handle, [tokens[0]])
    assert taken(state).outputs[0].token_ids == [tokens[0]]


def test_final_only_is_silent_until_the_end(desk: Desk) -> None:
    state, (handle,) = desk.add(output_kind=FINAL)
    desk.play(handle, [5, 6], reason=None)
    assert state.take() is None
    desk.play(handle, [7])
    assert taken(state).outputs[0].token_ids == [5, 6, 7]


def test_an_output_that_was_taken_does_not_change_any_more(desk: Desk) -> None:
    state, (handle,) = desk.add(output_kind=CUMULATIVE)
    desk.play(handle, [5], reason=None)
    first = taken(state)
    desk.play(handle, [6])
    assert first.outputs[0].token_ids == [5]
    assert not first.finished


# Stop strings and stop tokens.


def encode(desk: Desk, text: str) -> list[int]:
    assert desk.tokenizer is not None
    return desk.tokenizer.encode(text)


@pytest.mark.parametrize(("include", "text"), [(False, "a "), (True, "a STOP")])
def test_a_stop_string_across_tokens_ends_text_and_tokens(desk: Desk, include: bool, text: str) -> None:
    state, (handle,) = desk.add(stop=["STOP"], include_stop_str_in_output=include)
    tokens = encode(desk, "a STOPPED")
    aborted = desk.play(handle, tokens, reason=None)
    assert aborted == [handle]
    output = taken(state).outputs[0]
    assert (output.text, output.finish_reason, output.stop_reason) == (text, "stop", "STOP")
    assert output.token_ids == tokens[: tokens.index(encode(desk, "P")[0]) + 1]
    assert not desk.processor.requests


def test_text_that_might_begin_a_stop_string_is_held_back_and_then_released(desk: Desk) -> None:
    state, (handle,) = desk.add(stop=["STOP"], output_kind=DELTA)
    desk.play(handle, encode(desk, "a ST"), reason=None)
    assert taken(state).outputs[0].text == "a "
    desk.play(handle, encode(desk, "A"), reason=None)
    assert taken(state).outputs[0].text == "STA"
    desk.play(handle, encode(desk, "STO"))
    assert taken(state).outputs[0].text == "STO"


def test_a_stop_string_at_the_last_token_allowed_is_a_stop(desk: Desk) -> None:
    state, (handle,) = desk.add(stop=["hat"])
    aborted = desk.play(handle, encode(desk, "hat"))
    assert aborted == []  # the engine has ended it, too
    output = taken(state).outputs[0]
    assert (output.text, output.finish_reason, output.stop_reason) == ("", "stop", "hat")


def test_an_end_token_is_counted_and_not_shown(desk: Desk) -> None:
    state, (handle,) = desk.add(skip_special_tokens=False)
    desk.play(handle, [*encode(desk, "hat"), EOS], reason="stop")
    output = taken(state).outputs[0]
    assert (output.text, output.token_ids[-1], output.finish_reason, output.stop_reason) == ("hat", EOS, "stop", None)


@pytest.mark.parametrize(("include", "text"), [(False, "hat"), (True, "hatX")])
def test_a_stop_token_is_named_and_shown_only_if_asked_for(desk: Desk, include: bool, text: str) -> None:
    (stop,) = encode(desk, "X")
    state, (handle,) = desk.add(stop_token_ids=[stop], include_stop_str_in_output=include)
    desk.play(handle, [*encode(desk, "hat"), stop], reason="stop", stop_token=stop)
    output = taken(state).outputs[0]
    assert (output.text, output.token_ids[-1], output.stop_reason) == (text, stop, stop)


def test_half_a_character_at_the_end_is_shown_as_such(desk: Desk) -> None:
    state, (handle,) = desk.add(output_kind=DELTA)
    tokens = encode(desk, "漢")
    desk.play(handle, tokens[:1], reason=None)
    assert taken(state).outputs[0].text == ""
    desk.play(handle, tokens[1:2])
    assert taken(state).outputs[0].text == "\ufffd"


def test_without_detokenization_there_are_only_ids(desk: Desk) -> None:
    for place, params in ((desk, {"detokenize": False}), (Desk(None), {})):
        state, (handle,) = place.add(**params)
        place.play(handle, [5, 6])
        output = taken(state).outputs[0]
        assert (output.text, output.token_ids) == ("", [5, 6])


# Several completions.


def test_completions_of_one_request_end_one_by_one(desk: Desk) -> None:
    state, handles = desk.add(n=3, output_kind=DELTA)
    desk.processor.process(outputs([(handle, 5 + place) for place, handle in enumerate(handles)]))
    assert desk.news["r"] == 1
    assert [(part.index, part.token_ids) for part in taken(state).outputs] == [(0, [5]), (1, [6]), (2, [7])]
    desk.play(handles[1], [8])
    output = taken(state)
    assert [(part.index, part.finish_reason) for part in output.outputs] == [(1, "length")]
    assert not output.finished
    desk.play(handles[0], [9], reason="stop")
    desk.play(handles[2], [9], reason="stop")
    output = taken(state)
    assert [part.index for part in output.outputs] == [0, 2]
    assert output.finished
    assert output.num_generated_tokens == 6


def test_a_finished_completion_is_told_once_under_delta(desk: Desk) -> None:
    state, handles = desk.add(n=2, output_kind=DELTA)
    desk.play(handles[0], [5])
    assert taken(state).outputs[0].finished
    desk.play(handles[1], [6], reason=None)
    assert [part.index for part in taken(state).outputs] == [1]


# Aborts, errors and what comes too late.


def test_an_abort_ends_what_runs_and_keeps_what_came(desk: Desk) -> None:
    state, handles = desk.add(n=2, stop=["STOP"])
    desk.play(handles[0], encode(desk, "hat"))
    desk.play(handles[1], encode(desk, "a ST"), reason=None)
    assert desk.processor.abort("r") == [handles[1]]
    output = taken(state)
    assert output.finished
    assert [(part.text, part.finish_reason) for part in output.outputs] == [("hat", "length"), ("a ST", "abort")]
    assert desk.processor.abort("r") == []


def test_what_comes_for_handles_that_are_gone_or_unknown_is_ignored(desk: Desk) -> None:
    state, (handle,) = desk.add()
    desk.processor.abort("r")
    strays = outputs(
        [(handle, 5), (12345, 6)],
        finished=[Finished(handle, "length"), Finished(12345, "error", error="x")],
        started=[Started(handle, 1.0, 0), Started(12345, 1.0, 0)],
        logprobs=[TokenLogprobsDelta(0, [5], [-1.0], 1)],
        prompt_logprobs=[PromptLogprobsDelta(12345, 1, [[5]], [[-1.0]], [1])],
    )
    assert desk.processor.process(strays) == []
    assert taken(state).outputs[0].token_ids == []


def test_an_error_of_the_engine_fails_the_request_and_stops_its_siblings(desk: Desk) -> None:
    state, handles = desk.add(n=3)
    other, (bystander,) = desk.add("other")
    desk.play(handles[2], [5])
    message = outputs([(bystander, 6)], finished=[Finished(handles[0], "error", error="KeyError: 5")])
    assert desk.processor.process(message) == [handles[1]]
    with pytest.raises(RequestFailedError, match="KeyError: 5"):
        state.take()
    assert taken(other).outputs[0].token_ids == [6]
    assert list(desk.processor.requests) == ["other"]


def break_detokenizer(state: RequestState) -> None:
    def explode(*_: object, **__: object) -> str:
        raise ZeroDivisionError("a bug")

    detokenizer = state.completions[0].detokenizer
    assert detokenizer is not None
    detokenizer.append = explode  # pyright: ignore[reportAttributeAccessIssue]
    detokenizer.finish = explode  # pyright: ignore[reportAttributeAccessIssue]


def bad_token(handle: int, bystander: int) -> EngineCoreOutputs:
    return outputs([(handle, 5), (bystander, 6)])


def bad_end(handle: int, bystander: int) -> EngineCoreOutputs:
    return outputs([(bystander, 6)], finished=[Finished(handle, "length")])


def bad_logprobs(handle: int, bystander: int) -> EngineCoreOutputs:
    return outputs([(handle, 5), (bystander, 6)], logprobs=[TokenLogprobsDelta(0, [5, 6], [-1.0], 1)])


def bad_prompt_logprobs(handle: int, bystander: int) -> EngineCoreOutputs:
    return outputs([(bystander, 6)], prompt_logprobs=[PromptLogprobsDelta(handle, 1, [[5, 6]], [[-1.0]], [1])])


@pytest.mark.parametrize("message", [bad_token, bad_end, bad_logprobs, bad_prompt_logprobs])
def test_a_bug_in_our_own_code_fails_only_the_request_it_hit(
    desk: Desk, message: Callable[[int, int], EngineCoreOutputs]
) -> None:
    state, (handle,) = desk.add()
    other, (bystander,) = desk.add("other")
    if message in (bad_token, bad_end):
        break_detokenizer(state)
    assert handle in desk.processor.process(message(handle, bystander)) or message is bad_end
    assert desk.news["r"] >= 1
    with pytest.raises(RequestFailedError, match=r"ZeroDivisionError|ValueError"):
        state.take()
    desk.play(bystander, [7])
    assert taken(other).outputs[0].token_ids == [6, 7]
    assert not desk.processor.requests
    assert not desk.processor._completions


def test_a_reader_whose_event_loop_is_closed_disturbs_nobody(desk: Desk) -> None:
    def closed() -> None:
        raise RuntimeError("Event loop is closed")

    request = desk.inputs.prepare([5], SamplingParams(max_tokens=9))
    (message,) = desk.processor.add("gone", request, closed)
    other, (bystander,) = desk.add("other")
    desk.processor.process(outputs([(message.handle, 5), (bystander, 6)]))
    assert desk.news["other"] == 1
    assert desk.processor.abort("gone") == [message.handle]
    assert taken(other).outputs[0].token_ids == [6]


def test_when_the_engine_is_gone_every_reader_is_told(desk: Desk) -> None:
    states = [desk.add(name)[0] for name in ("a", "b")]
    desk.processor.fail_all(EngineDeadError("it is gone"))
    assert desk.news == {"a": 1, "b": 1}
    for state in states:
        with pytest.raises(EngineDeadError):
            state.take()
    assert not desk.processor.requests


# Log probabilities.


def test_logprobs_are_ordered_ranked_and_decoded(desk: Desk) -> None:
    chosen, best, second = encode(desk, "X")[0], encode(desk, "he")[0], 319
    state, (handle,) = desk.add(logprobs=2)
    entry = TokenLogprobsDelta(0, [chosen, best, second], [-3.0, -0.5, -1.0], 7)
    desk.processor.process(outputs([(handle, chosen)], finished=[Finished(handle, "length")], logprobs=[entry]))
    logprobs = taken(state).outputs[0].logprobs
    assert logprobs is not None
    (place,) = logprobs
    assert list(place) == [chosen, best, second]
    assert [(p.logprob, p.rank, p.decoded_token) for p in place.values()] == [
        (-3.0, 7, "X"),
        (-0.5, 1, "he"),
        (-1.0, 2, ""),
    ]
    assert place[best].token_bytes == b"he"


def test_a_chosen_token_among_the_best_stands_once_and_first(desk: Desk) -> None:
    state, (handle,) = desk.add(logprobs=2)
    entry = TokenLogprobsDelta(0, [6, 5, 6], [-1.0, -0.5, -1.0], 2)
    desk.processor.process(outputs([(handle, 6)], finished=[Finished(handle, "length")], logprobs=[entry]))
    (place,) = taken(state).outputs[0].logprobs or []
    assert [(token, entry.rank) for token, entry in place.items()] == [(6, 2), (5, 1)]


def test_logprobs_find_their_token_beside_tokens_without_any(desk: Desk) -> None:
    plain, (first,) = desk.add("plain")
    state, (second,) = desk.add("asked", logprobs=0)
    desk.processor.process(outputs([(first, 5), (second, 6)], logprobs=[TokenLogprobsDelta(1, [6], [-2.0], 3)]))
    assert taken(plain).outputs[0].logprobs is None
    (place,) = taken(state).outputs[0].logprobs or []
    assert place[6].logprob == -2.0
    assert place[6].rank == 3


def prompt_delta(handle: int, start: int, tokens: list[int], value: float = -1.0) -> EngineCoreOutputs:
    rows = [[token] for token in tokens]
    return outputs(prompt_logprobs=[PromptLogprobsDelta(handle, start, rows, [[value]] * len(rows), [1] * len(rows))])


def test_prompt_logprobs_in_chunks_and_again_after_a_preemption(desk: Desk) -> None:
    state, (handle,) = desk.add(prompt=[11, 12, 13, 14, 15], prompt_logprobs=0)
    desk.processor.process(prompt_delta(handle, 1, [12, 13], -9.0))
    desk.processor.process(prompt_delta(handle, 1, [12, 13, 14], -1.0))  # preempted in between
    desk.processor.process(prompt_delta(handle, 4, [15], -1.0))
    desk.play(handle, [5])
    entries = taken(state).prompt_logprobs
    assert entries is not None
    assert [None if e is None else next(iter(e)) for e in entries] == [None, 12, 13, 14, 15]
    assert all(entry.logprob == -1.0 for place in entries if place is not None for entry in place.values())


def test_a_prompt_of_one_token_has_one_empty_place(desk: Desk) -> None:
    state, (handle,) = desk.add(prompt=[11], prompt_logprobs=1)
    desk.play(handle, [5])
    assert taken(state).prompt_logprobs == [None]


def test_prompt_logprobs_that_were_not_asked_for_are_none(desk: Desk) -> None:
    state, (handle,) = desk.add()
    desk.play(handle, [5])
    assert taken(state).prompt_logprobs is None


# Numbers.


class Notes:
    """A stat logger."""

    def __init__(self) -> None:
        self.finished: list[FinishedRequestStats] = []
        self.first: list[float] = []
        self.later: list[tuple[int, float]] = []
        self.steps = 0

    def record_step(self, stats: SchedulerStats) -> None:
        self.steps += 1

    def record_first_token(self, seconds: float) -> None:
        self.first.append(seconds)

    def record_tokens(self, count: int, seconds: float) -> None:
        self.later.append((count, seconds))

    def record_finished(self, stats: FinishedRequestStats) -> None:
        self.finished.append(stats)


def test_times_and_counts_of_a_request_are_those_of_its_messages(tokenizer: Tokenizer) -> None:
    notes = Notes()
    desk = Desk(tokenizer, [notes])
    request = desk.inputs.prepare([5, 6, 7], SamplingParams(max_tokens=2))
    request.message = msgspec.structs.replace(request.message, arrival_time=100.0)
    (message,) = desk.processor.add("r", request, lambda: None)
    handle = message.handle
    desk.processor.process(outputs(started=[Started(handle, 101.0, 2)], time=101.5))
    desk.processor.process(outputs([(handle, 8)], time=103.0))
    desk.processor.process(outputs(started=[Started(handle, 104.0, 0)], time=104.0))  # preempted and back
    end = Finished(handle, "length", num_preemptions=1)
    desk.processor.process(outputs([(handle, 9)], finished=[end], time=106.0))
    assert notes.first == [3.0]
    assert notes.later == [(1, 3.0)]
    (stats,) = notes.finished
    assert (stats.queue_seconds, stats.prefill_seconds, stats.decode_seconds, stats.e2e_seconds) == (1.0, 2.0, 3.0, 6.0)
    assert (stats.num_prompt_tokens, stats.num_cached_tokens, stats.num_generated_tokens) == (3, 2, 2)
    assert stats.finish_reason == "length"


def test_gaps_between_tokens_are_told_together_where_they_are_equal(tokenizer: Tokenizer) -> None:
    notes = Notes()
    desk = Desk(tokenizer, [notes])
    handles = [desk.add(name, max_tokens=9)[1][0] for name in ("a", "b", "c")]
    desk.processor.process(outputs([(handle, 8) for handle in handles[:2]], time=1.0))
    desk.processor.process(outputs([(handle, 8) for handle in handles], time=2.0))
    assert (len(notes.first), notes.later) == (3, [(2, 1.0)])
    desk.processor.process(outputs([(handles[0], 8), (handles[2], 8)], time=4.0))
    desk.processor.process(outputs([(handle, 8) for handle in handles], time=5.0))
    assert notes.later[1:] == [(2, 2.0), (2, 1.0), (1, 3.0)]


def test_handles_are_never_shared_by_two_running_completions(desk: Desk) -> None:
    desk.processor._next_handle = 2**31 - 3
    handles = [handle for name in ("a", "b") for handle in desk.add(name, n=2)[1]]
    assert len(set(handles)) == 4
    assert all(0 <= handle < 2**31 for handle in handles)
