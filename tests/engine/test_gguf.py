"""Reading GGUF files and converting them to Hugging Face folders."""

import json
import struct
from itertools import pairwise
from pathlib import Path
from random import Random

import gguf
import numpy as np
import pytest
from gguf_writing import HEAD_DIM, byte_level_vocabulary, sentencepiece_vocabulary, write_gguf
from safetensors.numpy import load_file

from octavo.core.errors import CheckpointError, UnsupportedModelError
from octavo.core.model_config import read_model_config
from octavo.engine.checkpoint import resolve_model
from octavo.engine.checkpoint.gguf_conversion import convert
from octavo.engine.checkpoint.gguf_file import GGUFFile
from octavo.engine.checkpoint.progress import Progress
from octavo.engine.tokenizer import Tokenizer

Kind = gguf.GGMLQuantizationType


def converted(path: Path, folder: Path) -> Path:
    folder.mkdir()
    convert(path, folder, Progress(quiet=True), {})
    return folder


@pytest.mark.parametrize("kind", ["llama", "qwen2", "qwen3"])
@pytest.mark.parametrize("tied", [True, False])
def test_weights_come_back_under_their_names_in_their_order(tmp_path: Path, kind: str, tied: bool) -> None:
    expected = write_gguf(tmp_path / "m.gguf", kind, tied)
    folder = converted(tmp_path / "m.gguf", tmp_path / "out")
    found = load_file(folder / "model.safetensors")
    assert found.keys() == expected.keys()
    for name, tensor in expected.items():
        np.testing.assert_array_equal(found[name], tensor, err_msg=name)
    config = read_model_config(folder)
    assert config.architecture == {"llama": "Llama", "qwen2": "Qwen2", "qwen3": "Qwen3"}[kind] + "ForCausalLM"
    assert config.tie_word_embeddings is tied
    assert config.attention_bias is (kind == "qwen2")
    assert (config.rope.kind, config.rope.theta, config.rms_norm_eps) == ("default", 50000.0, 1e-5)
    assert config.eos_token_ids == [len(byte_level_vocabulary()[0]) - 1]
    assert config.weights_dtype == "float32"


@pytest.mark.parametrize("quantization", [Kind.Q4_0, Kind.Q4_1, Kind.Q8_0, Kind.Q5_0])
def test_quantized_weights_equal_the_gguf_packages_values_bit_for_bit(tmp_path: Path, quantization: Kind) -> None:
    expected = write_gguf(tmp_path / "m.gguf", quantization=quantization)
    found = load_file(converted(tmp_path / "m.gguf", tmp_path / "out") / "model.safetensors")
    for name, tensor in expected.items():
        np.testing.assert_array_equal(found[name], tensor, err_msg=name)


@pytest.mark.parametrize(("quantization", "dtype"), [(Kind.F16, "float16"), (Kind.BF16, "bfloat16")])
def test_half_precision_weights_keep_their_type(tmp_path: Path, quantization: Kind, dtype: str) -> None:
    torch = pytest.importorskip("torch")
    from safetensors.torch import load_file as load_torch

    expected = write_gguf(tmp_path / "m.gguf", quantization=quantization)
    folder = converted(tmp_path / "m.gguf", tmp_path / "out")
    found = load_torch(folder / "model.safetensors")
    assert found["model.embed_tokens.weight"].dtype == getattr(torch, dtype)
    for name, tensor in expected.items():
        np.testing.assert_array_equal(found[name].float().numpy(), tensor, err_msg=name)
    assert read_model_config(folder).weights_dtype == dtype


def test_llama3_rope_factors_become_their_parameters(tmp_path: Path) -> None:
    from transformers import LlamaConfig
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

    parameters = {
        "rope_type": "llama3",
        "rope_theta": 50000.0,
        "factor": 32.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192,
    }
    config = LlamaConfig(head_dim=HEAD_DIM, max_position_embeddings=131072, rope_parameters=parameters)
    scaled, _ = ROPE_INIT_FUNCTIONS["llama3"](config, "cpu")
    plain = 1.0 / (50000.0 ** (np.arange(0, HEAD_DIM, 2) / HEAD_DIM))
    write_gguf(tmp_path / "m.gguf", rope_factors=plain / scaled.numpy())
    rope = read_model_config(converted(tmp_path / "m.gguf", tmp_path / "out")).rope
    assert rope.kind == "llama3"
    assert rope.parameters["factor"] == pytest.approx(32.0)
    assert rope.parameters["original_max_position_embeddings"] == 8192


def test_unknown_rope_factors_are_refused(tmp_path: Path) -> None:
    write_gguf(tmp_path / "m.gguf", rope_factors=np.linspace(1, 3, HEAD_DIM // 2))
    with pytest.raises(UnsupportedModelError, match="rope_freqs"):
        converted(tmp_path / "m.gguf", tmp_path / "out")


def test_the_tokenizer_has_the_files_tokens_merges_and_special_tokens(tmp_path: Path) -> None:
    tokens, _ = byte_level_vocabulary()
    write_gguf(tmp_path / "m.gguf")
    tokenizer = Tokenizer.from_folder(converted(tmp_path / "m.gguf", tmp_path / "out"))
    assert tokenizer.encode("hello<|end|>") == [tokens.index(t) for t in ("hel", "l", "o", "<|end|>")]
    assert tokenizer.special_ids == {tokens.index("<|start|>"), tokens.index("<|end|>")}
    assert (tokenizer.bos_token, tokenizer.eos_token) == ("<|start|>", "<|end|>")
    assert tokenizer.chat_template == "{{ messages[0].content }}"


def test_add_bos_puts_the_begin_token_before_a_prompt(tmp_path: Path) -> None:
    tokens, _ = byte_level_vocabulary()
    write_gguf(tmp_path / "m.gguf", add_bos=True, pre="llama-bpe")
    tokenizer = Tokenizer.from_folder(converted(tmp_path / "m.gguf", tmp_path / "out"))
    assert tokenizer.encode("hel") == [tokens.index("<|start|>"), tokens.index("hel")]
    assert tokenizer.encode("hel", add_special_tokens=False) == [tokens.index("hel")]


@pytest.mark.parametrize(("pre", "begins"), [("llama-bpe", True), ("gpt-2", False)])
def test_a_file_that_does_not_say_gets_what_its_tokenizer_begins_with(tmp_path: Path, pre: str, begins: bool) -> None:
    tokens, _ = byte_level_vocabulary()
    write_gguf(tmp_path / "m.gguf", add_bos=None, pre=pre)
    tokenizer = Tokenizer.from_folder(converted(tmp_path / "m.gguf", tmp_path / "out"))
    assert (tokenizer.encode("hel")[0] == tokens.index("<|start|>")) == begins


def test_a_vocabulary_that_is_not_utf8_is_refused(tmp_path: Path) -> None:
    write_gguf(tmp_path / "m.gguf", token=b"\xff\xfe")
    with pytest.raises(CheckpointError, match="not UTF-8"):
        converted(tmp_path / "m.gguf", tmp_path / "out")


@pytest.mark.parametrize(
    ("pre", "pieces"),
    [
        ("smollm", ["It", "'s", "Ġ", "1", "2", "3", "4", "!!"]),
        ("gpt-2", ["It", "'s", "Ġ1234", "!!"]),
        ("llama-bpe", ["It", "'s", "Ġ", "123", "4", "!!"]),
        ("qwen2", ["It", "'s", "Ġ", "1", "2", "3", "4", "!!"]),
    ],
)
def test_text_is_cut_as_the_file_says(tmp_path: Path, pre: str, pieces: list[str]) -> None:
    write_gguf(tmp_path / "m.gguf", pre=pre)
    tokenizer = Tokenizer.from_folder(converted(tmp_path / "m.gguf", tmp_path / "out"))
    cut = tokenizer._backend.pre_tokenizer.pre_tokenize_str("It's 1234!!")
    assert [piece for piece, _ in cut] == pieces


def merged_by_score(text: str) -> list[str]:
    """SentencePiece's algorithm: again and again merge the pair whose piece has the best score, the leftmost first."""
    tokens, scores = sentencepiece_vocabulary()
    score = dict(zip(tokens, scores, strict=True))
    pieces = list("\u2581" + text.replace(" ", "\u2581"))
    while True:
        pairs = [(-score[a + b], n) for n, (a, b) in enumerate(pairwise(pieces)) if a + b in score]
        if not pairs:
            return pieces
        _, n = min(pairs)
        pieces[n : n + 2] = [pieces[n] + pieces[n + 1]]


def test_a_sentencepiece_vocabulary_is_merged_by_its_scores(tmp_path: Path) -> None:
    write_gguf(tmp_path / "m.gguf", tokenizer="llama", add_bos=True)
    tokenizer = Tokenizer.from_folder(converted(tmp_path / "m.gguf", tmp_path / "out"))
    tokens, _ = sentencepiece_vocabulary()
    random = Random(0)
    for _ in range(300):
        text = "".join(random.choices("aab b", k=random.randint(1, 12)))
        ids = tokenizer.encode(text)
        assert [tokens[i] for i in ids] == ["<s>", *merged_by_score(text)]
        assert tokenizer.decode(ids) == text
    assert [tokens[i] for i in tokenizer.encode("é</s>")[1:]] == ["\u2581", "<0xC3>", "<0xA9>", "</s>"]
    assert tokenizer.decode(tokenizer.encode("é")) == "é"


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"kind": "gemma3"}, "architecture 'gemma3'"),
        ({"pre": "strange"}, "'strange'"),
        ({"tokenizer": "bert"}, "'bert'"),
    ],
)
def test_what_cannot_be_read_is_named(tmp_path: Path, changes: dict[str, str], message: str) -> None:
    write_gguf(tmp_path / "m.gguf", **changes)  # type: ignore[arg-type]
    with pytest.raises(UnsupportedModelError, match=message):
        converted(tmp_path / "m.gguf", tmp_path / "out")


def test_a_file_cut_anywhere_is_a_checkpoint_error(tmp_path: Path) -> None:
    write_gguf(tmp_path / "m.gguf")
    whole = (tmp_path / "m.gguf").read_bytes()
    for length in (0, 3, 10, 23, 30, 200, 2000, len(whole) // 2, len(whole) - 1):
        (tmp_path / "cut.gguf").write_bytes(whole[:length])
        with pytest.raises(CheckpointError):
            GGUFFile(tmp_path / "cut.gguf")


def test_absurd_lengths_in_the_header_are_a_checkpoint_error(tmp_path: Path) -> None:
    header = b"GGUF" + struct.pack("<IQQ", 3, 0, 1) + struct.pack("<Q", 1) + b"k"
    bodies = [
        struct.pack("<IQ", 8, 2**62),
        struct.pack("<IIQ", 9, 8, 2**40),
        struct.pack("<IIQ", 9, 5, 2**60),
        struct.pack("<I", 77),
    ]
    for body in bodies:
        (tmp_path / "bad.gguf").write_bytes(header + body)
        with pytest.raises(CheckpointError):
            GGUFFile(tmp_path / "bad.gguf")
    (tmp_path / "bad.gguf").write_bytes(b"GGUF" + struct.pack("<IQQ", 99, 0, 0))
    with pytest.raises(UnsupportedModelError, match="version 99"):
        GGUFFile(tmp_path / "bad.gguf")


def test_the_default_model_is_the_one_described() -> None:
    folder = resolve_model(None, quiet=True)
    config = read_model_config(folder)
    assert config.architecture == "LlamaForCausalLM"
    assert (config.vocab_size, config.num_layers, config.hidden_size) == (49152, 30, 576)
    assert (config.num_heads, config.num_kv_heads, config.head_dim) == (9, 3, 64)
    assert (config.intermediate_size, config.max_position) == (1536, 8192)
    assert (config.rope.kind, config.rope.theta, config.rms_norm_eps) == ("default", 100000.0, 1e-5)
    assert config.tie_word_embeddings
    assert config.eos_token_ids == [2]
    assert json.loads((folder / "generation_config.json").read_bytes())["eos_token_id"] == [2]


def test_the_default_model_answers_in_transformers() -> None:
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    folder = resolve_model(None, quiet=True)
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    ids = tokenizer("The capital of France is", return_tensors="pt")
    answer = model.generate(**ids, max_new_tokens=3, do_sample=False)[0][ids.input_ids.shape[1] :]
    assert tokenizer.decode(answer).startswith(" Paris")
