"""The tokenizer in a GGUF file, as ``tokenizer.json`` and ``tokenizer_config.json``."""

import json
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors

from ...core.errors import CheckpointError, UnsupportedModelError
from .gguf_file import GGUFFile

# Token types of the format.
_NORMAL, _UNKNOWN, _CONTROL, _USER_DEFINED = 1, 2, 3, 4
_WORD_MARK = "\u2581"

_CONTRACTIONS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_REST = r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_LLAMA3 = _CONTRACTIONS + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}" + _REST
_QWEN2 = _CONTRACTIONS + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}" + _REST

_GPT2_NAMES = ("gpt-2", "gpt2", "default")
_LLAMA3_NAMES = ("llama-bpe", "llama3", "llama-v3")
_QWEN2_NAMES = ("qwen2", "deepseek-r1-qwen")


def write_tokenizer(file: GGUFFile, folder: Path) -> None:
    """Write both files into ``folder``. Raises ``UnsupportedModelError`` for a tokenizer of another kind."""
    metadata = file.metadata
    tokens = metadata.get("tokenizer.ggml.tokens")
    if not isinstance(tokens, list) or not tokens:
        raise CheckpointError(f"{file.path} holds no vocabulary (tokenizer.ggml.tokens)")
    try:
        "".join(tokens).encode()
    except UnicodeEncodeError as error:
        raise CheckpointError(f"{file.path}: the vocabulary (tokenizer.ggml.tokens) is not UTF-8: {error}") from error
    kind = metadata.get("tokenizer.ggml.model")
    if kind == "gpt2":
        tokenizer = _byte_level_bpe(file, tokens)
    elif kind == "llama":
        tokenizer = _sentencepiece_bpe(file, tokens)
    else:
        raise UnsupportedModelError(
            f"{file.path} has a tokenizer of type {kind!r}; byte-level BPE (gpt2) and SentencePiece BPE (llama) can be "
            "read from GGUF. Name the model's Hugging Face folder or hub id instead"
        )
    tokenizer.add_tokens(_added_tokens(tokens, _token_types(file, tokens)))
    names = {role: _named_token(file, tokens, role) for role in ("bos", "eos", "unknown", "padding")}
    # Where a file does not say: those tokenizers begin texts with it, and most files of Llama 3 do not.
    begins = kind == "llama" or metadata.get("tokenizer.ggml.pre") in _LLAMA3_NAMES
    if metadata.get("tokenizer.ggml.add_bos_token", begins) and names["bos"] is not None:
        begin = (names["bos"], int(metadata["tokenizer.ggml.bos_token_id"]))
        tokenizer.post_processor = processors.TemplateProcessing(
            single=f"{begin[0]} $A", pair=f"{begin[0]} $A {begin[0]}:1 $B:1", special_tokens=[begin]
        )
    tokenizer.save(str(folder / "tokenizer.json"), pretty=False)
    config: dict[str, Any] = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": names["bos"],
        "eos_token": names["eos"],
        "unk_token": names["unknown"],
        "pad_token": names["padding"],
        "clean_up_tokenization_spaces": False,
        "model_max_length": metadata.get(f"{metadata.get('general.architecture')}.context_length"),
        "chat_template": metadata.get("tokenizer.chat_template"),
    }
    present = {name: value for name, value in config.items() if value is not None}
    (folder / "tokenizer_config.json").write_text(json.dumps(present, indent=2, ensure_ascii=False), "utf-8")


def _byte_level_bpe(file: GGUFFile, tokens: list[str]) -> Tokenizer:
    merges = file.metadata.get("tokenizer.ggml.merges")
    if not isinstance(merges, list):
        raise CheckpointError(f"{file.path} holds no merges (tokenizer.ggml.merges)")
    kind = str(file.metadata.get("tokenizer.ggml.pre", "default"))
    vocabulary = {token: index for index, token in enumerate(tokens)}
    pairs = [tuple(merge.split(" ", 1)) for merge in merges]
    # Llama 3 takes a piece that is a token as it is, even where its merges would build it otherwise.
    model = models.BPE(vocab=vocabulary, merges=pairs, ignore_merges=kind in _LLAMA3_NAMES)
    tokenizer = Tokenizer(model)
    tokenizer.pre_tokenizer = _pre_tokenizer(file, kind)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.post_processor = processors.ByteLevel(trim_offsets=False)
    if kind in _QWEN2_NAMES:
        tokenizer.normalizer = normalizers.NFC()
    return tokenizer


def _sentencepiece_bpe(file: GGUFFile, tokens: list[str]) -> Tokenizer:
    """SentencePiece merges the pair whose piece has the best score, so the scores give the merges and their order."""
    scores = file.metadata.get("tokenizer.ggml.scores")
    if not isinstance(scores, list) or len(scores) != len(tokens):
        raise CheckpointError(f"{file.path} holds no scores of its tokens (tokenizer.ggml.scores)")
    types = _token_types(file, tokens)
    vocabulary = {token: index for index, token in enumerate(tokens)}
    merges: list[tuple[str, str]] = []
    for index in sorted(range(len(tokens)), key=lambda index: (-scores[index], index)):
        if types[index] == _NORMAL:
            piece = tokens[index]
            cuts = [(piece[:at], piece[at:]) for at in range(1, len(piece))]
            known = [cut for cut in cuts if cut[0] in vocabulary and cut[1] in vocabulary]
            merges += sorted(known, key=lambda cut: (vocabulary[cut[0]], vocabulary[cut[1]]))
    unknown = _named_token(file, tokens, "unknown")
    tokenizer = Tokenizer(models.BPE(vocabulary, merges, unk_token=unknown, fuse_unk=True, byte_fallback=True))
    steps: list[normalizers.Normalizer] = [normalizers.Replace(" ", _WORD_MARK)]
    ends: list[decoders.Decoder] = [decoders.Replace(_WORD_MARK, " "), decoders.ByteFallback(), decoders.Fuse()]
    if file.metadata.get("tokenizer.ggml.add_space_prefix", True):
        steps.insert(0, normalizers.Prepend(_WORD_MARK))
        ends.append(decoders.Strip(" ", 1, 0))
    tokenizer.normalizer = normalizers.Sequence(steps)
    tokenizer.decoder = decoders.Sequence(ends)
    return tokenizer


def _token_types(file: GGUFFile, tokens: list[str]) -> list[int]:
    types = file.metadata.get("tokenizer.ggml.token_type")
    return types if isinstance(types, list) and len(types) == len(tokens) else [_NORMAL] * len(tokens)


def _added_tokens(tokens: list[str], types: list[int]) -> list[AddedToken]:
    """The tokens that are looked for in the text before it is cut."""
    return [
        AddedToken(token, special=kind != _USER_DEFINED, normalized=False)
        for token, kind in zip(tokens, types, strict=True)
        if kind in (_UNKNOWN, _CONTROL, _USER_DEFINED)
    ]


def _pre_tokenizer(file: GGUFFile, kind: str) -> pre_tokenizers.PreTokenizer:
    """How text is cut before the merges apply. Without the right one the same text gives other tokens."""
    if kind in _GPT2_NAMES:
        return pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    if kind == "smollm":
        digits = pre_tokenizers.Digits(individual_digits=True)
        return pre_tokenizers.Sequence([digits, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)])
    if kind in _LLAMA3_NAMES or kind in _QWEN2_NAMES:
        pattern = Regex(_LLAMA3 if kind in _LLAMA3_NAMES else _QWEN2)
        cut = pre_tokenizers.Split(pattern, behavior="isolated", invert=False)
        return pre_tokenizers.Sequence([cut, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
    known = (*_GPT2_NAMES, "smollm", *_LLAMA3_NAMES, *_QWEN2_NAMES)
    raise UnsupportedModelError(
        f"{file.path} cuts text in the way {kind!r} (tokenizer.ggml.pre); known are {', '.join(known)}. Name the "
        "model's Hugging Face folder or hub id instead"
    )


def _named_token(file: GGUFFile, tokens: list[str], role: str) -> str | None:
    index = file.metadata.get(f"tokenizer.ggml.{role}_token_id")
    return tokens[index] if isinstance(index, int) and 0 <= index < len(tokens) else None
