"""One rank that runs an encoder: whole prompts in, vectors out, and nothing kept between steps."""

import time
from collections.abc import Callable

import numpy as np
import torch

from ..core.config import EngineConfig
from ..core.errors import ConfigurationError
from ..core.pooling_params import PoolingParams
from ..core.sampling_params import SamplingParams
from ..core.step import Chunk, ModelRunnerOutput, NewRequest, SchedulerOutput
from .attention.encoder_attention import group_sequences
from .loader.loader import load_encoder
from .models.bert import BertModel
from .pending_output import PendingOutput
from .pooling import make_pooling
from .transfer import to_device
from .worker import Worker


class EncoderRunner:
    """Runs one step of an encoder. The scheduler gives it every prompt as a single chunk."""

    def __init__(self, config: EngineConfig, device: torch.device, model: BertModel) -> None:
        self._device = device
        self._model = model
        self._pooling = make_pooling(config.model.pooling.kind)
        self._requests: dict[int, NewRequest] = {}

    @torch.inference_mode()
    def launch(self, output: SchedulerOutput) -> Callable[[], ModelRunnerOutput]:
        """Run whole prompts; the returned function waits for their vectors."""
        for slot in output.released:
            self._requests.pop(slot, None)
            self._pooling.remove(slot)
        for new in output.new:
            self._requests[new.slot] = new
            self._pooling.add(new)
        requests = [self._requests[chunk.slot] for chunk in output.chunks]
        lengths = np.array([len(request.token_ids) for request in requests])
        bounds = np.concatenate(([0], np.cumsum(lengths)))
        ids = np.concatenate([request.token_ids for request in requests])
        positions = np.arange(bounds[-1]) - np.repeat(bounds[:-1], lengths)
        types = positions >= np.repeat([_second_text_at(request) for request in requests], lengths)
        inputs = to_device(np.stack((ids, positions, types)).astype(np.int64), self._device)
        hidden = self._model.forward(inputs[0], inputs[1], inputs[2], group_sequences(lengths, self._device))
        pooled = self._pooling.pool(hidden, bounds, output.chunks)
        if pooled is not None:
            pooled.vectors = self._model.head(pooled.vectors)
        return PendingOutput(output.step, None, [], self._device, pooled=pooled).wait


def _second_text_at(request: NewRequest) -> int:
    """Where token types change from 0 to 1: behind the end where there is only one text."""
    at = None if request.pooling is None else request.pooling.second_text_at
    return len(request.token_ids) if at is None else at


class EncoderWorker(Worker):
    """Loads and runs an encoder. There is no KV cache, so its blocks take no memory."""

    def __init__(self, config: EngineConfig, rank: int) -> None:
        super().__init__(config, rank)
        if config.device.attention_backend not in ("auto", "torch"):
            raise ConfigurationError(
                f"--attention-backend {config.device.attention_backend}: encoders only run with torch's attention"
            )
        # It would make a plan, for a tenth of a second, for every new length of a batch.
        torch.backends.cuda.enable_cudnn_sdp(False)
        self._encoder: BertModel | None = None
        self._encoder_runner: EncoderRunner | None = None

    def load(self) -> dict[str, float]:
        self._encoder = load_encoder(self._config, self._device)
        return {f"worker-{self._rank}: load weights": time.time()}

    def allocate(self, num_blocks: int) -> dict[str, int]:
        """Run the model once, so that the first request finds everything warm. Returns the memory ledger in bytes."""
        assert self._encoder is not None
        self._encoder_runner = EncoderRunner(self._config, self._device, self._encoder)
        length = min(16, self._config.scheduler.max_model_len)
        ids, params = np.zeros(length, np.int32), SamplingParams()
        new = NewRequest(0, "warm-up", ids, length, 0, [0], params, 0, [], [], pooling=PoolingParams())
        none = np.empty(0, dtype=np.int32)
        self._encoder_runner.launch(SchedulerOutput(0, [], [new], [], none, [Chunk(0, length, False)], length))()
        return {"weights": self._encoder.weight_bytes, "kv cache": 0}

    def launch(self, output: SchedulerOutput) -> Callable[[], ModelRunnerOutput]:
        assert self._encoder_runner is not None
        return self._encoder_runner.launch(output)

    def close(self) -> None:
        super().close()
        self._encoder_runner = self._encoder = None
