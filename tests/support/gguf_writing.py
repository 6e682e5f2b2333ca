"""Small GGUF files for tests, written with the ``gguf`` package."""

from pathlib import Path

import gguf
import numpy as np

HIDDEN, LAYERS, HEADS, KV_HEADS, HEAD_DIM, MLP = 64, 2, 4, 2, 16, 96


def byte_level_vocabulary() -> tuple[list[str], list[str]]:
    """Tokens and merges: the 256 bytes of GPT-2's alphabet, two merges, and two control tokens at the end."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    alphabet = [chr(byte) for byte in printable] + [chr(256 + n) for n in range(len(others))]
    return [*alphabet, "he", "hel", "<|start|>", "<|end|>"], ["h e", "he l"]


def sentencepiece_vocabulary() -> tuple[list[str], list[float]]:
    """Tokens and scores: unknown, the bytes, pieces (longer ones not always better), two control tokens at the end."""
    pieces = ["\u2581a", "ab", "aba", "bab", "ba", "\u2581ab", "bb", "abab", "\u2581\u2581"]
    tokens = ["<unk>", *(f"<0x{byte:02X}>" for byte in range(256)), *pieces, "a", "b", "\u2581", "<s>", "</s>"]
    scores = [0.0] * 257 + [-float(n) for n in range(len(pieces))] + [-100.0, -101.0, -102.0, 0.0, 0.0]
    return tokens, scores


def random_tensors(kind: str, vocab: int, tied: bool, seed: int = 0) -> dict[str, np.ndarray]:
    """Weights of a small model in Hugging Face's names and layout, float32."""
    random = np.random.default_rng(seed)
    q, kv = HEADS * HEAD_DIM, KV_HEADS * HEAD_DIM
    shapes: dict[str, tuple[int, ...]] = {"model.embed_tokens.weight": (vocab, HIDDEN), "model.norm.weight": (HIDDEN,)}
    if not tied:
        shapes["lm_head.weight"] = (vocab, HIDDEN)
    for layer in range(LAYERS):
        start = f"model.layers.{layer}."
        shapes |= {
            start + "input_layernorm.weight": (HIDDEN,),
            start + "self_attn.q_proj.weight": (q, HIDDEN),
            start + "self_attn.k_proj.weight": (kv, HIDDEN),
            start + "self_attn.v_proj.weight": (kv, HIDDEN),
            start + "self_attn.o_proj.weight": (HIDDEN, q),
            start + "post_attention_layernorm.weight": (HIDDEN,),
            start + "mlp.gate_proj.weight": (MLP, HIDDEN),
            start + "mlp.up_proj.weight": (MLP, HIDDEN),
            start + "mlp.down_proj.weight": (HIDDEN, MLP),
        }
        if kind == "qwen2":
            shapes |= {start + f"self_attn.{n}_proj.bias": (q if n == "q" else kv,) for n in "qkv"}
        if kind == "qwen3":
            shapes |= {start + f"self_attn.{n}_norm.weight": (HEAD_DIM,) for n in "qk"}
    return {name: random.standard_normal(shape, np.float32) for name, shape in shapes.items()}


def gguf_name(name: str) -> str:
    """llama.cpp's name for Hugging Face's name of a tensor."""
    words = {
        "model.embed_tokens": "token_embd",
        "model.norm": "output_norm",
        "lm_head": "output",
        "model.layers": "blk",
        "input_layernorm": "attn_norm",
        "post_attention_layernorm": "ffn_norm",
        "self_attn.q_proj": "attn_q",
        "self_attn.k_proj": "attn_k",
        "self_attn.v_proj": "attn_v",
        "self_attn.o_proj": "attn_output",
        "self_attn.q_norm": "attn_q_norm",
        "self_attn.k_norm": "attn_k_norm",
        "mlp.gate_proj": "ffn_gate",
        "mlp.up_proj": "ffn_up",
        "mlp.down_proj": "ffn_down",
    }
    for word, replacement in words.items():
        name = name.replace(word, replacement)
    return name


def interleave(rows: np.ndarray, heads: int) -> np.ndarray:
    """llama.cpp's order of q and k rows: element i of a head's first half is followed by element i of its second."""
    order = [
        head * HEAD_DIM + half * (HEAD_DIM // 2) + element
        for head in range(heads)
        for element in range(HEAD_DIM // 2)
        for half in range(2)
    ]
    return rows[order]


def write_gguf(
    path: Path,
    kind: str = "llama",
    tied: bool = True,
    quantization: gguf.GGMLQuantizationType = gguf.GGMLQuantizationType.F32,
    pre: str = "gpt-2",
    tokenizer: str = "gpt2",
    add_bos: bool | None = False,
    rope_factors: np.ndarray | None = None,
    token: bytes | None = None,
) -> dict[str, np.ndarray]:
    """Write a small model; return its weights in Hugging Face's names and layout, as the file holds them.

    ``token`` takes the place of the vocabulary's first one.
    """
    tokens, merges = byte_level_vocabulary()
    scores: list[float] = []
    if tokenizer == "llama":
        tokens, scores = sentencepiece_vocabulary()
    tensors = random_tensors(kind, len(tokens), tied)
    writer = gguf.GGUFWriter(str(path), kind)
    writer.add_block_count(LAYERS)
    writer.add_context_length(128)
    writer.add_embedding_length(HIDDEN)
    writer.add_feed_forward_length(MLP)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(KV_HEADS)
    writer.add_key_length(HEAD_DIM)
    writer.add_rope_freq_base(50000.0)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_tokenizer_model(tokenizer)
    writer.add_token_list([*tokens] if token is None else [token, *tokens[1:]])
    if tokenizer == "llama":
        writer.add_token_scores(scores)
        writer.add_token_types([2] + [6] * 256 + [1] * (len(tokens) - 259) + [3, 3])
        writer.add_unk_token_id(0)
    else:
        writer.add_tokenizer_pre(pre)
        writer.add_token_types([1] * (len(tokens) - 2) + [3, 3])
        writer.add_token_merges(merges)
    writer.add_bos_token_id(len(tokens) - 2)
    writer.add_eos_token_id(len(tokens) - 1)
    if add_bos is not None:
        writer.add_add_bos_token(add_bos)
    writer.add_chat_template("{{ messages[0].content }}")
    held = {}
    for name, tensor in tensors.items():
        kept = tensor.ndim == 1
        stored = gguf.GGMLQuantizationType.F32 if kept else quantization
        packed = gguf.quantize(tensor, stored)
        held[name] = gguf.dequantize(packed, stored).reshape(tensor.shape)
        if kind == "llama" and ("q_proj" in name or "k_proj" in name):
            packed = interleave(packed, HEADS if "q_proj" in name else KV_HEADS)
        writer.add_tensor(gguf_name(name), packed, raw_dtype=stored)
    if rope_factors is not None:
        writer.add_tensor("rope_freqs.weight", rope_factors.astype(np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return held
