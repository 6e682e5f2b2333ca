"""Incremental detokenization and stop strings: nothing lost, nothing early, nothing taken back."""

import random
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from small_tokenizers import byte_fallback, metaspace, word_level

from octavo.core.sampling_params import SamplingParams
from octavo.engine.checkpoint import resolve_model
from octavo.engine.detokenizer import IncrementalDetokenizer, WindowDecoder
from octavo.engine.stop_strings import StopScanner
from octavo.engine.tokenizer import Tokenizer

SMOLLM = Tokenizer.from_folder(resolve_model(None, quiet=True))
# Ids whose bytes are parts of characters, so that random sequences meet broken UTF-8 all the time.
PARTIAL = [i for i in range(49152) if "\ufffd" in SMOLLM.token_text(i)]
OTHERS = {
    "byte fallback": Tokenizer(byte_fallback(), {}, {}),
    "metaspace": Tokenizer(metaspace(), {}, {}),
    "word level": Tokenizer(word_level(), {}, {}),
}
smollm_ids = st.lists(st.one_of(st.integers(0, 49151), st.sampled_from(PARTIAL), st.integers(0, 300)), max_size=40)


def stream(detokenizer: IncrementalDetokenizer, ids: list[int], cuts: random.Random) -> list[str]:
    """Feed ``ids`` in random chunks; return the deltas, the flush last."""
    deltas, start = [], 0
    while start < len(ids):
        end = start + cuts.randint(1, 4)
        deltas.append(detokenizer.append(ids[start:end]))
        start = end
    return [*deltas, detokenizer.finish()]


@given(ids=smollm_ids, cuts=st.randoms(use_true_random=False), skip=st.booleans())
def test_byte_level_deltas_join_to_the_whole_decoding(ids: list[int], cuts: random.Random, skip: bool) -> None:
    deltas = stream(SMOLLM.detokenizer(SamplingParams(skip_special_tokens=skip)), ids, cuts)
    assert "".join(deltas) == SMOLLM.decode(ids, skip_special_tokens=skip)


def other_ids(tokenizer: Tokenizer) -> st.SearchStrategy[list[int]]:
    """Any ids, those of single bytes only where they make up characters."""
    backend = tokenizer._backend
    single = [i for i in range(tokenizer.vocab_size) if not (backend.id_to_token(i) or "").startswith("<0x")]
    tokens = st.lists(st.sampled_from(single), max_size=4)
    if len(single) == tokenizer.vocab_size:
        return st.lists(tokens, max_size=8).map(lambda parts: [i for part in parts for i in part])
    first = backend.token_to_id("<0x00>")
    characters = st.text(max_size=4).map(lambda text: [first + byte for byte in text.encode("utf-8", "replace")])
    return st.lists(tokens | characters, max_size=8).map(lambda parts: [i for part in parts for i in part])


@pytest.mark.parametrize("name", OTHERS)
@given(data=st.data(), cuts=st.randoms(use_true_random=False), skip=st.booleans())
def test_deltas_of_other_tokenizers_join_to_the_whole_decoding(
    name: str, data: st.DataObject, cuts: random.Random, skip: bool
) -> None:
    tokenizer = OTHERS[name]
    ids = data.draw(other_ids(tokenizer))
    deltas = stream(tokenizer.detokenizer(SamplingParams(skip_special_tokens=skip)), ids, cuts)
    assert "".join(deltas) == tokenizer.decode(ids, skip_special_tokens=skip)


@pytest.mark.parametrize("name", OTHERS)
@given(data=st.data(), cuts=st.randoms(use_true_random=False), skip=st.booleans())
def test_behind_a_prompt_they_join_to_what_the_whole_decoding_has_more(
    name: str, data: st.DataObject, cuts: random.Random, skip: bool
) -> None:
    tokenizer = OTHERS[name]
    prompt, ids = data.draw(other_ids(tokenizer)), data.draw(other_ids(tokenizer))
    before = tokenizer.decode(prompt[-8:], skip_special_tokens=skip)
    whole = tokenizer.decode(prompt[-8:] + ids, skip_special_tokens=skip)
    if "\ufffd" not in before:
        deltas = stream(tokenizer.detokenizer(SamplingParams(skip_special_tokens=skip), prompt), ids, cuts)
        assert before + "".join(deltas) == whole


@given(ids=smollm_ids, cuts=st.randoms(use_true_random=False))
def test_stop_strings_that_do_not_occur_change_nothing(ids: list[int], cuts: random.Random) -> None:
    whole = SMOLLM.decode(ids)
    params = SamplingParams(stop=["never \x00 in it", whole[-5:] + "\x00\x00", "\x00" * 200])
    detokenizer = SMOLLM.detokenizer(params)
    if not any(stop in whole for stop in params.stop):
        assert "".join(stream(detokenizer, ids, cuts)) == whole
        assert detokenizer.stop_string is None


@given(
    text=st.text("abc ", max_size=40),
    stops=st.lists(st.text("abc ", min_size=1, max_size=5), min_size=1, max_size=4),
    include=st.booleans(),
    cuts=st.randoms(use_true_random=False),
)
def test_the_stop_string_completed_first_ends_the_text(
    text: str, stops: list[str], include: bool, cuts: random.Random
) -> None:
    scanner = StopScanner(stops, include)
    shown, start = "", 0
    while start < len(text) and scanner.matched is None:
        end = start + cuts.randint(1, 5)
        shown += scanner.feed(text[start:end])
        start = end
    found = [(text.find(stop) + len(stop), -len(stop), stop) for stop in stops if text.find(stop) >= 0]
    if not found:
        assert (shown + scanner.flush(), scanner.matched) == (text, None)
    else:
        end, _, stop = min(found)
        assert scanner.matched == stop
        assert shown == text[: end if include else end - len(stop)]


@given(ids=smollm_ids, cuts=st.randoms(use_true_random=False), where=st.integers(0, 60), length=st.integers(1, 6))
def test_a_stop_string_in_the_text_is_found_whatever_the_chunks(
    ids: list[int], cuts: random.Random, where: int, length: int
) -> None:
    whole = SMOLLM.decode(ids)
    stop = whole[where : where + length]
    if not stop or "\ufffd" in stop:
        return
    detokenizer = SMOLLM.detokenizer(SamplingParams(stop=[stop]))
    assert "".join(stream(detokenizer, ids, cuts)) == whole[: whole.find(stop)]
    assert detokenizer.stop_string == stop


def test_a_character_of_three_tokens_appears_whole() -> None:
    detokenizer = SMOLLM.detokenizer(SamplingParams())
    assert [detokenizer.append([i]) for i in (10813, 117, 251)] == ["", "", "🧭"]
    assert detokenizer.finish() == ""


def test_mixed_scripts_come_out_without_replacement_characters() -> None:
    text = "naïve 🧭🧭 漢字 👨‍👩‍👧‍👦 end"
    detokenizer = SMOLLM.detokenizer(SamplingParams())
    deltas = [detokenizer.append([i]) for i in SMOLLM.encode(text)]
    assert "".join(deltas) + detokenizer.finish() == text
    assert not any("\ufffd" in delta for delta in deltas)


def test_an_incomplete_character_is_flushed_as_a_replacement() -> None:
    detokenizer = SMOLLM.detokenizer(SamplingParams())
    assert detokenizer.append([19556, 10813, 117]) == "Hello"
    assert detokenizer.finish() == SMOLLM.decode([10813, 117]) == "\ufffd"


@pytest.mark.parametrize("stops", [["all bo"], ["zzz", "all bo"]])
def test_a_stop_string_over_several_tokens_is_never_shown_in_part(stops: list[str]) -> None:
    ids = SMOLLM.encode("Nine small boats sail")
    detokenizer = SMOLLM.detokenizer(SamplingParams(stop=stops))
    deltas, used = [], 0
    while detokenizer.stop_string is None:
        deltas.append(detokenizer.append([ids[used]]))
        used += 1
    assert "".join(deltas) + detokenizer.finish() == "Nine sm"
    assert detokenizer.stop_string == "all bo"
    assert SMOLLM.decode(ids[:used]) == "Nine small boats"


def test_tokens_after_the_stop_string_do_not_count() -> None:
    ids = SMOLLM.encode("Nine small boats sail")
    detokenizer = SMOLLM.detokenizer(SamplingParams(stop=["all bo"]))
    assert detokenizer.append(ids) == "Nine sm"
    assert SMOLLM.decode(ids[: detokenizer.tokens_used]) == "Nine small boats"
    assert detokenizer.append(ids) == ""
    assert detokenizer.tokens_used == 0


def test_include_keeps_the_stop_string_and_nothing_behind_it() -> None:
    detokenizer = SMOLLM.detokenizer(SamplingParams(stop=["all bo"], include_stop_str_in_output=True))
    assert detokenizer.append(SMOLLM.encode("Nine small boats sail")) == "Nine small bo"


@pytest.mark.parametrize("stop", ["efgh", "f" + "x" * 199])
def test_text_held_back_for_a_stop_string_is_released_at_the_end(stop: str) -> None:
    detokenizer = SMOLLM.detokenizer(SamplingParams(stop=[stop]))
    shown = "".join(detokenizer.append([i]) for i in SMOLLM.encode("abcdef"))
    assert shown != "abcdef"
    assert shown + detokenizer.finish() == "abcdef"


def test_overlapping_beginnings_of_a_stop_string_are_followed() -> None:
    scanner = StopScanner(["aab"], include_in_output=False)
    assert [scanner.feed(character) for character in "xaaab"] == ["x", "", "", "a", ""]
    assert scanner.matched == "aab"


def test_no_stop_string_ends_the_text_before_min_tokens() -> None:
    ids = SMOLLM.encode("one two one two")
    detokenizer = SMOLLM.detokenizer(SamplingParams(stop=[" two"], min_tokens=3))
    assert "".join(detokenizer.append([i]) for i in ids) == "one two one"
    assert detokenizer.stop_string == " two"


@pytest.mark.parametrize(("keep", "text"), [(False, ""), (True, " London")])
def test_a_stop_token_is_shown_only_when_asked_for(keep: bool, text: str) -> None:
    detokenizer = SMOLLM.detokenizer(SamplingParams(stop_token_ids=[4528], include_stop_str_in_output=keep))
    assert detokenizer.append([4528], ends_with_stop_token=True) + detokenizer.finish() == text
    assert detokenizer.tokens_used == 1


@pytest.mark.parametrize("skip", [True, False])
@pytest.mark.parametrize("end", [2, 7])
def test_an_end_token_takes_no_text_with_it(skip: bool, end: int) -> None:
    detokenizer = SMOLLM.detokenizer(SamplingParams(skip_special_tokens=skip, stop=["#"]))
    text = detokenizer.append([19556, 905, end], ends_with_stop_token=True) + detokenizer.finish()
    assert text == "Hello world"


def test_special_tokens_can_be_shown() -> None:
    ids = SMOLLM.encode("<|im_start|>user\nhi<|im_end|>")
    for skip, text in ((True, "user\nhi"), (False, "<|im_start|>user\nhi<|im_end|>")):
        assert SMOLLM.detokenizer(SamplingParams(skip_special_tokens=skip)).append(ids) == text


@pytest.mark.parametrize(("spaces", "text"), [(True, "one <s> </s> two"), (False, "one <s></s> two")])
def test_spaces_between_special_tokens_can_be_left_out(spaces: bool, text: str) -> None:
    tokenizer = OTHERS["word level"]
    params = SamplingParams(skip_special_tokens=False, spaces_between_special_tokens=spaces)
    ids = tokenizer.encode("one <s> </s> two")
    assert tokenizer.detokenizer(params).append(ids) == text


def test_bytes_of_a_character_are_held_until_it_is_whole_and_no_longer() -> None:
    tokenizer = OTHERS["byte fallback"]
    ids = tokenizer.encode("he🧭\n")
    detokenizer = tokenizer.detokenizer(SamplingParams())
    assert [detokenizer.append([i]) for i in ids] == ["he", "", "", "", "🧭", "\n"]
    wrong = tokenizer._backend.token_to_id("<0xFF>")
    assert detokenizer.append([wrong]) + detokenizer.finish() == "\ufffd"


@pytest.mark.parametrize("include", [False, True])
def test_a_stop_string_of_a_byte_token_is_found_at_once(include: bool) -> None:
    tokenizer = OTHERS["byte fallback"]
    ids = tokenizer.encode("he\nhe")
    detokenizer = tokenizer.detokenizer(SamplingParams(stop=["\n"], include_stop_str_in_output=include))
    assert detokenizer.append(ids) == ("he\n" if include else "he")
    assert (detokenizer.stop_string, detokenizer.tokens_used) == ("\n", 2)


def test_a_completion_keeps_the_space_behind_its_prompt() -> None:
    tokenizer = OTHERS["byte fallback"]
    ids = [tokenizer._backend.token_to_id(word) for word in ("\u2581w", "o")]
    assert tokenizer.detokenizer(SamplingParams(), tokenizer.encode("he")).append(ids) == " wo"
    assert tokenizer.detokenizer(SamplingParams()).append(ids) == "wo"


def test_tokens_without_text_of_their_own_keep_the_window_short() -> None:
    tokenizer = OTHERS["byte fallback"]
    space = tokenizer._backend.token_to_id("\u2581")
    detokenizer = tokenizer.detokenizer(SamplingParams(), tokenizer.encode("he"))
    assert "".join(detokenizer.append([space]) for _ in range(200)) == 200 * " "
    decoder = detokenizer._decoder
    assert isinstance(decoder, WindowDecoder)
    assert len(decoder._context) < 20


def test_ids_outside_the_vocabulary_add_nothing() -> None:
    assert SMOLLM.detokenizer(SamplingParams()).append([19556, 60000, 905]) == "Hello world"


def test_a_folder_read_twice_shares_nothing(tmp_path: Path) -> None:
    first, second = (SMOLLM.detokenizer(SamplingParams()) for _ in range(2))
    assert first.append([10813]) == second.append([19556])[:0]
    assert second.append([905]) == " world"
    assert first.append([117, 251]) == "🧭"
