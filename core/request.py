"""One completion, or one vector, on its way through the engine."""

import time
from enum import IntEnum
from typing import NamedTuple

import numpy as np

from .block_hash import block_hashes, root_hash
from .engine_input import EngineCoreRequest
from .kv_cache_block import KVCacheBlock


class RequestStatus(IntEnum):
    """Where a request is. Each one is in exactly one place of the scheduler accordingly."""

    WAITING = 0
    RUNNING = 1
    PREEMPTED = 2  # waiting again, its blocks given to another
    FINISHED_STOPPED = 3
    FINISHED_LENGTH = 4
    FINISHED_ABORTED = 5
    FINISHED_ERROR = 6

    @property
    def finished(self) -> bool:
        return self >= RequestStatus.FINISHED_STOPPED

    @property
    def reason(self) -> str:
        """OpenAI's finish_reason; ``error`` has none there."""
        return {3: "stop", 4: "length", 5: "abort", 6: "error"}[self.value]


class RequestEvent(NamedTuple):
    """Something that happened to a request, and why."""

    time: float
    """Seconds, ``time.time()``."""
    kind: str
    """``queued``, ``refused``, ``scheduled``, ``preempted``, ``finished``."""
    reason: str = ""


class Request:
    """A request's identity, limits, block table and timeline.

    While it runs, its tokens and counters live in the scheduler's ``SlotTable`` under ``slot``; here are only what
    it was asked and what outlives a preemption.
    """

    def __init__(self, source: EngineCoreRequest, block_size: int) -> None:
        prompt = np.frombuffer(source.prompt_token_ids, dtype=np.int32)
        output = np.frombuffer(source.output_token_ids, dtype=np.int32)
        self.source = source
        self.request_id = source.request_id
        self.handle = source.handle
        self.client_index = source.client_index
        self.params = source.params
        self.priority = source.params.priority
        self.pooling = source.pooling
        self.whole_prompt = source.whole_prompt or source.params.prompt_logprobs is not None
        """Every token must be computed for it: what is cached of its prompt does not help."""
        self.num_prompt_tokens = len(prompt)
        self.token_ids = np.concatenate((prompt, output)) if len(output) else prompt
        """int32: prompt and output as far as known when it last left its slot."""
        self.max_total_tokens = source.max_total_tokens
        self.eos_token_ids = frozenset(source.eos_token_ids)
        self.stop_token_ids = self.eos_token_ids | frozenset(source.params.stop_token_ids)
        self.grammar = source.grammar
        self.grammar_ready = source.grammar is None
        """False while the workers compile the grammar; until then the request cannot be admitted."""
        self.holds_grammar = False
        """The workers keep the compiled grammar for this request."""
        self.status = RequestStatus.WAITING
        self.slot = -1
        self.blocks: list[KVCacheBlock] = []
        """The block table."""
        extra = [("salt", source.cache_salt)] if source.cache_salt is not None else []
        self.cache_root = root_hash(extra)
        self.block_hashes = block_hashes(self.cache_root, self.token_ids, block_size)
        """Of the full blocks hashed so far."""
        self.num_named_blocks = 0
        """Blocks of the table, from its front, that were offered to the prefix cache."""
        self.num_preemptions = 0
        self.events: list[RequestEvent] = [RequestEvent(source.arrival_time, "queued")]

    def record(self, kind: str, reason: str = "") -> None:
        """Add to the timeline. A repeated refusal replaces the last one, so that waiting does not fill memory."""
        event = RequestEvent(time.time(), kind, reason)
        if kind == "refused" and self.events[-1].kind == "refused":
            self.events[-1] = event
        else:
            self.events.append(event)
