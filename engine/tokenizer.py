"""The model's tokenizer: text to ids, ids to text, and what each id stands for."""

import json
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

from tokenizers import AddedToken
from tokenizers import Tokenizer as Backend

from ..core.errors import CheckpointError
from ..core.json_file import load_json
from ..core.sampling_params import SamplingParams
from .detokenizer import (
    ByteLevelDecoder,
    IncrementalDetokenizer,
    PieceTable,
    TextDecoder,
    UnspacedDecoder,
    WindowDecoder,
)
from .stop_strings import StopScanner

_ROLES = ("bos_token", "eos_token", "pad_token", "unk_token", "sep_token", "cls_token", "mask_token")
_WORD_MARK = "\u2581"
_LONG_TEXT = 2000
"""Characters from which on the call without offsets is faster, in spite of its thread pool."""


class Tokenizer:
    """A tokenizer of the ``tokenizers`` library with the special tokens and chat template of its folder.

    Safe to use from several threads: nothing changes after construction but caches.
    """

    def __init__(self, backend: Backend, config: dict[str, Any], templates: dict[str, str]) -> None:
        backend.no_truncation()
        backend.no_padding()
        self._backend = backend
        self._roles = {role: _content(config.get(role)) for role in _ROLES}
        _mark_special(backend, config, self._roles)
        self.bos_token = self._roles["bos_token"]
        self.eos_token = self._roles["eos_token"]
        self.pad_token = self._roles["pad_token"]
        self.eos_token_id = None if self.eos_token is None else backend.token_to_id(self.eos_token)
        self.vocab_size: int = backend.get_vocab_size(with_added_tokens=True)
        """Number of ids, added tokens included. The model's own may be larger, by padding."""
        added = backend.get_added_tokens_decoder()
        self.special_ids = frozenset(i for i, token in added.items() if token.special)
        """Ids that ``skip_special_tokens`` leaves out."""
        self.chat_templates = templates
        """Chat templates by name; the usual one is ``default``."""
        kinds = _decoder_kinds(backend)
        self._byte_level = kinds == ["ByteLevel"]
        self._partial_characters = "ByteLevel" in kinds
        self._word_marks = "Metaspace" in kinds or "Replace" in kinds
        self._byte_tokens = _byte_tokens(backend) if "ByteFallback" in kinds else {}
        self._hidden_pieces = PieceTable(self.token_bytes, self.special_ids)
        self._all_pieces = PieceTable(self.token_bytes, frozenset())

    @classmethod
    def from_folder(cls, folder: str | Path) -> "Tokenizer":
        """Read the tokenizer of a model folder. Raises ``CheckpointError`` where there is none that can be read."""
        folder = Path(folder)
        config: dict[str, Any] = {}
        for name in ("special_tokens_map.json", "tokenizer_config.json"):
            if (folder / name).is_file():
                config |= {key: value for key, value in load_json(folder / name).items() if value is not None}
        file = folder / "tokenizer.json"
        if not file.is_file():
            backend = _converted_backend(folder)
        else:
            try:
                backend = Backend.from_file(str(file))
            except Exception as error:  # the library raises plain Exception
                raise CheckpointError(f"{file} is no tokenizer that can be read: {error}") from error
        return cls(backend, config, _chat_templates(folder, config))

    @cached_property
    def max_token_characters(self) -> int:
        """No token stands for more characters of a text than this; for refusing huge texts before tokenizing them."""
        normalizer = self._backend.normalizer
        kind = json.loads(normalizer.__getstate__())["type"] if normalizer is not None else "NFC"
        if kind not in ("NFC", "NFKC", "NFD", "NFKD"):
            return 2**31  # it may drop any amount of text
        # Unicode's own bound is 18 characters composed into one by NFKC; without a normalizer it is 1.
        composed = 1 if normalizer is None else 18
        return composed * max(len(token) for token in self._backend.get_vocab(with_added_tokens=True))

    def least_tokens(self, text: str, limit: int) -> int:
        """Tokens that a text far over ``limit`` has at least, found in its beginning; 0 where only all of it can tell.

        A beginning with more than twice the limit is proof: no merging across the place where it was cut takes half of
        its tokens away.
        """
        part = 8 * limit
        while 2 * part < len(text):
            count = len(self.encode(text[:part], add_special_tokens=False)) // 2
            if count > limit:
                return count
            part *= 2
        return 0

    @property
    def definition(self) -> str:
        """The tokenizer as JSON of the ``tokenizers`` library, special tokens included."""
        return self._backend.to_str()

    @property
    def chat_template(self) -> str | None:
        """The usual chat template, Jinja source."""
        return self.chat_templates.get("default")

    @property
    def special_tokens(self) -> dict[str, str]:
        """Special tokens by role (``bos_token`` ...), as chat templates expect them."""
        return {role: token for role, token in self._roles.items() if token is not None}

    @cached_property
    def special_texts(self) -> frozenset[str]:
        """What the special tokens are called in a text."""
        return frozenset(map(self.token_text, self.special_ids))

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        """Token ids of ``text``. Special tokens written out in it count as such."""
        text = _repaired(text)
        if len(text) < _LONG_TEXT:
            return self._backend.encode(text, add_special_tokens=add_special_tokens).ids
        return self._backend.encode_batch_fast([text], add_special_tokens=add_special_tokens)[0].ids

    def encode_whole(self, text: str, second: str | None = None, limit: int | None = None) -> tuple[list[int], int]:
        """Ids of a text, or of a pair of texts, as one whole input of an encoder, and where the second one begins.

        ``limit`` cuts the ends of the texts, of the longer one first, so that special tokens stay.
        """
        if second is None:
            ids = self.encode(text)
            if limit is None or len(ids) <= limit:
                return ids, len(ids)
        texts = [_repaired(text)] if second is None else [_repaired(text), _repaired(second)]
        parts = [self._backend.encode(part, add_special_tokens=False) for part in texts]
        if limit is not None:
            room = max(0, limit - self._backend.num_special_tokens_to_add(second is not None))
            lengths = [len(part.ids) for part in parts]
            for part, length in zip(parts, _fitted(lengths, room), strict=True):
                part.truncate(length)
        whole = self._backend.post_process(parts[0], None if second is None else parts[1])
        ids = whole.ids[:limit]
        ends = [at for at, kind in enumerate(whole.sequence_ids) if kind == 1] if second is not None else []
        kinds = whole.type_ids
        start = kinds.index(1) if 1 in kinds else ends[0] if ends else len(ids)
        return ids, min(start, len(ids))

    def decode(self, token_ids: Sequence[int], skip_special_tokens: bool = True) -> str:
        """Text of ``token_ids``; bytes that are no whole characters become U+FFFD. Unknown ids have no text."""
        return self._backend.decode(list(token_ids), skip_special_tokens=skip_special_tokens)

    def token_text(self, token_id: int) -> str:
        """The token's own text, with its leading space; bytes that are no whole character become U+FFFD."""
        piece = self._all_pieces[token_id]
        return piece if isinstance(piece, str) else piece.decode(errors="replace")

    def token_bytes(self, token_id: int) -> bytes:
        """The exact bytes that the token adds to the text; none for an id that does not exist."""
        token = self._backend.id_to_token(token_id) if token_id >= 0 else None
        if token is None:
            return b""
        if self._byte_level:
            # The decoder takes a token with a character outside of its alphabet (an added one) literally.
            values = [_BYTE_OF.get(character, -1) for character in token]
            return token.encode() if -1 in values else bytes(values)
        if token_id in self._byte_tokens:
            return bytes([self._byte_tokens[token_id]])
        return (token.replace(_WORD_MARK, " ") if self._word_marks else token).encode()

    def encode_bad_words(self, words: Sequence[str]) -> list[list[int]]:
        """The token sequences of each word, at the beginning of a text and after a space."""
        sequences: list[list[int]] = []
        for word in words:
            bare = word.lstrip() or word
            for text in (bare, " " + bare):
                ids = self.encode(text, add_special_tokens=False)
                if ids and ids not in sequences:
                    sequences.append(ids)
        return sequences

    def detokenizer(self, params: SamplingParams, prompt: Sequence[int] = ()) -> IncrementalDetokenizer:
        """A fresh detokenizer for one completion of ``prompt`` with these parameters."""
        scanner = StopScanner(params.stop, params.include_stop_str_in_output) if params.stop else None
        decoder = self._text_decoder(params, prompt)
        return IncrementalDetokenizer(decoder, scanner, params.min_tokens, params.include_stop_str_in_output)

    def _text_decoder(self, params: SamplingParams, prompt: Sequence[int]) -> TextDecoder:
        if self._byte_level:
            # Spaces between special tokens are no matter here: this decoder never adds any.
            return ByteLevelDecoder(self._hidden_pieces if params.skip_special_tokens else self._all_pieces)
        hidden = self.special_ids if params.skip_special_tokens else frozenset()
        decoder = WindowDecoder(self._backend, hidden, self._byte_tokens, self._partial_characters, prompt)
        if params.skip_special_tokens or params.spaces_between_special_tokens:
            return decoder
        return UnspacedDecoder(decoder, {i: self.token_text(i) for i in self.special_ids})


def _repaired(text: str) -> str:
    """A lone surrogate, which JSON can carry, has no UTF-8 form: it becomes U+FFFD like any other broken text."""
    return text if text.isascii() else text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def _fitted(lengths: list[int], room: int) -> list[int]:
    """Lengths of one or two texts, cut to ``room`` together: the longer one first, then both alike."""
    if sum(lengths) <= room:
        return lengths
    if len(lengths) == 1:
        return [room]
    shorter = min(*lengths, room // 2)
    return [shorter, room - shorter] if lengths[0] <= lengths[1] else [room - shorter, shorter]


def _byte_alphabet() -> dict[str, int]:
    """The character that stands for each byte in byte-level vocabularies (GPT-2), turned round.

    Printable Latin-1 characters stand for themselves; the other bytes, in order, for the characters from U+0100 on.
    """
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = [byte for byte in range(256) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {chr(0x100 + n): byte for n, byte in enumerate(others)}


_BYTE_OF = _byte_alphabet()


def _content(token: object) -> str | None:
    """A special token's text: configurations hold it plain, or as an object with its flags."""
    if isinstance(token, dict):
        token = token.get("content")
    return token if isinstance(token, str) and token else None


def _mark_special(backend: Backend, config: dict[str, Any], roles: dict[str, str | None]) -> None:
    """Tell the backend of special tokens that only the configuration names."""
    known = {token.content for token in backend.get_added_tokens_decoder().values()}
    declared = config.get("added_tokens_decoder") or {}
    for _, token in sorted(declared.items(), key=lambda item: int(item[0])):
        if isinstance(token, dict) and token.get("content") and token["content"] not in known:
            flags = ("special", "single_word", "lstrip", "rstrip", "normalized")
            given = {flag: bool(token.get(flag)) for flag in flags}
            backend.add_tokens([AddedToken(token["content"], **given)])
            known.add(token["content"])
    extra = config.get("additional_special_tokens") or config.get("extra_special_tokens") or []
    extra = list(extra.values()) if isinstance(extra, dict) else extra
    for text in (*roles.values(), *(_content(token) for token in extra)):
        if text is not None and text not in known and backend.token_to_id(text) is not None:
            backend.add_special_tokens([AddedToken(text, special=True, normalized=False)])
            known.add(text)


def _decoder_kinds(backend: Backend) -> list[str]:
    """The kinds of the backend's decoders, in order."""
    if backend.decoder is None:
        return []
    description = json.loads(backend.decoder.__getstate__())
    return [part["type"] for part in description.get("decoders", [description])]


def _byte_tokens(backend: Backend) -> dict[int, int]:
    """Byte values of the tokens ``<0x00>`` to ``<0xFF>`` by id."""
    found = {backend.token_to_id(f"<0x{byte:02X}>"): byte for byte in range(256)}
    return {token_id: byte for token_id, byte in found.items() if token_id is not None}


def _chat_templates(folder: Path, config: dict[str, Any]) -> dict[str, str]:
    """Chat templates by name. A ``.jinja`` file goes before the configuration, as in Transformers."""
    templates: dict[str, str] = {}
    value = config.get("chat_template")
    if isinstance(value, str):
        templates["default"] = value
    elif isinstance(value, list):
        templates |= {str(entry["name"]): str(entry["template"]) for entry in value if isinstance(entry, dict)}
    elif (folder / "chat_template.json").is_file():
        value = load_json(folder / "chat_template.json").get("chat_template")
        templates |= {"default": value} if isinstance(value, str) else {}
    try:
        if (folder / "chat_template.jinja").is_file():
            templates["default"] = (folder / "chat_template.jinja").read_text("utf-8")
        for file in sorted((folder / "additional_chat_templates").glob("*.jinja")):
            templates[file.stem] = file.read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise CheckpointError(f"cannot read the chat template of {folder}: {error}") from error
    return templates


def _converted_backend(folder: Path) -> Backend:
    """A tokenizer that is there only in an older form, converted by Transformers."""
    names = ("tokenizer.model", "vocab.json", "vocab.txt", "spiece.model")
    if not any((folder / name).is_file() for name in names):
        raise CheckpointError(
            f"{folder} has no tokenizer (tokenizer.json); name one with --tokenizer, or use --skip-tokenizer-init"
        )
    # Imported here: seconds, and only models without tokenizer.json need it.
    from transformers import AutoTokenizer, PreTrainedTokenizerFast

    try:
        tokenizer = AutoTokenizer.from_pretrained(folder)
    except Exception as error:  # whatever the conversion of an unknown vocabulary may raise
        raise CheckpointError(f"the tokenizer of {folder} cannot be converted: {error}") from error
    if not isinstance(tokenizer, PreTrainedTokenizerFast):
        raise CheckpointError(f"the tokenizer of {folder} has no fast form; add a tokenizer.json to the folder")
    return tokenizer.backend_tokenizer
