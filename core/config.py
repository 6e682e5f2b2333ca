"""The engine's configuration: built once from ``EngineArgs``, checked once, then frozen and sent to every process."""

import msgspec

from .errors import ConfigurationError
from .limits import check_least
from .model_config import ModelConfig

DECODER_WORKER = "octavo.worker.worker:Worker"
ENCODER_WORKER = "octavo.worker.encoder_worker:EncoderWorker"


class CacheConfig(msgspec.Struct, frozen=True, kw_only=True):
    """The paged KV cache."""

    block_size: int = 16
    """Tokens in one block."""
    num_blocks: int | None = None
    """Blocks in the pool, the null block included. None: as many as fit, by the worker's measure."""
    memory_bytes: int | None = None
    """Bytes that the pool may take; None lets the worker decide."""
    memory_utilization: float = 0.9
    """Share of a GPU's memory that everything together may take."""
    enable_prefix_caching: bool = True


class SchedulerConfig(msgspec.Struct, frozen=True, kw_only=True):
    """What one step may hold, and who goes first."""

    max_num_seqs: int = 256
    max_num_batched_tokens: int = 2048
    max_model_len: int = 2048
    policy: str = "fcfs"
    enable_chunked_prefill: bool = True
    overlap: bool = True
    """Schedule step n+1 while the device runs step n."""
    check_integrity: bool = False
    """Check every invariant after every step (slow; for tests and for hunting a fault)."""
    log_decisions: bool = False

    def __post_init__(self) -> None:
        check_least(self, max_num_seqs=1)
        if self.max_num_batched_tokens < self.max_num_seqs:
            raise ConfigurationError(
                f"--max-num-batched-tokens {self.max_num_batched_tokens} is below --max-num-seqs "
                f"{self.max_num_seqs}: a step could not give every running request one token"
            )
        if not self.enable_chunked_prefill and self.max_num_batched_tokens < self.max_model_len:
            raise ConfigurationError(
                f"without chunked prefill --max-num-batched-tokens ({self.max_num_batched_tokens}) must hold a whole "
                f"prompt of --max-model-len ({self.max_model_len}) tokens"
            )
        if self.policy not in ("fcfs", "priority"):
            raise ConfigurationError(f"--scheduling-policy must be fcfs or priority, not {self.policy!r}")


class ParallelConfig(msgspec.Struct, frozen=True, kw_only=True):
    """Where workers run."""

    executor: str = "uni"
    """``uni`` (in the engine's process) or ``mp`` (each rank in its own)."""
    tensor_parallel_size: int = 1
    worker: str = DECODER_WORKER
    """The worker class, as ``module:name``."""


class DeviceConfig(msgspec.Struct, frozen=True, kw_only=True):
    """The device and how work is done on it."""

    device: str = "cpu"
    attention_backend: str = "auto"
    num_threads: int | None = None
    """Threads of one CPU operation. None: one per core the process may use."""
    load_format: str = "auto"
    cuda_graphs: bool = True
    """Replay decode steps as CUDA graphs; without them each kernel is launched by itself."""
    seed: int = 0
    """Of dummy weights and of the seeds given to requests without one."""


class EngineConfig(msgspec.Struct, frozen=True, kw_only=True):
    """Everything the engine was told, in one frozen value."""

    model: ModelConfig
    cache: CacheConfig
    scheduler: SchedulerConfig
    parallel: ParallelConfig
    device: DeviceConfig
    tokenizer: str | None = None
    """Folder of the tokenizer; None when it was not wanted (``skip_tokenizer_init``)."""
    max_model_len_given: bool = False
    """The user asked for this context; then a KV cache that cannot hold it is an error."""
    max_logprobs: int = 20
    log_requests: bool = True
    restarts: int = 0
    """Engines that may be started in place of dead ones, within ten minutes."""
    hang_timeout: float = 600.0
    """Seconds without a finished step, while there is work, after which the engine's process ends itself. 0: never."""
