"""Compiles the Triton kernels of a worker's start into Triton's cache on disk, beside the worker.

Compiling takes seconds and holds the interpreter's lock, so threads do not help. This process runs the steps of a start
with a model of one layer on the *meta* device, where tensors have shapes and no memory. Strategies, launches and
Triton's own specialization are the worker's, so the cache's keys are, too. Nothing is launched: each new kernel is
compiled by a fork of this process, along with the C function that launches it, and the worker finds both.
"""

import logging
import os
from collections.abc import Callable, Sequence
from typing import Any

import msgspec
import numpy as np
import torch
import torch.nn.functional as functional
from triton import knobs
from triton.backends.compiler import GPUTarget
from triton.backends.nvidia.driver import CudaLauncher, CudaUtils
from triton.runtime import driver
from triton.runtime.jit import JITFunction

from ..core.config import EngineConfig
from ..core.logging import configure_logging
from ..kernels.triton.sampling import SamplingRows, sample
from ..worker.attention.backend import CacheShape
from ..worker.attention.fused_backend import ChunkRows, DecodeRows, FusedPlan, WrittenLayer
from ..worker.attention.triton_backend import TritonAttentionBackend
from ..worker.attention.windows import layer_windows
from ..worker.decode_graphs import DecodeGraphs
from ..worker.graph_pool import GraphPool
from ..worker.layers.dtypes import torch_dtype
from ..worker.layers.linear_method import choose_linear_method
from ..worker.models.registry import build_model
from ..worker.prompt_graphs import PromptGraphs
from ..worker.slot_mirror import DeviceSlotMirror
from .child_process import die_with_parent

logger = logging.getLogger("octavo.process")

META = torch.device("meta")


class CompilationSpec(msgspec.Struct, frozen=True):
    """What the process is told."""

    config: EngineConfig
    processes: int
    """Most that compile at a time."""
    prompts: bool
    """Prompts go through Triton's attention, too."""


def main(payload: bytes, _fds: list[int]) -> None:
    """Entry of the process. Whatever goes wrong costs time only: what is not compiled here, the worker compiles."""
    spec = msgspec.msgpack.decode(payload, type=CompilationSpec)
    configure_logging("kernels")
    failed = True
    try:
        forks = Forks(spec.processes)
        forks.start(CudaUtils)
        major, minor = torch.cuda.get_device_capability()
        compile_ahead(spec, GPUTarget("cuda", 10 * major + minor, 32), forks, CudaLauncher)
        failed = forks.join()
    except Exception:
        logger.debug("compiling ahead failed", exc_info=True)
    os._exit(failed)


class Forks:
    """Children that do one thing each. To be used by a process that has run nothing on a GPU."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._running = 0
        self._failed = False

    def start(self, work: Callable[[], object]) -> None:
        """Have it done by a child; waits while there are too many."""
        while self._running >= self._most:
            self._wait()
        parent = os.getpid()
        self._running += 1
        if os.fork():
            return
        try:
            die_with_parent(parent)
            work()
            os._exit(0)
        finally:
            os._exit(1)

    def join(self) -> bool:
        """Wait for all. True if any failed."""
        while self._running:
            self._wait()
        return self._failed

    def _wait(self) -> None:
        _, status = os.wait()
        self._running -= 1
        self._failed |= status != 0


def compile_ahead(
    spec: CompilationSpec, target: GPUTarget, forks: Forks, launcher: Callable[[Any, Any], object] | None
) -> list[str]:
    """Have every kernel compiled for ``target``. Returns the names of all.

    ``launcher`` builds what launches a compiled kernel. From here on this process can run no kernel.
    """
    seen: dict[Any, str] = {}
    launch = JITFunction.run

    class Target:
        """The part of a driver that compiling asks."""

        utils = property(lambda _: CudaUtils())

        def get_current_device(self) -> int:
            return 0

        def get_current_stream(self, _device: int) -> int:
            return 0

        def get_current_target(self) -> GPUTarget:
            return target

    def run(kernel: Any, *arguments: Any, grid: Any, warmup: bool, **options: Any) -> None:
        def compile_one() -> None:
            knobs.runtime.jit_cache_hook = None
            compiled: Any = launch(kernel, *arguments, grid=grid, warmup=True, **options)
            if launcher is not None:
                launcher(compiled.src, compiled.metadata)

        def leave_out(key: Any, fn: Any, **_: Any) -> bool:
            # A kernel's hash, of which the cache's key is made, can depend on which ones were taken before it.
            if (fn.name, key) not in seen and fn.jit_function.cache_key:
                seen[fn.name, key] = fn.name
                forks.start(compile_one)
            return True

        knobs.runtime.jit_cache_hook = leave_out
        launch(kernel, *arguments, grid=grid, warmup=True, **options)

    driver.set_active(Target())  # pyright: ignore[reportArgumentType]
    JITFunction.run = run  # pyright: ignore[reportAttributeAccessIssue]
    # On the meta device torch would import its compiler and sympy for these: seconds.
    functional.linear = lambda x, weight, _bias=None: x.new_empty(x.shape[0], weight.shape[0])
    torch.empty_like = lambda x, dtype=None: x.new_empty(x.shape, dtype=dtype)
    launch_all(spec.config, spec.prompts)
    return list(seen.values())


class _DecodesOnly(TritonAttentionBackend):
    """Prompts go through a library, which needs no compiling."""

    def _attend_chunks(self, layer: WrittenLayer, rows: ChunkRows) -> None:
        pass


@torch.inference_mode()
def launch_all(config: EngineConfig, prompts: bool) -> None:
    """The launches of ``Worker``'s start, and of the kinds of sampling that come later."""
    model_config = msgspec.structs.replace(config.model, num_layers=1)
    model = build_model(model_config, META)
    model.finish_loading(choose_linear_method(config, META))
    dtype, block_size, rows = torch_dtype(model_config.dtype), config.cache.block_size, config.scheduler.max_num_seqs
    heads = (model_config.num_heads, model_config.num_kv_heads, model_config.head_dim)
    shape = CacheShape(layer_windows(config.model)[:1], *heads, block_size, dtype, META)
    attention = (TritonAttentionBackend if prompts else _DecodesOnly)(shape, rows)
    attention.allocate(2)
    width = -(-config.scheduler.max_model_len // block_size)
    mirror = DeviceSlotMirror(np.zeros((rows, width), np.int32), META)

    def step(tokens: int, count: int, decodes: bool, draws: Sequence[tuple[bool, bool]]) -> None:
        long = torch.empty(tokens, dtype=torch.int64, device=META)
        lengths, starts = (torch.empty(count + more, dtype=torch.int32, device=META) for more in (0, 1))
        table = mirror.block_table[:count]
        chunks = None if decodes else ChunkRows(starts, lengths, table, tokens, width)
        plan = FusedPlan(long, DecodeRows(lengths, table) if decodes else None, chunks)
        logits = model.raw_logits(model.forward(long, long, attention, plan)[:count])
        numbers = (torch.float32, torch.int64, torch.float64, torch.float32, torch.int64, torch.int64)
        parameters = SamplingRows(*(torch.empty(count, dtype=kind, device=META) for kind in numbers))
        for random, filters in draws:
            sample(logits, parameters, random, filters)

    step(min(64, rows), min(64, rows), True, [(True, True), (True, False)])  # first: these take longest to compile
    step(config.scheduler.max_num_batched_tokens, rows, False, [(True, False)])
    step(16, 1, False, [(False, False)])
    step(1, 1, True, [(False, False), (True, False)])
    if config.device.cuda_graphs:
        prompt_graphs = PromptGraphs(config, model, attention, GraphPool())
        for size in (prompt_graphs.sizes[-1], prompt_graphs.sizes[0]):
            for chunks in (1, rows):
                prompt_graphs.forward(*prompt_graphs.shape_for(size, chunks), True)
        decode_graphs = DecodeGraphs(config, model, attention, mirror, GraphPool())
        for size in reversed(decode_graphs.sizes):
            decode_graphs.forward(size)
