"""Small tokenizers of the kinds that models come with, built in memory."""

from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers

SPECIAL = ["<s>", "</s>", "<|turn|>"]


def byte_fallback() -> Tokenizer:
    """As converted from SentencePiece: words marked with U+2581, single bytes where a character is missing."""
    words = ["<unk>", *(f"<0x{byte:02X}>" for byte in range(256))]
    words += ["\u2581", "\u2581\u2581", "\u2581he", "llo", "h", "e", "l", "o", "he", "ll", "\u2581w", "é", "\ufffd"]
    merges = [("h", "e"), ("l", "l"), ("\u2581", "\u2581"), ("\u2581", "he"), ("ll", "o")]
    vocabulary = {word: index for index, word in enumerate(words)}
    tokenizer = Tokenizer(models.BPE(vocabulary, merges, byte_fallback=True, unk_token="<unk>", fuse_unk=True))
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("\u2581"), normalizers.Replace(" ", "\u2581")])
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("\u2581", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    tokenizer.add_special_tokens(SPECIAL)
    return tokenizer


def metaspace() -> Tokenizer:
    """A unigram model with the Metaspace decoder."""
    words = ["<unk>", "\u2581", "\u2581the", "\u2581cat", "s", "a", "t", "\u2581\u2581", "漢", "字"]
    tokenizer = Tokenizer(models.Unigram([(word, -float(n)) for n, word in enumerate(words)], unk_id=0))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    tokenizer.decoder = decoders.Metaspace()
    tokenizer.add_special_tokens(SPECIAL)
    return tokenizer


def word_level() -> Tokenizer:
    """Words without a decoder: joined by spaces."""
    tokenizer = Tokenizer(models.WordLevel({"[UNK]": 0, "one": 1, "two": 2, "three": 3}, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.add_special_tokens(SPECIAL)
    return tokenizer
