"""What work needs at least, in bytes and operations, beside what the device gives at most: achieved GB/s and TFLOP/s.

Counted is what no engine could leave out: every step reads all weights once, a decode reads the keys and values of its
whole context, a weight takes two operations for each token (the output layer only where a token is drawn), and
attention four for each pair of positions, head and element.
"""

import json
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass

from ...core.config import EngineConfig
from ...core.errors import EngineError
from ...core.model_config import ModelConfig
from .workload import Work

_DTYPE_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}


@dataclass(frozen=True, slots=True)
class Ceilings:
    """What a device reaches in a plain copy (bytes read and written) and in a plain matrix product."""

    bytes_per_second: float
    flops: float
    """Operations per second, in the model's dtype."""


@dataclass(frozen=True, slots=True)
class Needs:
    """The least that some work takes."""

    num_bytes: float
    num_flops: float

    def as_dict(self) -> dict[str, float]:
        """For JSON."""
        return {"needed_bytes": self.num_bytes, "needed_flops": self.num_flops}

    def rates(self, seconds: float, ceilings: Ceilings | None) -> tuple[str, str]:
        """GB/s and TFLOP/s as a table shows them, each with its share of the ceiling."""
        bandwidth, flops = self.num_bytes / seconds, self.num_flops / seconds
        of = (None, None) if ceilings is None else (ceilings.bytes_per_second, ceilings.flops)
        return _rate(bandwidth / 1e9, bandwidth, of[0]), _rate(flops / 1e12, flops, of[1])


class ModelNeeds:
    """A model's share in the needs of work."""

    def __init__(self, model: ModelConfig) -> None:
        self._layers = model.num_layers * model.layer_parameters
        self._head = model.vocab_size * model.hidden_size
        self._attention = 4 * model.num_layers * model.num_heads * model.head_dim
        self._kv_bytes = model.kv_bytes_per_token
        # The int8 method rounds the output layer too.
        self.weight_bytes = (self._layers + self._head) * (1 if model.quantization else _DTYPE_BYTES[model.dtype])

    def prefill(self, prompt_lens: tuple[int, ...]) -> Needs:
        """Of prompts up to their first tokens, in one step."""
        return Needs(self.weight_bytes, sum(self._flops(length, 1) for length in prompt_lens))

    def decode_step(self, contexts: list[float]) -> Needs:
        """Of one step that draws a token for each context (tokens, the one that is computed included)."""
        flops = 2.0 * len(contexts) * (self._layers + self._head) + self._attention * sum(contexts)
        return Needs(self.weight_bytes + self._kv_bytes * sum(contexts), flops)

    def whole(self, work: Work, config: EngineConfig) -> Needs:
        """Of all the work, in as few steps as the engine's limits allow."""
        limits = config.scheduler
        tokens = work.prompt_tokens + work.output_tokens - work.num_requests
        steps = max(
            max(work.output_lens),
            -(-work.output_tokens // limits.max_num_seqs),
            -(-tokens // limits.max_num_batched_tokens),
        )
        lens = list(zip(work.prompt_lens, work.output_lens, strict=True))
        context = sum((out - 1) * (prompt + out / 2) for prompt, out in lens)
        num_bytes = steps * self.weight_bytes + self._kv_bytes * context
        return Needs(num_bytes, sum(self._flops(prompt, out) for prompt, out in lens))

    def _flops(self, prompt_len: int, output_len: int) -> float:
        computed = prompt_len + output_len - 1  # the last token drawn is not computed
        pairs = computed * (computed + 1) / 2
        return 2.0 * (computed * self._layers + output_len * self._head) + self._attention * pairs


def measure_ceilings(config: EngineConfig) -> Ceilings:
    """Copies and multiplies for a moment on the engine's device, in a process that gives its memory back."""
    threads = config.device.num_threads or 0
    arguments = [config.device.device, config.model.dtype, str(threads)]
    command = [sys.executable, "-P", "-m", __name__, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise EngineError(
            f"the device's ceilings cannot be measured (--no-ceilings goes without): {done.stderr[-400:]}"
        )
    return Ceilings(*json.loads(done.stdout))


def print_ceilings(ceilings: Ceilings | None) -> None:
    """One line below a table, if there is something to tell."""
    if ceilings is not None:
        copy, product = ceilings.bytes_per_second / 1e9, ceilings.flops / 1e12
        print(f"Shares are of {copy:.3g} GB/s in a copy, {product:.3g} TFLOP/s in a product, measured before.")


def _rate(value: float, rate: float, ceiling: float | None) -> str:
    share = "" if ceiling is None else f" ({100.0 * rate / ceiling:.0f}%)"
    return f"{value:.3g}{share}"


def _probe(device: str, dtype_name: str, threads: int) -> tuple[float, float]:
    """Bytes and operations per second, each the best of some tries."""
    import time

    import torch

    if threads:
        torch.set_num_threads(threads)
    gpu = device == "cuda"
    dtype = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}[dtype_name]

    def best(work: Callable[[], object]) -> float:
        times = []
        for _ in range(8):
            began = time.perf_counter()
            work()
            if gpu:
                torch.cuda.synchronize()
            times.append(time.perf_counter() - began)
        return min(times)

    size = 2**30 if gpu else 2**28  # more than the caches hold
    source = torch.ones(size, dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    width = 8192 if gpu else 1536
    left = torch.randn(width, width, device=device).to(dtype)
    return 2 * size / best(lambda: target.copy_(source)), 2 * width**3 / best(lambda: left @ left)


if __name__ == "__main__":
    print(json.dumps(_probe(sys.argv[1], sys.argv[2], int(sys.argv[3]))))
