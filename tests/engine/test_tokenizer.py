"""The tokenizer: ids of texts, bytes and texts of ids, special tokens, chat templates of a folder."""

import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from small_tokenizers import SPECIAL, byte_fallback, metaspace
from tokenizers import Tokenizer as Backend

from octavo.core.errors import CheckpointError
from octavo.engine.checkpoint import resolve_model
from octavo.engine.tokenizer import Tokenizer


@pytest.fixture(scope="module")
def smollm() -> Tokenizer:
    return Tokenizer.from_folder(resolve_model(None, quiet=True))


def save(backend: Backend, folder: Path, **config: object) -> Path:
    folder.mkdir(exist_ok=True)
    backend.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    return folder


def test_known_ids_of_the_default_model(smollm: Tokenizer) -> None:
    assert (smollm.vocab_size, smollm.eos_token_id) == (49152, 2)
    assert (smollm.eos_token, smollm.bos_token, smollm.pad_token) == ("<|im_end|>", "<|im_start|>", "<|im_end|>")
    assert smollm.special_ids == frozenset(range(17))
    texts = {" ": [216], "\n": [198], "Hello": [19556], " world": [905], "Red": [12869], "Blue": [23390]}
    texts |= {" London": [4528], "Yes": [10539], "No": [5230], "🧭": [10813, 117, 251], "Hello world": [19556, 905]}
    for text, ids in texts.items():
        assert smollm.encode(text) == ids, text


def test_digits_are_single_tokens(smollm: Tokenizer) -> None:
    assert [smollm.token_text(i) for i in smollm.encode("12345")] == list("12345")


def test_repeated_words_are_one_token_each(smollm: Tokenizer) -> None:
    assert len(smollm.encode(" a" * 255)) == 255


def test_short_and_long_texts_take_the_same_ids(smollm: Tokenizer) -> None:
    line = "naïve 漢字 and 42 more.\n"
    assert smollm.encode(line * 400) == smollm.encode(line) * 400


# SmolLM2 has no tokens for some control characters and for lead bytes from U+40000 on: its tokenizer drops those.
@given(text=st.text(st.characters(min_codepoint=0x20, max_codepoint=0x3FFFF, exclude_categories=["Cs"]), max_size=60))
def test_encoding_and_decoding_gives_the_text_back(smollm: Tokenizer, text: str) -> None:
    ids = smollm.encode(text)
    assert smollm.decode(ids, skip_special_tokens=False) == text
    assert b"".join(map(smollm.token_bytes, ids)) == text.encode()


def test_no_token_stands_for_more_characters_than_said(smollm: Tokenizer) -> None:
    longest = max(len(smollm.token_text(i)) for i in range(smollm.vocab_size))
    assert longest <= smollm.max_token_characters <= 2 * longest


def test_lone_surrogates_do_not_break_encoding(smollm: Tokenizer) -> None:
    assert smollm.decode(smollm.encode("a\ud800b")) == "a\ufffdb"


def test_ids_outside_the_vocabulary_have_no_text(smollm: Tokenizer) -> None:
    for token_id in (-1, 49152, 10**9):
        assert smollm.token_bytes(token_id) == b""
        assert smollm.token_text(token_id) == ""


def test_token_text_shows_a_partial_character_as_a_replacement(smollm: Tokenizer) -> None:
    assert smollm.token_bytes(10813) == b"\xf0\x9f"
    assert smollm.token_text(10813) == "\ufffd"
    assert smollm.token_text(2) == "<|im_end|>"


def test_bad_words_are_encoded_at_the_start_and_after_a_space(smollm: Tokenizer) -> None:
    hello, space_hello = smollm.encode("Hello"), smollm.encode(" Hello")
    assert smollm.encode_bad_words(["Hello"]) == [hello, space_hello]
    assert smollm.encode_bad_words([" Hello"]) == [hello, space_hello]
    assert smollm.encode("\n") in smollm.encode_bad_words(["\n"])


def test_many_threads_get_the_same_ids(smollm: Tokenizer) -> None:
    texts = [f"number {n} " * 20 for n in range(40)]
    expected = [smollm.encode(text) for text in texts]
    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(smollm.encode, texts)) == expected


def test_byte_fallback_tokens_have_their_exact_bytes(tmp_path: Path) -> None:
    tokenizer = Tokenizer.from_folder(save(byte_fallback(), tmp_path, eos_token="</s>"))
    ids = tokenizer.encode("hello 🧭")
    assert b"".join(map(tokenizer.token_bytes, ids)) == " hello 🧭".encode()
    assert tokenizer.token_text(ids[0]) == " he"
    assert tokenizer.eos_token_id == tokenizer.encode("</s>")[-1]


def test_special_tokens_named_only_in_the_configuration_count(tmp_path: Path) -> None:
    folder = save(metaspace(), tmp_path, eos_token={"content": "\u2581cat", "lstrip": False})
    tokenizer = Tokenizer.from_folder(folder)
    assert tokenizer.eos_token_id in tokenizer.special_ids
    (folder / "special_tokens_map.json").write_text(json.dumps({"bos_token": "<s>"}))
    assert Tokenizer.from_folder(folder).bos_token == "<s>"


def test_declared_added_tokens_are_added_in_order(tmp_path: Path) -> None:
    backend = metaspace()
    size = backend.get_vocab_size()
    declared = {str(size + 1): {"content": "<b>", "special": True}, str(size): {"content": "<a>", "special": False}}
    tokenizer = Tokenizer.from_folder(save(backend, tmp_path, added_tokens_decoder=declared))
    assert [tokenizer.token_text(i) for i in (size, size + 1)] == ["<a>", "<b>"]
    assert size + 1 in tokenizer.special_ids
    assert size not in tokenizer.special_ids


def test_truncation_and_padding_of_the_file_are_off(tmp_path: Path) -> None:
    backend = byte_fallback()
    backend.enable_truncation(3)
    backend.enable_padding(length=50)
    tokenizer = Tokenizer.from_folder(save(backend, tmp_path))
    assert len(tokenizer.encode("hello" * 4)) == len(byte_fallback().encode("hello" * 4).ids)


def test_chat_templates_come_from_the_file_before_the_configuration(tmp_path: Path) -> None:
    named = [{"name": "default", "template": "plain"}, {"name": "tool_use", "template": "tools"}]
    folder = save(metaspace(), tmp_path, chat_template=named)
    assert Tokenizer.from_folder(folder).chat_templates == {"default": "plain", "tool_use": "tools"}
    (folder / "chat_template.jinja").write_text("from the file")
    assert Tokenizer.from_folder(folder).chat_template == "from the file"
    assert Tokenizer.from_folder(save(metaspace(), tmp_path / "none")).chat_template is None


def test_special_tokens_by_role_are_there_for_templates(tmp_path: Path) -> None:
    tokenizer = Tokenizer.from_folder(save(metaspace(), tmp_path, bos_token=SPECIAL[0], eos_token=SPECIAL[1]))
    assert tokenizer.special_tokens == {"bos_token": "<s>", "eos_token": "</s>"}


def test_a_folder_without_tokenizer_is_named(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="--skip-tokenizer-init"):
        Tokenizer.from_folder(tmp_path)


@pytest.mark.parametrize("content", ["", "{}", "not json", '{"model": {"type": "Nope"}}'])
def test_a_broken_tokenizer_file_is_named(tmp_path: Path, content: str) -> None:
    (tmp_path / "tokenizer.json").write_text(content)
    with pytest.raises(CheckpointError, match=r"tokenizer\.json"):
        Tokenizer.from_folder(tmp_path)


def test_a_vocabulary_with_merges_is_converted(tmp_path: Path, smollm: Tokenizer) -> None:
    description = json.loads((resolve_model(None, quiet=True) / "tokenizer.json").read_bytes())
    merges = "\n".join(" ".join(pair) for pair in description["model"]["merges"])
    (tmp_path / "vocab.json").write_text(json.dumps(description["model"]["vocab"]))
    (tmp_path / "merges.txt").write_text("#version: 0.2\n" + merges)
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "gpt2"}))
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "GPT2Tokenizer"}))
    tokenizer = Tokenizer.from_folder(tmp_path)
    assert tokenizer.encode("Hello world", add_special_tokens=False) == smollm.encode("Hello world")
