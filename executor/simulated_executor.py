"""A worker without a model: real block tables, and tokens that depend on what the cache holds.

Each "key" is a number made from one token and its position. A step writes the numbers of its tokens where the block
table says, then reads the numbers of the whole context through the block table, as attention would; the token drawn
is a function of their sum, the seed and the position. A block lost, shared wrongly, freed too early or filled with
other tokens changes the tokens that come out, so comparing with a lone run checks the whole cache management.
"""

from concurrent.futures import Future
from typing import Any

import numpy as np

from ..core.config import EngineConfig
from ..core.step import Chunk, ModelRunnerOutput, NewRequest, PooledVector, SchedulerOutput
from .executor import Executor, StepFuture

_MIX = np.uint64(0x9E3779B97F4A7C15)


def _mix(values: np.ndarray) -> np.ndarray:
    """A 64-bit finalizer; uint64 to uint64."""
    values = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return values ^ (values >> np.uint64(31))


def context_keys(token_ids: np.ndarray, start: int) -> np.ndarray:
    """The "keys" of tokens at positions from ``start`` on."""
    positions = np.arange(start, start + len(token_ids), dtype=np.uint64)
    return _mix(token_ids.astype(np.uint64) * _MIX + positions)


def draw_token(keys: np.ndarray, seed: int, vocab_size: int) -> int:
    """The token that follows a context with these keys."""
    total = keys.sum(dtype=np.uint64, keepdims=True)
    mixed = _mix(total + np.array([seed % 2**64], dtype=np.uint64) * _MIX)
    return int(mixed[0] % np.uint64(vocab_size))


class _Slot:
    def __init__(self, new: NewRequest) -> None:
        self.tokens = new.token_ids.tolist()
        self.num_computed = new.num_computed_tokens
        self.blocks = list(new.block_ids)
        self.seed = new.seed
        self.stop = set(new.stop_token_ids)
        self.pools = new.pooling is not None
        self.first_stop = new.num_prompt_tokens + new.params.min_tokens


class SimulatedExecutor(Executor):
    """Runs steps at once, in no time."""

    def __init__(self, config: EngineConfig) -> None:
        super().__init__(config)
        self._slots: dict[int, _Slot] = {}
        self._decodes = np.empty(0, dtype=np.int32)
        self._block_size = config.cache.block_size
        self._keys = np.zeros((config.cache.num_blocks or 0, self._block_size), dtype=np.uint64)

    def call(self, method: str, *arguments: Any) -> list[Any]:
        return [{"num_blocks": len(self._keys), "load": {}, "allocate": {}, "start_grammar": ""}[method]]

    def execute(self, output: SchedulerOutput) -> StepFuture:
        for slot in output.released:
            del self._slots[slot]
        for new in output.new:
            assert new.slot not in self._slots, f"slot {new.slot} was given away twice"
            self._slots[new.slot] = _Slot(new)
        for slot, block_ids in output.blocks:
            self._slots[slot].blocks += block_ids
        if output.decodes is not None:
            self._decodes = output.decodes
        work = [Chunk(slot, 1, True) for slot in self._decodes.tolist()] + output.chunks
        assert sum(chunk.num_tokens for chunk in work) == output.num_tokens, "the step's token count is wrong"
        # As in attention: the whole batch is written before anything is read.
        for chunk in work:
            self._write(chunk)
        drawn = [self._read(chunk) for chunk in work]
        pooled = [self._pool(chunk.slot) for chunk in output.chunks if self._complete(chunk.slot)]
        future: Future[ModelRunnerOutput] = Future()
        tokens = np.array([token for token in drawn if token is not None], dtype=np.int32)
        future.set_result(ModelRunnerOutput(output.step, tokens, pooled=pooled))
        return future

    def _write(self, chunk: Chunk) -> None:
        slot = self._slots[chunk.slot]
        start, end = slot.num_computed, slot.num_computed + chunk.num_tokens
        assert end <= len(slot.tokens), f"slot {chunk.slot} computes tokens that nobody knows"
        for position, key in enumerate(context_keys(np.array(slot.tokens[start:end]), start).tolist(), start):
            block = slot.blocks[position // self._block_size]
            assert block != 0, "the null block is written"
            self._keys[block, position % self._block_size] = key
        slot.num_computed = end

    def _complete(self, slot: int) -> bool:
        return self._slots[slot].pools and self._slots[slot].num_computed == len(self._slots[slot].tokens)

    def _pool(self, slot: int) -> PooledVector:
        """The sum of the context's keys, as the cache holds them."""
        keys = self._keys[self._slots[slot].blocks].reshape(-1)[: self._slots[slot].num_computed]
        return PooledVector(slot, keys.sum(dtype=np.uint64).tobytes())

    def _read(self, chunk: Chunk) -> int | None:
        slot = self._slots[chunk.slot]
        if not chunk.samples:
            return None
        assert slot.num_computed == len(slot.tokens), f"slot {chunk.slot} draws before all its tokens are computed"
        keys = self._keys[slot.blocks].reshape(-1)[: slot.num_computed]
        token = draw_token(keys, slot.seed, self.config.model.vocab_size)
        while token in slot.stop and len(slot.tokens) < slot.first_stop:
            token = (token + 1) % self.config.model.vocab_size
        slot.tokens.append(token)
        return token

    def shutdown(self) -> None:
        self._slots.clear()
