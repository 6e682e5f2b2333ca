"""JSON schemas of the shapes people use, made at random, and random walks through compiled grammars."""

import json
from random import Random
from typing import Any

import jsonschema
import numpy as np
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from octavo.core.grammar import GrammarSpec
from octavo.worker.grammar_cache import Vocabulary
from octavo.worker.grammar_compiler import GrammarCompiler

END = 256
FORMATS = ("date", "time", "date-time", "uuid", "ipv4", "ipv6", "email", "hostname", "uri", "duration")
_NAMES = ("id", "name", "größe", "a b", 'q"q', "x1", "tags", "$ref2")
_PATTERNS = ("^[a-z]{2,4}$", "[0-9]+", "^(red|blue)$", "^x.*y$", "^[A-Z][a-z]*$", "a+b?", "^\\d{3}-\\d{2}$", "^\\w+$")


def random_schema(rng: Random, depth: int = 3) -> dict[str, Any]:
    """One schema; about a third of its parts are nested ones."""
    definitions = {f"d{number}": _part(rng, 1, []) for number in range(rng.randint(0, 2))}
    schema = _part(rng, depth, list(definitions))
    if definitions:
        schema["$defs"] = definitions
    return schema


def _part(rng: Random, depth: int, refs: list[str]) -> dict[str, Any]:
    makers = [_string, _integer, _number, _enum, _plain]
    if depth > 0:
        makers += [_object, _object, _array, _tuple, _any_of, _all_of, _map]
    if refs and rng.random() < 0.3:
        return {"$ref": f"#/$defs/{rng.choice(refs)}"}
    return rng.choice(makers)(rng, depth, refs)


def _string(rng: Random, depth: int, refs: list[str]) -> dict[str, Any]:
    schema: dict[str, Any] = {"type": "string"}
    kind = rng.randrange(4)
    if kind == 0:
        schema["pattern"] = rng.choice(_PATTERNS)
    elif kind == 1:
        schema["format"] = rng.choice(FORMATS)
    elif kind == 2:
        schema["minLength"] = rng.randint(0, 3)
        schema["maxLength"] = rng.randint(3, 8)
    else:
        schema["maxLength"] = rng.randint(0, 6)
    if rng.random() < 0.2 and kind == 0:
        schema["maxLength"] = rng.randint(4, 12)
    if rng.random() < 0.2:
        schema["type"] = ["string", "null"]
    return schema


def _integer(rng: Random, depth: int, refs: list[str]) -> dict[str, Any]:
    low = rng.randint(-50, 50)
    schema: dict[str, Any] = {"type": "integer"}
    if rng.random() < 0.7:
        schema[rng.choice(("minimum", "exclusiveMinimum"))] = low
    if rng.random() < 0.7:
        schema[rng.choice(("maximum", "exclusiveMaximum"))] = low + rng.randint(12, 1000)
    if rng.random() < 0.3:
        schema["multipleOf"] = rng.randint(1, 9)
    return schema


def _number(rng: Random, depth: int, refs: list[str]) -> dict[str, Any]:
    low = rng.randint(-400, 400) / 4
    schema: dict[str, Any] = {"type": "number", "minimum": low}
    if rng.random() < 0.7:
        schema[rng.choice(("maximum", "exclusiveMaximum"))] = low + rng.randint(4, 400) / 4
    if rng.random() < 0.2:
        schema["multipleOf"] = rng.choice((1, 2, 0.5, 0.25))
    return schema


def _enum(rng: Random, depth: int, refs: list[str]) -> dict[str, Any]:
    values = [1, "a", None, True, False, "größe", [1, "x"], {"k": [None]}, 2.5, "", -7, 'q"\\']
    if rng.random() < 0.3:
        return {"const": rng.choice(values)}
    return {"enum": rng.sample(values, rng.randint(1, 5))}


def _plain(rng: Random, depth: int, refs: list[str]) -> dict[str, Any]:
    return {"type": rng.choice(("boolean", "null"))}


def _object(rng: Random, depth: int, refs: list[str]) -> dict[str, Any]:
    names = rng.sample(_NAMES, rng.randint(0, 3))
    schema: dict[str, Any] = {
        "type": "object",
        "properties": {name: _part(rng, depth - 1, refs) for name in names},
        "required": [name for name in names if rng.random() < 0.6],
    }
    kind = rng.randrange(4)
    if kind < 2:
        schema["additionalProperties"] = False
    elif kind == 2:
        schema["additionalProperties"] = _part(rng, 0, refs)
    if rng.random() < 0.2:
        schema["minProperties"] = len(schema["required"])
    return schema


def _map(rng: Random, depth: int, refs: list[str]) -> dict[str, Any]:
    pattern = rng.choice(("^k_", "^[a-c]$"))
    return {
        "type": "object",
        "patternProperties": {pattern: _part(rng, depth - 1, refs)},
        "additionalProperties": False,
        "maxProperties": rng.randint(1, 3),
    }


def _array(rng: Random, depth: int, refs: list[str]) -> dict[str, Any]:
    least = rng.randint(0, 2)
    return {
        "type": "array",
        "items": _part(rng, depth - 1, refs),
        "minItems": least,
        "maxItems": least + rng.randint(0, 2),
    }


def _tuple(rng: Random, depth: int, refs: list[str]) -> dict[str, Any]:
    parts = [_part(rng, depth - 1, refs) for _ in range(rng.randint(1, 3))]
    return {"type": "array", "prefixItems": parts, "items": False, "minItems": rng.randint(0, len(parts))}


def _any_of(rng: Random, depth: int, refs: list[str]) -> dict[str, Any]:
    if rng.random() < 0.3:
        kinds = [
            {"type": "object", "properties": {"kind": {"const": kind}, "v": _part(rng, 0, refs)}, "required": ["kind"]}
            for kind in ("cat", "dog")
        ]
        return {"oneOf": kinds}
    return {"anyOf": [_part(rng, depth - 1, refs) for _ in range(rng.randint(1, 3))]}


def _all_of(rng: Random, depth: int, refs: list[str]) -> dict[str, Any]:
    return {"allOf": [_integer(rng, 0, refs), {"minimum": rng.randint(-60, 60)}]}


def complaint(schema: Any, text: str) -> str:
    """What an independent validator says against a text as an instance of the schema; "" if nothing."""
    try:
        value = json.loads(text)
    except ValueError as error:
        return f"no JSON: {error}"
    validator = jsonschema.Draft202012Validator(schema, format_checker=jsonschema.Draft202012Validator.FORMAT_CHECKER)
    return "; ".join(error.message for error in validator.iter_errors(value))


def byte_vocabulary() -> Vocabulary:
    """Every byte is a token; beside them one end token, a word, and an id without text."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    backend = Tokenizer(models.BPE(vocab={letter: number for number, letter in enumerate(alphabet)}, merges=[]))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    table = [_byte_of(letter) for letter in alphabet]
    return Vocabulary(
        token_bytes=[*table, b"<end>", b"the", b""], special_ids=[END], end_ids=[END], definition=backend.to_str()
    )


def _byte_of(letter: str) -> bytes:
    # The byte-level alphabet: printable Latin-1 stands for itself, the other bytes for what follows U+00FF in order.
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = [byte for byte in range(256) if byte not in printable]
    code = ord(letter)
    return bytes([others[code - 0x100] if code >= 0x100 else code])


class GrammarWalker:
    """Draws texts that a grammar allows, one byte after the other."""

    def __init__(self) -> None:
        self.vocabulary = byte_vocabulary()
        self.compiler = GrammarCompiler(self.vocabulary)
        table = self.vocabulary.token_bytes
        self._favour = np.array([8.0 if text in (b'"', b"}", b"]") else 1.0 for text in table])
        self._favour[[i for i, text in enumerate(table) if text in (b" ", b"\n", b"\t", b"\r")]] = 0.05

    def texts(self, spec: GrammarSpec, count: int, seed: int = 0, limit: int = 600) -> list[str]:
        """Up to ``count`` finished texts; a walk that passes the limit is left out. A dead end fails."""
        start = self.compiler.compile(spec)
        rng = np.random.default_rng(seed)
        return [text for text in (self._walk(start.deep_copy(), rng, limit) for _ in range(count)) if text is not None]

    def _walk(self, matcher: Any, rng: np.random.Generator, limit: int) -> str | None:
        mask = np.zeros((1, self.compiler.mask_words), np.int32)
        out: list[int] = []
        while len(out) < limit:
            matcher.unsafe_compute_mask_ptr(mask.ctypes.data, mask.nbytes)
            assert not matcher.is_error(), matcher.get_error()
            ids = np.flatnonzero(np.unpackbits(mask.view(np.uint8)[0], bitorder="little"))
            assert len(ids), "a dead end"
            weights = self._favour[ids]
            if ids[-1] == END or END in ids:
                weights[ids == END] = weights.sum()
            token = int(rng.choice(ids, p=weights / weights.sum()))
            if token == END:
                return b"".join(self.vocabulary.token_bytes[i] for i in out).decode()
            assert matcher.consume_token(token)
            out.append(token)
        return None

    def accepts(self, spec: GrammarSpec, text: str) -> bool:
        """True if exactly this text satisfies the grammar."""
        matcher = self.compiler.compile(spec)
        ids = [self.vocabulary.token_bytes.index(bytes([byte])) for byte in text.encode()]
        return matcher.try_consume_tokens(ids) == len(ids) and matcher.is_accepting()
