"""``EngineArgs``: every setting of the engine, once. Field, default, help text and command-line flag come from here."""

import os
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Literal

from .config import (
    DECODER_WORKER,
    ENCODER_WORKER,
    CacheConfig,
    DeviceConfig,
    EngineConfig,
    ParallelConfig,
    SchedulerConfig,
)
from .errors import ConfigurationError
from .limits import check_least
from .model_config import ModelConfig, read_model_config


@dataclass(kw_only=True)
class EngineArgs:
    """Settings of the engine. Each field is also a flag of ``octavo serve`` and an argument of ``LLM``."""

    model: str | None = None
    """Model: a local folder, a .gguf file or a hub id. Without it, the embedded default model."""

    tokenizer: str | None = None
    """Folder or hub id of the tokenizer, where it is not the model's own."""

    skip_tokenizer_init: bool = False
    """Load no tokenizer: prompts and outputs are token ids."""

    dtype: Literal["auto", "float32", "bfloat16", "float16"] = "auto"
    """Data type of weights and activations. auto: bfloat16 where the device has units for it, else the model's own."""

    load_format: Literal["auto", "safetensors", "dummy"] = "auto"
    """dummy fills the weights with random values, for measuring speed without a checkpoint."""

    quantization: Literal["int8"] | None = None
    """Weight-only quantization, done while loading."""

    max_model_len: int | None = None
    """Most tokens of one request, prompt and output together. Without it, the model's own limit."""

    pooling: Literal["auto", "last", "mean", "cls"] = "auto"
    """Which hidden states make a prompt's vector. auto: as sentence-transformers' files in the model's folder say, else
    the mean for encoders, the last token for decoders."""

    device: Literal["auto", "cpu", "cuda"] = "auto"
    """Where the model runs. auto takes a CUDA GPU if there is one."""

    attention_backend: Literal["auto", "numba", "torch", "triton", "flash"] = "auto"
    """How attention is computed: numba or torch on a CPU, flash, triton or torch on a GPU. auto takes the fastest that
    works on the device."""

    num_threads: int | None = None
    """Threads of one operation on the CPU. Without it, one per core."""

    enforce_eager: bool = False
    """Record no CUDA graphs: slower, for looking at single kernels."""

    block_size: int | None = None
    """Tokens in one KV-cache block. Without it, what the attention backend is fastest with: 16, or 128 for flash."""

    kv_cache_memory_bytes: int | None = None
    """Bytes for the KV cache. Without it: what memory and max_model_len suggest."""

    gpu_memory_utilization: float = 0.9
    """Share of GPU memory that weights, activations and KV cache may take together."""

    num_gpu_blocks_override: int | None = None
    """Exact number of KV-cache blocks, for tests and experiments (on any device)."""

    enable_prefix_caching: bool = True
    """Reuse the KV cache of equal prompt beginnings."""

    enable_chunked_prefill: bool = True
    """Split long prompts over several steps, so that running requests go on meanwhile."""

    max_num_seqs: int = 256
    """Most requests in one step."""

    max_num_batched_tokens: int | None = None
    """Most tokens in one step. Without it, 2048 on a CPU and 8192 on a GPU."""

    scheduling_policy: Literal["fcfs", "priority"] = "fcfs"
    """Order of waiting requests: first come first served, or by their priority field."""

    overlap_scheduling: bool = True
    """Schedule the next step while the device runs this one."""

    distributed_executor_backend: Literal["uni", "mp"] = "uni"
    """uni runs the worker inside the engine's process; mp gives each rank a process."""

    tensor_parallel_size: int = 1
    """Devices that share the layers of the model."""

    engine_restarts: int = 3
    """How many engines that die within ten minutes are replaced by another; requests then go on where they stopped. One
    death more ends the server, with 0 the first."""

    engine_hang_timeout: float = 600.0
    """Seconds that a step may take. An engine that stands still for longer writes its stacks to the log and ends. 0
    lets it hang."""

    seed: int = 0
    """Seed of dummy weights and of the seeds given to requests that bring none."""

    max_logprobs: int = 20
    """Most log probabilities per token that a request may ask for."""

    check_integrity: bool = False
    """Check the scheduler's invariants after every step (slow)."""

    disable_log_requests: bool = False
    """Do not log a line for each finished request."""

    def build(self, folder: Path, tokenizer: Path | None = None) -> EngineConfig:
        """The frozen configuration for the model in ``folder``. Raises ``ConfigurationError`` naming the flag."""
        device = self.resolved_device()
        self._check(device)
        # Every x86 CPU with bfloat16 dot products, and every GPU Octavo supports, is faster with bfloat16.
        model = read_model_config(
            folder,
            self.dtype,
            self.max_model_len,
            self.quantization,
            prefer_bfloat16=device == "cuda" or cpu_has_bfloat16(),
            pooling=self.pooling,
        )
        whole_prompts = model.is_encoder or not self.enable_chunked_prefill
        if self.max_num_batched_tokens is not None:
            budget = self.max_num_batched_tokens
        else:
            budget = 8192 if device == "cuda" else 2048
            if whole_prompts:
                budget = max(budget, model.max_model_len)
        return EngineConfig(
            model=model,
            tokenizer=None if self.skip_tokenizer_init else str(tokenizer or folder),
            cache=self._no_cache(model, budget) if model.is_encoder else self._cache(device),
            scheduler=SchedulerConfig(
                max_num_seqs=min(self.max_num_seqs, budget),
                max_num_batched_tokens=budget,
                max_model_len=model.max_model_len,
                policy=self.scheduling_policy,
                enable_chunked_prefill=not whole_prompts,
                overlap=self.overlap_scheduling,
                check_integrity=self.check_integrity,
                log_decisions=os.environ.get("OCTAVO_LOG_SCHEDULER") == "1",
            ),
            parallel=ParallelConfig(
                executor=self.distributed_executor_backend,
                tensor_parallel_size=self.tensor_parallel_size,
                worker=ENCODER_WORKER if model.is_encoder else DECODER_WORKER,
            ),
            device=DeviceConfig(
                device=device,
                attention_backend=self.attention_backend,
                num_threads=self.num_threads,
                load_format=self.load_format,
                cuda_graphs=not self.enforce_eager,
                seed=self.seed,
            ),
            max_model_len_given=self.max_model_len is not None,
            max_logprobs=self.max_logprobs,
            log_requests=not self.disable_log_requests,
            hang_timeout=self.engine_hang_timeout,
            restarts=self.engine_restarts,
        )

    def _cache(self, device: str) -> CacheConfig:
        return CacheConfig(
            block_size=self.block_size or self._default_block_size(device),
            num_blocks=self.num_gpu_blocks_override,
            memory_bytes=self.kv_cache_memory_bytes,
            memory_utilization=self.gpu_memory_utilization,
            enable_prefix_caching=self.enable_prefix_caching,
        )

    def _no_cache(self, model: ModelConfig, budget: int) -> CacheConfig:
        """An encoder keeps no keys and values. Its blocks are places in the batch: without memory behind them, one for
        each request, as large as a prompt can be; so nothing that counts blocks has to know."""
        for name in ("block_size", "kv_cache_memory_bytes", "num_gpu_blocks_override"):
            if getattr(self, name) is not None:
                flag = f"--{name.replace('_', '-')}"
                raise ConfigurationError(
                    f"{flag}: {model.architecture} is an encoder and has no KV cache; leave it out"
                )
        if budget < model.max_model_len:
            raise ConfigurationError(
                f"--max-num-batched-tokens ({budget}) must hold a whole prompt of --max-model-len "
                f"({model.max_model_len}) tokens: an encoder cannot work on parts of one"
            )
        places = min(self.max_num_seqs, budget)
        return CacheConfig(block_size=model.max_model_len, num_blocks=places + 1, enable_prefix_caching=False)

    def resolved_device(self) -> str:
        """``cpu`` or ``cuda``. Looks for the driver's device file, because asking torch would cost its import."""
        if self.device == "auto":
            return "cuda" if Path("/dev/nvidiactl").exists() else "cpu"
        return self.device

    def _default_block_size(self, device: str) -> int:
        # FlashAttention-3's package pages by whole tiles of 128 keys. Looked for, not imported: that takes seconds.
        flash = find_spec("fa3_fwd_interface") is not None and self.attention_backend in ("auto", "flash")
        return 128 if device == "cuda" and flash else 16

    def _check(self, device: str) -> None:
        check_least(self, block_size=1, num_threads=1, kv_cache_memory_bytes=1, max_num_batched_tokens=1)
        check_least(self, tensor_parallel_size=1, max_logprobs=0, engine_restarts=0)
        if not 0.0 < self.gpu_memory_utilization <= 1.0:
            raise ConfigurationError(
                f"--gpu-memory-utilization must be above 0 and at most 1, not {self.gpu_memory_utilization}"
            )
        if not 0.0 <= self.engine_hang_timeout < float("inf"):
            raise ConfigurationError(f"--engine-hang-timeout must be 0 or more, not {self.engine_hang_timeout}")
        if self.num_gpu_blocks_override is not None and self.num_gpu_blocks_override < 2:
            raise ConfigurationError("--num-gpu-blocks-override must be at least 2 (one block is never handed out)")
        if self.tensor_parallel_size > 1:
            raise ConfigurationError("--tensor-parallel-size above 1 is not supported yet; run one device per server")


def cpu_has_bfloat16() -> bool:
    """True if the CPU multiplies bfloat16 natively (AVX512-BF16 or AMX on x86, BF16 on Arm)."""
    try:
        flags = Path("/proc/cpuinfo").read_text()
    except OSError:
        return False
    return any(flag in flags for flag in ("avx512_bf16", "amx_bf16", " bf16 "))
