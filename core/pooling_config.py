"""How a model's hidden states become one vector per prompt: read from its folder."""

from pathlib import Path
from typing import Any

import msgspec

from .errors import CheckpointError, ConfigurationError, UnsupportedModelError
from .json_file import load_json, read_json

_FAMILIES = ("Bert", "Roberta", "XLMRoberta")
_CROSS_ENCODERS = tuple(f"{family}ForSequenceClassification" for family in _FAMILIES)
ENCODER_ARCHITECTURES = (
    *(f"{family}{kind}" for family in _FAMILIES for kind in ("Model", "ForMaskedLM")),
    *_CROSS_ENCODERS,
)
"""Models without a KV cache: every token sees the whole prompt, and nothing can be generated."""


def first_position(architecture: str, config: dict[str, Any]) -> int:
    """Of a model's learned positions, that of the first token: RoBERTa's are counted from its padding token's on."""
    if architecture not in ENCODER_ARCHITECTURES or architecture.startswith("Bert"):
        return 0
    padding = config.get("pad_token_id")
    return 1 + (1 if padding is None else int(padding))


class PoolingConfig(msgspec.Struct, frozen=True, kw_only=True):
    """How a model makes vectors: from sentence-transformers' files where the model has them."""

    kind: str = "last"
    """``last``, ``mean`` or ``cls`` (the first token); ``classify`` for a cross-encoder, which gives one score."""
    normalize: bool = True
    """Vectors have length 1."""
    matryoshka: bool = False
    """The model was trained so that the front of a vector is one as well."""
    dimensions: list[int] = []
    """The lengths that may be asked for; empty: with ``matryoshka`` every one, else only the whole vector."""

    @property
    def scores_pairs(self) -> bool:
        """True for a cross-encoder: it takes two texts and gives a number."""
        return self.kind == "classify"


def read_pooling_config(folder: Path, config: dict[str, Any], architecture: str, asked: str) -> PoolingConfig:
    """What the files of a model folder say, with ``asked`` (``--pooling``) before them.

    Raises ``ConfigurationError`` where they cannot be followed.
    """
    encoder = architecture in ENCODER_ARCHITECTURES
    if architecture in _CROSS_ENCODERS:
        if asked != "auto":
            raise ConfigurationError(f"--pooling {asked}: {architecture} scores pairs of texts and pools nothing")
        return PoolingConfig(kind="classify", normalize=False)
    kind, normalize = "mean" if encoder else "last", True
    modules = folder / "modules.json"
    if modules.is_file():
        kind, normalize = _sentence_transformer(folder, read_json(modules))
    if asked != "auto":
        kind = asked
    if kind == "cls" and not encoder:
        raise ConfigurationError(f"pooling by the first token means nothing for {architecture}: it sees only itself")
    sizes = config.get("matryoshka_dimensions") or []
    return PoolingConfig(
        kind=kind,
        normalize=normalize,
        matryoshka=bool(sizes or config.get("is_matryoshka")),
        dimensions=[int(size) for size in sizes],
    )


def _sentence_transformer(folder: Path, modules: Any) -> tuple[str, bool]:
    """Kind of pooling and normalization of a sentence-transformers folder. Modules that cannot be run are refused."""
    kind, normalize = "mean", False
    if not isinstance(modules, list) or not all(isinstance(module, dict) for module in modules):
        raise CheckpointError(f"{folder / 'modules.json'} holds no list of modules")
    for module in modules:
        name = str(module.get("type", "")).rpartition(".")[2]
        if name == "Pooling":
            kind = _pooling_kind(load_json(folder / str(module.get("path", "")) / "config.json"))
        elif name == "Normalize":
            normalize = True
        elif name != "Transformer":
            raise UnsupportedModelError(f"{folder / 'modules.json'}: modules of type {name!r} are not supported")
    return kind, normalize


def _pooling_kind(config: dict[str, Any]) -> str:
    names = {"cls_token": "cls", "cls": "cls", "mean_tokens": "mean", "mean": "mean", "lasttoken": "last"}
    prefix = "pooling_mode_"
    chosen = [name.removeprefix(prefix) for name, on in config.items() if name.startswith(prefix) and on is True]
    if isinstance(config.get("pooling_mode"), str):
        chosen = [config["pooling_mode"]]
    if len(chosen) != 1 or chosen[0] not in names:
        raise UnsupportedModelError(f"pooling by {' and '.join(chosen) or 'nothing'} is not supported")
    return names[chosen[0]]


def longest_input(folder: Path, limit: int) -> int:
    """Tokens that sentence-transformers would cut a prompt to, at most ``limit``."""
    path = folder / "sentence_bert_config.json"
    length = load_json(path).get("max_seq_length") if path.is_file() else None
    if length is not None and (not isinstance(length, int) or length < 1):
        raise CheckpointError(f"{path}: max_seq_length must be a positive integer, not {length!r}")
    return min(limit, length or limit)
