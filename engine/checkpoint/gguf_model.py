"""What a GGUF file says about the model, in Hugging Face's words: ``config.json`` and the names of tensors."""

import re
from collections.abc import Iterator
from typing import Any

import numpy as np

from ...core.errors import CheckpointError, UnsupportedModelError
from .gguf_file import GGUFFile, GGUFTensor

_ARCHITECTURES = {"llama": "LlamaForCausalLM", "qwen2": "Qwen2ForCausalLM", "qwen3": "Qwen3ForCausalLM"}
_OUTER_NAMES = {
    "token_embd.weight": "model.embed_tokens.weight",
    "output_norm.weight": "model.norm.weight",
    "output.weight": "lm_head.weight",
}
_LAYER_NAMES = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
_LAYER_TENSOR = re.compile(r"blk\.(\d+)\.([a-z_]+)\.(weight|bias)")
_ROPE_FACTORS = "rope_freqs.weight"
# Tables that can be computed from the configuration.
_IGNORED = re.compile(r"rope_freqs\.weight|blk\.\d+\.attn_rot_embd(\.weight)?")
_STORED_NAMES = {"F32": "float32", "F16": "float16", "BF16": "bfloat16"}


class GGUFModel:
    """The decoder in a GGUF file. Raises ``UnsupportedModelError`` for one that Octavo has no code for."""

    def __init__(self, file: GGUFFile) -> None:
        self.file = file
        self.kind = str(file.metadata.get("general.architecture"))
        if self.kind not in _ARCHITECTURES:
            raise UnsupportedModelError(
                f"{file.path} holds a model of architecture {self.kind!r}; GGUF files of {', '.join(_ARCHITECTURES)} "
                "can be read. Models of other kinds load from their Hugging Face folder"
            )
        if int(file.metadata.get("split.count", 0)) > 1:
            raise UnsupportedModelError(
                f"{file.path} is one part of a split file; join the parts with `llama-gguf-split --merge` first"
            )
        if int(file.metadata.get(f"{self.kind}.expert_count", 0)) > 0:
            raise UnsupportedModelError(f"{file.path} is a mixture of experts, which cannot be read from GGUF")
        self.hidden_size = self._number("embedding_length")
        self.num_heads = self._number("attention.head_count")
        self.num_kv_heads = int(self._get("attention.head_count_kv", self.num_heads))
        self.head_dim = int(self._get("attention.key_length", self.hidden_size // self.num_heads))
        self.context_length = self._number("context_length")

    def tensors(self) -> Iterator[tuple[str, GGUFTensor]]:
        """Hugging Face's name and the directory entry of each tensor, in the file's order."""
        for name, tensor in self.file.tensors.items():
            if _IGNORED.fullmatch(name):
                continue
            yield self._hf_name(name), tensor

    def read(self, tensor: GGUFTensor) -> Iterator[np.ndarray]:
        """The tensor's elements in Hugging Face's order, as flat pieces."""
        layer = _LAYER_TENSOR.fullmatch(tensor.name)
        if self.kind != "llama" or layer is None or layer[2] not in ("attn_q", "attn_k"):
            yield from self.file.read(tensor)
            return
        # llama.cpp rotates neighbouring elements where Hugging Face rotates halves, so its llama files hold the
        # rows of each head interleaved: [heads, head_dim / 2, 2, in] there, [heads, 2, head_dim / 2, in] here.
        whole = np.concatenate(list(self.file.read(tensor)))
        heads = self.num_heads if layer[2] == "attn_q" else self.num_kv_heads
        if tensor.shape[0] != heads * self.head_dim:
            raise CheckpointError(
                f"{self.file.path}: tensor {tensor.name} has {tensor.shape[0]} rows, not {heads} heads"
            )
        yield whole.reshape(heads, self.head_dim // 2, 2, -1).swapaxes(1, 2).reshape(-1)

    def config(self) -> dict[str, Any]:
        """The content of ``config.json``."""
        embedding = self.file.tensors.get("token_embd.weight")
        if embedding is None:
            raise CheckpointError(f"{self.file.path} has no tensor token_embd.weight")
        config = {
            "architectures": [_ARCHITECTURES[self.kind]],
            "model_type": self.kind,
            "vocab_size": embedding.shape[0],
            "hidden_size": self.hidden_size,
            "intermediate_size": self._number("feed_forward_length"),
            "num_hidden_layers": self._number("block_count"),
            "num_attention_heads": self.num_heads,
            "num_key_value_heads": self.num_kv_heads,
            "head_dim": self.head_dim,
            "hidden_act": "silu",
            "max_position_embeddings": self.context_length,
            "rms_norm_eps": _shortest(self._get("attention.layer_norm_rms_epsilon", 1e-6)),
            "rope_parameters": self._rope(),
            "tie_word_embeddings": "output.weight" not in self.file.tensors,
            "use_cache": True,
            "dtype": _STORED_NAMES[embedding.stored_dtype],
        }
        if self.kind == "llama":
            config["attention_bias"] = self._has_bias(("attn_q", "attn_k", "attn_v", "attn_output"))
            config["mlp_bias"] = self._has_bias(("ffn_gate", "ffn_up", "ffn_down"))
        else:
            config["use_sliding_window"] = False
        return config | self._token_ids()

    def generation_config(self) -> dict[str, Any]:
        """The content of ``generation_config.json``: the end tokens, end of text and end of turn both."""
        ids = self._token_ids()
        ends = [ids.get("eos_token_id"), *(self._token_id(name) for name in ("eot", "eom"))]
        return ids | {"eos_token_id": list(dict.fromkeys(end for end in ends if end is not None))}

    def _token_ids(self) -> dict[str, int]:
        names = {"bos_token_id": "bos", "eos_token_id": "eos", "pad_token_id": "padding"}
        ids = {name: self._token_id(key) for name, key in names.items()}
        return {name: value for name, value in ids.items() if value is not None}

    def _token_id(self, key: str) -> int | None:
        value = self.file.metadata.get(f"tokenizer.ggml.{key}_token_id")
        return value if isinstance(value, int) else None

    def _hf_name(self, name: str) -> str:
        if name in _OUTER_NAMES:
            return _OUTER_NAMES[name]
        layer = _LAYER_TENSOR.fullmatch(name)
        if layer is None or layer[2] not in _LAYER_NAMES:
            raise UnsupportedModelError(f"{self.file.path}: tensor {name} belongs to no {self.kind} model known here")
        return f"model.layers.{layer[1]}.{_LAYER_NAMES[layer[2]]}.{layer[3]}"

    def _has_bias(self, parts: tuple[str, ...]) -> bool:
        present = {part for part in parts if f"blk.0.{part}.bias" in self.file.tensors}
        if present and present != set(parts):
            raise UnsupportedModelError(
                f"{self.file.path}: of {', '.join(parts)} only {', '.join(sorted(present))} have a bias"
            )
        return bool(present)

    def _rope(self) -> dict[str, Any]:
        rope: dict[str, Any] = {"rope_type": "default", "rope_theta": _shortest(self._get("rope.freq_base", 10000.0))}
        if _ROPE_FACTORS in self.file.tensors:
            return rope | self._llama3_scaling(rope["rope_theta"])
        kind = str(self._get("rope.scaling.type", "none"))
        if kind == "none":
            return rope
        if kind not in ("linear", "yarn"):
            raise UnsupportedModelError(f"{self.file.path}: rope scaling of type {kind!r} cannot be read from GGUF")
        rope |= {"rope_type": kind, "factor": _shortest(self._get("rope.scaling.factor", 1.0))}
        original = self._get("rope.scaling.original_context_length", None)
        if original is not None:
            rope["original_max_position_embeddings"] = int(original)
        return rope

    def _llama3_scaling(self, theta: float) -> dict[str, Any]:
        """The llama3 parameters that give the file's table of factors, which llama.cpp stores in their place."""
        factors = np.concatenate(list(self.file.read(self.file.tensors[_ROPE_FACTORS])))
        factor = float(factors.max())
        scaling = {
            "rope_type": "llama3",
            "factor": factor,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 8192,
        }
        wavelengths = 2 * np.pi * theta ** (np.arange(0, self.head_dim, 2) / self.head_dim)
        share = np.clip((8192 / wavelengths - 1.0) / (4.0 - 1.0), 0.0, 1.0)
        expected = 1.0 / ((1.0 - share) / factor + share)
        if factors.shape != expected.shape or not np.allclose(factors, expected, rtol=1e-3):
            raise UnsupportedModelError(f"{self.file.path}: the rope factors in {_ROPE_FACTORS} are not Llama 3's")
        return scaling

    def _get(self, key: str, default: Any) -> Any:
        return self.file.metadata.get(f"{self.kind}.{key}", default)

    def _number(self, key: str) -> int:
        value = self._get(key, None)
        if not isinstance(value, int) or value < 1:
            raise CheckpointError(
                f"{self.file.path}: metadata {self.kind}.{key} must be a positive number, not {value!r}"
            )
        return value


def _shortest(value: float) -> float:
    """The shortest decimal that is the same float32: 1e-05 for 9.999999747378752e-06."""
    return float(str(np.float32(value)))
