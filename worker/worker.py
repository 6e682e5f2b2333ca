"""One rank: a device, its part of the model, its KV cache."""

import logging
import os
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch

from ..core.config import EngineConfig
from ..core.errors import ConfigurationError
from ..core.grammar import GrammarSpec
from ..core.sampling_params import SamplingParams
from ..core.step import Chunk, ModelRunnerOutput, NewRequest, SchedulerOutput
from .attention.backend import AttentionBackend
from .attention.selection import select_backend
from .grammar_cache import GrammarCache, Vocabulary
from .layers.dtypes import torch_dtype
from .loader.loader import load_model
from .model_runner import ModelRunner
from .models.causal_lm import CausalLM

logger = logging.getLogger("octavo.worker")

_CPU_CACHE_SHARE = 0.25
_CPU_CACHE_LIMIT = 4 << 30
_CACHED_BLOCKS = 1 << 14
"""Blocks that are worth having for the prefix cache alone: a quarter of a million tokens, if each has 16."""
_GRAPH_RESERVE = 512 << 20
"""Bytes left free for graphs of decode steps and what libraries allocate at their first use."""
_SAMPLING_COPIES = 8
"""Float32 copies of a step's logits that features of sampling and log probabilities take together, at most: changed
logits, what grammars keep, those log probabilities are made of with keys of 64 bits, and the counts of penalties."""


class Worker:
    """Loads, measures, runs. All calls come on one thread."""

    def __init__(self, config: EngineConfig, rank: int) -> None:
        self._config = config
        self._rank = rank
        self._device = self._open_device()
        self._model: CausalLM | None = None
        self._attention: AttentionBackend | None = None
        self._runner: ModelRunner | None = None
        self._grammars = GrammarCache()
        self._ledger: dict[str, int] = {}

    def _open_device(self) -> torch.device:
        device = self._config.device
        if device.device == "cpu":
            torch.set_num_threads(device.num_threads or len(os.sched_getaffinity(0)))
            return torch.device("cpu")
        if not torch.cuda.is_available():
            raise ConfigurationError("--device cuda: torch finds no CUDA GPU; use --device cpu or install a CUDA torch")
        torch.cuda.set_device(self._rank)
        return torch.device("cuda", self._rank)

    def load(self) -> dict[str, float]:
        """Load the weights. Returns when each phase was done."""
        self._model = load_model(self._config, self._device)
        self._attention = select_backend(self._config, self._device)
        return {f"worker-{self._rank}: load weights": time.time()}

    def num_blocks(self) -> int:
        """Blocks for the KV cache, the null block included."""
        assert self._attention is not None
        cache = self._config.cache
        if cache.memory_bytes is not None:
            return self._blocks_in(cache.memory_bytes)
        # Requests never use more than every slot filled to the context; the prefix cache also uses what they leave.
        scheduler = self._config.scheduler
        most = 1 + scheduler.max_num_seqs * -(-scheduler.max_model_len // cache.block_size)
        if cache.enable_prefix_caching:
            most = max(most, _CACHED_BLOCKS)
        return min(most, self._blocks_in(self._free_bytes()))

    def _blocks_in(self, size: int) -> int:
        assert self._attention is not None
        blocks = size // self._attention.bytes_per_block
        if blocks < 2:  # one is the null block
            on_gpu = "" if self._device.type == "cpu" else " or --gpu-memory-utilization"
            raise ConfigurationError(
                f"{max(0, size) / 1e6:,.1f} MB are left for the KV cache, and a block of it takes "
                f"{self._attention.bytes_per_block / 1e6:,.1f} MB; raise --kv-cache-memory-bytes{on_gpu}"
            )
        return blocks

    def _free_bytes(self) -> int:
        if self._device.type == "cpu":
            return int(min(_available_memory() * _CPU_CACHE_SHARE, _CPU_CACHE_LIMIT))
        activations = self._measure_activations()
        free, total = torch.cuda.mem_get_info(self._device)
        wanted = total * self._config.cache.memory_utilization
        reserve = _GRAPH_RESERVE + self._graph_bytes(activations) + self._sampling_bytes()
        return int(wanted - (total - free) - activations - reserve)

    def _sampling_bytes(self) -> int:
        """What a step may take that asks for more of sampling than the one that was measured."""
        return _SAMPLING_COPIES * 4 * self._config.scheduler.max_num_seqs * self._config.model.vocab_size

    def _graph_bytes(self, activations: int) -> int:
        """What recordings keep: those of prompts their part of the largest step, each of decodes its own logits."""
        if not self._uses_graphs:
            return 0
        from .decode_graphs import graph_sizes  # these need Triton
        from .prompt_graphs import most_tokens

        prompts = activations * most_tokens(self._config) // self._config.scheduler.max_num_batched_tokens
        logits = sum(graph_sizes(self._config)) * self._config.model.vocab_size
        return prompts + logits * torch_dtype(self._config.model.dtype).itemsize

    @property
    def _uses_graphs(self) -> bool:
        assert self._attention is not None
        return self._device.type == "cuda" and self._config.device.cuda_graphs and self._attention.name != "torch"

    def _measure_activations(self) -> int:
        """Bytes that the largest step takes beside weights and cache: it is run, over a cache of nothing."""
        assert self._attention is not None and self._model is not None
        self._attention.allocate(2)
        runner = ModelRunner(self._config, self._device, self._model, self._attention, self._grammars)
        before = torch.cuda.memory_allocated(self._device)
        torch.cuda.reset_peak_memory_stats(self._device)
        runner.launch(self._largest_step())()
        peak = torch.cuda.max_memory_allocated(self._device) - before
        del runner
        torch.cuda.empty_cache()
        self._ledger["activations"] = peak
        return peak

    def _largest_step(self) -> SchedulerOutput:
        """Prompts that use up the token budget, each drawing a token; all their blocks are the null block."""
        scheduler = self._config.scheduler
        left = scheduler.max_num_batched_tokens
        rows = scheduler.max_num_seqs
        new, chunks = [], []
        while left > 0 and rows > 0:
            length = min(scheduler.max_model_len - 1, left if rows == 1 else max(1, -(-left // rows)))
            blocks = [0] * (-(-length // self._config.cache.block_size))
            ids = np.zeros(length, np.int32)
            params = SamplingParams(seed=0)
            new.append(NewRequest(len(new), "largest", ids, length, 0, blocks, params, 0, [], []))
            chunks.append(Chunk(len(chunks), length, True))
            left -= length
            rows -= 1
        num_tokens = sum(chunk.num_tokens for chunk in chunks)
        return SchedulerOutput(0, [], new, [], np.empty(0, dtype=np.int32), chunks, num_tokens)

    def allocate(self, num_blocks: int) -> dict[str, int]:
        """Allocate the KV cache and run the model once, so that the first request finds everything warm. Returns the
        memory ledger in bytes."""
        assert self._attention is not None and self._model is not None
        try:
            self._attention.allocate(num_blocks)
        except (MemoryError, torch.OutOfMemoryError) as error:
            wanted = f"{num_blocks * self._attention.bytes_per_block / 1e6:,.0f} MB"
            raise ConfigurationError(f"--kv-cache-memory-bytes: {wanted} for the KV cache cannot be had") from error
        self._runner = ModelRunner(self._config, self._device, self._model, self._attention, self._grammars)
        self._warm_up()
        if self._uses_graphs:
            self._record_steps()
        ledger = {"weights": self._model.weight_bytes, "kv cache": num_blocks * self._attention.bytes_per_block}
        ledger |= self._ledger
        logger.info("memory: %s", ", ".join(f"{name} {size / 1e6:,.0f} MB" for name, size in ledger.items()))
        return ledger

    @torch.inference_mode()
    def _record_steps(self) -> None:
        # Imported here: only where there is a GPU is there Triton.
        from .attention.fused_backend import FusedAttentionBackend
        from .decode_graphs import DecodeGraphs
        from .graph_pool import GraphPool
        from .prompt_graphs import PromptGraphs
        from .slot_mirror import DeviceSlotMirror

        assert self._runner is not None and self._model is not None
        assert isinstance(self._attention, FusedAttentionBackend)
        assert isinstance(self._runner.mirror, DeviceSlotMirror)
        began = time.perf_counter()
        pool = GraphPool()
        prompts = PromptGraphs(self._config, self._model, self._attention, pool)
        recorded = prompts.capture_largest()
        decodes = DecodeGraphs(self._config, self._model, self._attention, self._runner.mirror, pool)
        decodes.capture()
        self._runner.replay(decodes, prompts)
        logger.info("recorded %d CUDA graphs in %.2f s", recorded + len(decodes.sizes), time.perf_counter() - began)

    def _warm_up(self) -> None:
        """A prompt and a decode over the null block: operators choose and cache their kernels for these shapes now."""
        assert self._runner is not None
        length = min(16, self._config.scheduler.max_model_len - 1, self._config.scheduler.max_num_batched_tokens)
        blocks = [0] * -(-(length + 1) // self._config.cache.block_size)
        params = SamplingParams(temperature=0.0)
        new = NewRequest(0, "warm-up", np.zeros(length, np.int32), length, 0, blocks, params, 0, [], [])
        none = np.empty(0, dtype=np.int32)
        self._runner.launch(SchedulerOutput(0, [], [new], [], none, [Chunk(0, length, True)], length))
        self._runner.launch(SchedulerOutput(0, [], [], [], np.zeros(1, dtype=np.int32), [], 1))()
        self._runner.release(0)

    def launch(self, output: SchedulerOutput) -> Callable[[], ModelRunnerOutput]:
        """Start one step; the returned function waits for what it draws."""
        assert self._runner is not None
        return self._runner.launch(output)

    def provide_vocabulary(
        self, token_bytes: list[bytes], special_ids: list[int], end_ids: list[int], definition: str
    ) -> None:
        """What the tokens stand for, for grammars; see ``Vocabulary``."""
        self._grammars.provide(
            Vocabulary(token_bytes=token_bytes, special_ids=special_ids, end_ids=end_ids, definition=definition)
        )

    def start_grammar(self, kind: str, text: str) -> str | None:
        """Compile a grammar in the background, and keep it until a step releases it. Returns ``grammar_state``."""
        self._grammars.start(GrammarSpec(kind, text))
        return self.grammar_state(kind, text)

    def grammar_state(self, kind: str, text: str) -> str | None:
        """None while it compiles, then "" or what is wrong with it."""
        return self._grammars.state(GrammarSpec(kind, text))

    def close(self) -> None:
        """Drop the model and the cache."""
        self._grammars.close()
        self._runner = self._attention = self._model = None


def _available_memory() -> int:
    """Bytes that can be had without swapping: the kernel's estimate, cut by the container's limit."""
    available = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    try:
        for line in Path("/proc/meminfo").read_text().splitlines():
            if line.startswith("MemAvailable:"):
                available = int(line.split()[1]) * 1024
        limit = Path("/sys/fs/cgroup/memory.max").read_text().strip()
        used = int(Path("/sys/fs/cgroup/memory.current").read_text())
        if limit != "max":
            available = min(available, int(limit) - used)
    except (OSError, ValueError):
        pass  # no such files: not Linux, or no container
    return max(0, available)
