"""What ``config.json`` says about a model, read without torch or transformers."""

from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec

from .errors import CheckpointError, ConfigurationError, RequestError, UnsupportedModelError
from .json_file import load_json
from .pooling_config import ENCODER_ARCHITECTURES, PoolingConfig, first_position, longest_input, read_pooling_config
from .sampling_params import SamplingParams

ROPE_KINDS = ("default", "linear", "dynamic", "llama3", "yarn")
DTYPES = ("float32", "bfloat16", "float16")

# What Hugging Face's configuration classes assume when config.json leaves a field out.
_ATTENTION_BIAS_BY_DEFAULT = {"Qwen2ForCausalLM": True}


class RopeConfig(msgspec.Struct, frozen=True):
    """Rotary embedding: its kind, base and the parameters of the kind."""

    kind: str = "default"
    theta: float = 10000.0
    parameters: dict[str, Any] = {}

    @classmethod
    def from_hf(cls, config: dict[str, Any]) -> "RopeConfig":
        """Read ``rope_parameters`` (Transformers 5) or ``rope_theta`` and ``rope_scaling`` (before)."""
        parameters = dict(config.get("rope_parameters") or config.get("rope_scaling") or {})
        theta = parameters.pop("rope_theta", None) or config.get("rope_theta") or 10000.0
        kind = parameters.pop("rope_type", None) or parameters.pop("type", None) or "default"
        parameters.pop("type", None)
        if kind not in ROPE_KINDS:
            raise UnsupportedModelError(f"rope kind {kind!r} is not supported; known are {', '.join(ROPE_KINDS)}")
        return cls(kind, float(theta), parameters)


class ModelConfig(msgspec.Struct, frozen=True, kw_only=True):
    """A model's shape, and how it is to be run."""

    path: str
    """Folder with ``config.json``, the weights and (unless the tokenizer is elsewhere) the tokenizer."""
    architecture: str
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    rms_norm_eps: float
    hidden_act: str
    tie_word_embeddings: bool
    attention_bias: bool
    """q, k and v projections have a bias."""
    attention_out_bias: bool
    mlp_bias: bool
    max_position: int
    """Positions that the model was made for."""
    rope: RopeConfig
    eos_token_ids: list[int] = []
    """End tokens of ``generation_config.json``, else of ``config.json``."""
    default_sampling: dict[str, Any] = {}
    """Sampling defaults of ``generation_config.json``: temperature, top_p, top_k, repetition_penalty."""
    weights_dtype: str = "float32"
    """The dtype that config.json names for the weights on disk."""
    dtype: str = "float32"
    """The dtype that the model computes in."""
    max_model_len: int = 2048
    """Most tokens, prompt and output together, of one request."""
    quantization: str | None = None
    pooling: PoolingConfig = PoolingConfig()
    """How it makes vectors of prompts."""
    hf: dict[str, Any] = {}
    """config.json as it is, for what an architecture reads beyond the fields above."""

    @property
    def is_encoder(self) -> bool:
        """True for a model that only makes vectors: it has no KV cache and generates nothing."""
        return self.architecture in ENCODER_ARCHITECTURES

    @property
    def layer_parameters(self) -> int:
        """Numbers in the matrices of one layer."""
        heads = (self.num_heads + self.num_kv_heads) * self.head_dim
        return 2 * self.hidden_size * heads + 3 * self.hidden_size * self.intermediate_size

    @property
    def kv_bytes_per_token(self) -> int:
        """Bytes of keys and values that one token takes over all layers."""
        width = 4 if self.dtype == "float32" else 2
        return 2 * self.num_layers * self.num_kv_heads * self.head_dim * width


def read_model_config(
    folder: Path,
    dtype: str = "auto",
    max_model_len: int | None = None,
    quantization: str | None = None,
    prefer_bfloat16: bool = False,
    pooling: str = "auto",
) -> ModelConfig:
    """Read ``config.json`` and ``generation_config.json`` of a model folder.

    ``dtype`` ``auto`` takes the dtype of the weights, or bfloat16 for float32 weights where the device is faster
    with it (``prefer_bfloat16``); an encoder keeps float32, because vectors are compared in small differences.
    Raises ``CheckpointError``, ``UnsupportedModelError`` or ``ConfigurationError``.
    """
    config = load_json(folder / "config.json")
    architectures = config.get("architectures") or []
    if len(architectures) != 1:
        raise CheckpointError(f"{folder / 'config.json'} names no single architecture: {architectures!r}")
    generation = load_json(folder / "generation_config.json") if (folder / "generation_config.json").exists() else {}
    heads = _required(config, "num_attention_heads", folder)
    hidden = _required(config, "hidden_size", folder)
    architecture = str(architectures[0])
    max_position = int(config.get("max_position_embeddings") or 2048) - first_position(architecture, config)
    bias = bool(config.get("attention_bias", _ATTENTION_BIAS_BY_DEFAULT.get(architecture, False)))
    encoder = architecture in ENCODER_ARCHITECTURES
    rope = RopeConfig.from_hf(config)
    limit = _context(rope, max_position, max_model_len)
    weights_dtype = str(config.get("dtype") or config.get("torch_dtype") or "float32").removeprefix("torch.")
    return ModelConfig(
        path=str(folder),
        architecture=architecture,
        vocab_size=_required(config, "vocab_size", folder),
        hidden_size=hidden,
        intermediate_size=_required(config, "intermediate_size", folder),
        num_layers=_required(config, "num_hidden_layers", folder),
        num_heads=heads,
        num_kv_heads=int(config.get("num_key_value_heads") or heads),
        head_dim=int(config.get("head_dim") or hidden // heads),
        rms_norm_eps=_number(config, "rms_norm_eps", 1e-6, folder),
        hidden_act=str(config.get("hidden_act", "silu")),
        tie_word_embeddings=bool(config.get("tie_word_embeddings", False)),
        attention_bias=bias,
        attention_out_bias=bias and architecture != "Qwen2ForCausalLM",
        mlp_bias=bool(config.get("mlp_bias", False)),
        max_position=max_position,
        rope=rope,
        eos_token_ids=_end_tokens(folder, generation, config),
        default_sampling=_default_sampling(folder, generation),
        weights_dtype=weights_dtype,
        dtype=_compute_dtype(dtype, weights_dtype, prefer_bfloat16 and not encoder),
        max_model_len=max_model_len or longest_input(folder, limit),
        quantization=quantization,
        pooling=read_pooling_config(folder, config, architecture, pooling),
        hf=config,
    )


def _required(config: dict[str, Any], name: str, folder: Path) -> int:
    value = config.get(name)
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise CheckpointError(f"{folder / 'config.json'}: {name} must be a positive integer, not {value!r}")
    return value


def _number(config: dict[str, Any], name: str, default: float, folder: Path) -> float:
    value = config.get(name, default)
    if not isinstance(value, int | float) or isinstance(value, bool):
        raise CheckpointError(f"{folder / 'config.json'}: {name} must be a number, not {value!r}")
    return float(value)


def _end_tokens(folder: Path, generation: dict[str, Any], config: dict[str, Any]) -> list[int]:
    for name, source in (("generation_config.json", generation), ("config.json", config)):
        given = source.get("eos_token_id")
        if given is not None:
            ids = given if isinstance(given, list) else [given]
            if not all(type(token) is int for token in ids):
                raise CheckpointError(
                    f"{folder / name}: eos_token_id must be a token id or a list of them, not {given!r}"
                )
            return ids
    return []


def _default_sampling(folder: Path, generation: dict[str, Any]) -> dict[str, Any]:
    """What requests get that do not say otherwise. Checked here: a wrong value would make each of them a 400."""
    names = ("temperature", "top_p", "top_k", "min_p", "repetition_penalty")
    given = {name: generation[name] for name in names if generation.get(name) is not None}
    try:
        msgspec.convert(given, SamplingParams)
    except (msgspec.ValidationError, RequestError) as error:
        raise CheckpointError(f"{folder / 'generation_config.json'}: {error}") from error
    return given


def _compute_dtype(asked: str, weights: str, prefer_bfloat16: bool) -> str:
    if asked != "auto":
        if asked not in DTYPES:
            raise ConfigurationError(f"--dtype must be auto, {', '.join(DTYPES)}, not {asked!r}")
        return asked
    if prefer_bfloat16:
        return "bfloat16"
    return weights if weights in DTYPES else "float32"


def _context(rope: RopeConfig, max_position: int, asked: int | None) -> int:
    limit, trained = max_position, rope.parameters.get("original_max_position_embeddings")
    # The factor stretches the positions that the model was trained on. llama3 counts them already, and so do some
    # models with yarn; others name the positions they were trained on twice.
    if rope.kind == "yarn" or (rope.kind in ("linear", "dynamic") and trained is None):
        with suppress(TypeError, ValueError, OverflowError):  # the rotation refuses what is no number, by its name
            limit = max(max_position, int((trained or max_position) * float(rope.parameters.get("factor", 1.0))))
    if asked is None:
        return limit
    if asked < 2:
        raise ConfigurationError(f"--max-model-len must be at least 2 (a prompt's token and one more), not {asked}")
    if asked > limit:
        raise ConfigurationError(f"--max-model-len {asked} is over the model's own limit of {limit} positions")
    return asked
