"""What a step drew, on its way from the device to the host."""

import numpy as np
import torch

from ..core.step import ModelRunnerOutput, PooledVector, PromptLogprobs, RowFailure, RowLogprobs
from .logprobs import LogprobTensors
from .pooling import PooledRows
from .sampler import SamplerOutput


class PendingOutput:
    """Starts the copies when it is made, so that they run behind the step and beside the next; ``wait`` ends them."""

    __slots__ = ("_event", "_failures", "_logprobs", "_pooled", "_prompt_logprobs", "_step", "_tokens")

    def __init__(
        self,
        step: int,
        drawn: SamplerOutput | None,
        prompt_logprobs: list[PromptLogprobs],
        device: torch.device,
        failures: dict[int, str] | None = None,
        pooled: PooledRows | None = None,
    ) -> None:
        self._step = step
        self._failures = [RowFailure(row, message) for row, message in (failures or {}).items()]
        self._prompt_logprobs = prompt_logprobs
        self._tokens: torch.Tensor | None = None
        self._logprobs: LogprobTensors | None = None
        self._event: torch.cuda.Event | None = None
        on_gpu = device.type == "cuda"
        if drawn is not None:
            tokens = drawn.token_ids.to(torch.int32)
            self._tokens = _pinned_copy(tokens) if on_gpu else tokens
            if drawn.logprobs is not None:
                self._logprobs = drawn.logprobs.to_host(non_blocking=on_gpu)
        self._pooled = pooled
        if pooled is not None and on_gpu:
            self._pooled = PooledRows(pooled.slots, _pinned_copy(pooled.vectors))
        if on_gpu:
            self._event = torch.cuda.Event()
            self._event.record()

    def wait(self) -> ModelRunnerOutput:
        """Block until the step is done."""
        if self._event is not None:
            self._event.synchronize()
        tokens = np.empty(0, dtype=np.int32) if self._tokens is None else self._tokens.numpy()
        logprobs = [] if self._logprobs is None else _row_logprobs(self._logprobs)
        pooled = [] if self._pooled is None else _pooled_vectors(self._pooled)
        return ModelRunnerOutput(self._step, tokens, logprobs, self._prompt_logprobs, self._failures, pooled)


def _pinned_copy(tensor: torch.Tensor) -> torch.Tensor:
    copy = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True)
    return copy.copy_(tensor, non_blocking=True)


def _pooled_vectors(rows: PooledRows) -> list[PooledVector]:
    vectors = rows.vectors.numpy()
    return [PooledVector(slot, vector.tobytes()) for slot, vector in zip(rows.slots, vectors, strict=True)]


def _row_logprobs(tensors: LogprobTensors) -> list[RowLogprobs]:
    return [
        RowLogprobs(row, ids, values, rank)
        for row, (ids, values, rank) in zip(tensors.rows.tolist(), tensors.compact(), strict=True)
    ]
