"""The process that compiles a worker's kernels while everything else of a start goes on."""

import contextlib
import hashlib
import logging
import os
from importlib.util import find_spec
from pathlib import Path

import msgspec

from ..core.config import DECODER_WORKER, EngineConfig
from .child_process import ChildProcess

logger = logging.getLogger("octavo.process")

_CORES_LEFT = 4
"""For the server's own processes."""
_PATIENCE = 30.0
_TILE = 128
"""Tokens of a block that FlashAttention's package, which then takes the prompts, asks for."""


class KernelCompilers:
    """Start at once, if there is a GPU and no trace of an earlier start with the same kernels in Triton's cache.

    What they do is in ``kernel_compilation``. They end with the process that started them at the latest.
    """

    def __init__(self, config: EngineConfig) -> None:
        self._config = config
        self._child: ChildProcess | None = None
        if config.device.device != "cuda" or config.parallel.worker != DECODER_WORKER:
            return
        processes = len(os.sched_getaffinity(0)) - _CORES_LEFT
        if processes < 1 or config.device.attention_backend == "torch" or trace_path(config).exists():
            return
        flash = find_spec("fa3_fwd_interface") is not None and config.device.attention_backend != "triton"
        prompts = not flash or config.cache.block_size % _TILE != 0
        payload = msgspec.msgpack.encode({"config": config, "processes": processes, "prompts": prompts})
        self._child = ChildProcess("kernels", "octavo.executor.kernel_compilation:main", payload)

    def wait(self) -> None:
        """Returns once all are done; if that takes too long they are ended."""
        if self._child is None:
            return
        code = self._child.wait(_PATIENCE)
        self._child.stop(0.0)
        self._child = None
        if code != 0:
            logger.warning("compiling kernels ahead failed (%s): this start takes longer", code)
            return
        trace = trace_path(self._config)
        with contextlib.suppress(OSError):  # then the next start looks through the cache again
            trace.parent.mkdir(parents=True, exist_ok=True)
            trace.touch()


def trace_path(config: EngineConfig) -> Path:
    """The empty file that says, in Triton's cache, that it has the kernels of such an engine."""
    home = Path(os.environ.get("TRITON_HOME") or Path.home())
    cache = Path(os.environ.get("TRITON_CACHE_DIR") or home / ".triton" / "cache")
    model = msgspec.structs.replace(config.model, path="", num_layers=1)
    sizes = [config.cache.block_size, config.scheduler.max_num_seqs]
    ways = [config.device.attention_backend, config.device.cuda_graphs]
    digest = hashlib.sha256(msgspec.msgpack.encode([model, sizes, ways]))
    triton = find_spec("triton")  # not imported: its first lines name the version
    sources = sorted((Path(__file__).parents[1] / "kernels" / "triton").glob("*.py"))
    for path in (*sources, *([triton.origin] if triton is not None and triton.origin else ())):
        digest.update(Path(path).read_bytes())
    return cache / f"octavo-{digest.hexdigest()[:24]}"
