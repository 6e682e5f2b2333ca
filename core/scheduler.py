"""Decides, step by step, which tokens of which requests are computed.

There is one idea: each request has tokens that are known (or being drawn) and tokens that are computed, and a step
hands out a budget of tokens to close the gaps. A decode has a gap of one, a prompt a wide one that may be closed in
chunks, a prefix hit narrows it, a preemption opens it again.

Running requests that decode are one array of slots. A step in which nothing happens to them is a few operations on
that array, whatever its length; Python objects are visited only where something happens: an arrival, an end, a block
border, a preemption.

Steps may overlap: ``schedule()`` can be called for step n+1 before ``update()`` has had the results of step n. Tokens
drawn by steps in flight are counted, not known; a result that comes for a request which is gone is dropped.
"""

import time
from collections import deque
from dataclasses import dataclass, field

import numpy as np

from .config import EngineConfig
from .decision_log import DecisionLog, LoggedDecisions
from .engine_output import EngineCoreOutputs, Started
from .grammar import GrammarSpec
from .integrity import check_integrity
from .kv_cache_block import KVCacheBlock
from .kv_cache_manager import KVCacheManager
from .request import Request, RequestStatus
from .request_queue import RequestQueue
from .slot_table import SlotTable
from .stats import SchedulerStats
from .step import Chunk, ModelRunnerOutput, NewRequest, SchedulerOutput
from .step_results import StepResults

_NO_SLOTS = np.empty(0, dtype=np.int64)


@dataclass(slots=True)
class _Prefill:
    """A request's share of the step being put together."""

    request: Request
    num_tokens: int


@dataclass(slots=True)
class _Plan:
    """The step being put together."""

    budget: int
    prefills: list[_Prefill] = field(default_factory=list)
    new: list[NewRequest] = field(default_factory=list)
    started: list[tuple[int, Started]] = field(default_factory=list)
    blocks: dict[int, list[int]] = field(default_factory=dict)
    preempted: bool = False
    num_claims: int = 0
    """Requests that sit this step out, because a block comes back to them when a batch in flight is done."""


@dataclass(slots=True)
class Batch:
    """A step in flight: what ``update`` must know to make sense of its results."""

    step: int
    rows: np.ndarray
    """Slots that draw a token, in the order of the results."""
    epochs: np.ndarray
    """The slots' epochs when it was scheduled."""
    chunks: list[tuple[int, Request]]
    """Slots with a chunk, and whose it was."""
    started: list[tuple[int, Started]]
    """With the client whose request it is."""
    num_prompt_tokens: int
    time: float


class Scheduler:
    """Owns the waiting queue, the running requests and the KV cache's bookkeeping. Not thread-safe."""

    def __init__(self, config: EngineConfig, num_clients: int = 1) -> None:
        self.config = config.scheduler
        self.kv = KVCacheManager(config.cache)
        self.slots = SlotTable(self.config.max_num_seqs, self.config.max_model_len, config.model.vocab_size)
        self.waiting = RequestQueue(by_priority=self.config.policy == "priority")
        self.prefilling: list[Request] = []
        """Running requests with known tokens left to compute, in order of admission."""
        self.decoding = _NO_SLOTS
        """Slots of running requests that need one token a step, those with the longest context first."""
        self.pooling: dict[int, Request] = {}
        """Running requests by slot whose vector comes with a batch in flight: there is nothing left to compute."""
        self.in_flight: deque[Batch] = deque()
        self.completed_step = 0
        self.num_preemptions = 0
        self._requests: dict[tuple[int, int], Request] = {}
        self.compiling: dict[int, Request] = {}
        """Requests whose grammar is not ready, by ``id``: they join the queue when it is."""
        self._released_grammars: list[GrammarSpec] = []
        self._step = 0
        self._released: list[int] = []
        self._last_rows: np.ndarray | None = None
        self._log = LoggedDecisions() if self.config.log_decisions else DecisionLog()
        self._results = StepResults(self, num_clients)

    # Requests come and go.

    @property
    def num_running(self) -> int:
        """Requests that have a slot."""
        return len(self.decoding) + len(self.prefilling) + len(self.pooling)

    @property
    def has_requests(self) -> bool:
        """True while a step can do something: a request waits for more than its grammar, or a batch is in flight."""
        return len(self._requests) > len(self.compiling) or bool(self.in_flight)

    @property
    def requests(self) -> list[Request]:
        """All unfinished requests."""
        return list(self._requests.values())

    def add_request(self, request: Request) -> bool:
        """Queue a request. False if it is known: then nothing happens. Its limits were checked at the door."""
        if self._requests.setdefault((request.client_index, request.handle), request) is not request:
            return False
        if request.grammar_ready:
            self.waiting.add(request)
        else:
            self.compiling[id(request)] = request
            self._note(request, "refused", "grammar compiling")
        return True

    def hold_grammar(self, request: Request) -> None:
        """The workers hold the request's grammar: from here on its end must be told to them."""
        request.holds_grammar = True
        if request.status.finished:
            self._release_grammar(request)

    def _release_grammar(self, request: Request) -> None:
        if request.holds_grammar and request.grammar is not None:
            request.holds_grammar = False
            self._released_grammars.append(request.grammar)

    def grammar_ready(self, request: Request) -> None:
        """The workers can follow the request's grammar now. Nothing happens if it is gone."""
        if self.compiling.pop(id(request), None) is not None:
            request.grammar_ready = True
            self.waiting.add(request)

    def abort(self, client_index: int, handle: int) -> bool:
        """Stop a request wherever it is. False if it is not known (any more)."""
        request = self._requests.get((client_index, handle))
        if request is None:
            return False
        self.finish(request, RequestStatus.FINISHED_ABORTED)
        return True

    def finish(self, request: Request, status: RequestStatus) -> None:
        """End a request wherever it is, and free all that it holds."""
        if request.status is RequestStatus.RUNNING:
            self._leave_slot(request)
        elif self.compiling.pop(id(request), None) is None:
            self.waiting.remove(request)
        self._release_grammar(request)
        request.status = status
        del self._requests[request.client_index, request.handle]
        self._note(request, "finished", status.reason)

    def _leave_slot(self, request: Request) -> None:
        slot = request.slot
        if request in self.prefilling:
            self.prefilling.remove(request)
        elif self.pooling.pop(slot, None) is None:
            self.decoding = self.decoding[self.decoding != slot]
        num_computed = int(self.slots.num_computed[slot])
        self.kv.name_full_blocks(request, self.slots.known_tokens(slot), num_computed)
        last_step = int(self.slots.last_step[slot])
        self.kv.release(request, last_step if last_step > self.completed_step else None)
        self.slots.vacate(request)
        self._released.append(slot)

    # One step is put together: running requests first, then waiting ones.

    def schedule(self) -> SchedulerOutput | None:
        """The next step's work, or None if there is nothing to compute now."""
        plan = _Plan(self.config.max_num_batched_tokens)
        rows = _NO_SLOTS if self._head_needs_whole_step() else self._schedule_decodes(plan)
        plan.budget -= len(rows)
        self._schedule_prefills(plan)
        if not plan.preempted:
            self._admit_waiting(plan)
        self._spread_leftover(plan)
        if not len(rows) and not plan.prefills:
            return None
        return self._commit(plan, rows)

    def _schedule_decodes(self, plan: _Plan) -> np.ndarray:
        """Slots that decode in this step, each with a block for its token."""
        slots, rows = self.slots, self.decoding
        # The last token a request may have can be in flight already; then there is nothing left to compute.
        unfinished = slots.num_tokens[rows] + slots.num_in_flight[rows] < slots.max_total[rows]
        if not unfinished.all():
            rows = rows[unfinished]
        at_border = rows[slots.num_computed[rows] >= slots.capacity[rows]]
        if not len(at_border):
            return rows
        left_out = [slot for slot in at_border.tolist() if not self._grow(slot, plan)]
        if plan.preempted or left_out:
            rows = rows[np.isin(rows, self.decoding) & ~np.isin(rows, left_out)]
        return rows

    def _grow(self, slot: int, plan: _Plan) -> bool:
        """One more block for the request in this slot. False if it cannot run in this step."""
        request = self.slots.requests[slot]
        if request is None:
            return False  # preempted a moment ago, for another
        self.kv.name_full_blocks(request, self.slots.known_tokens(slot), int(self.slots.num_computed[slot]))
        while self.kv.num_free == 0:
            if self.kv.num_retiring > plan.num_claims:
                plan.num_claims += 1
                return False
            victim = self._choose_victim()
            self._preempt(victim, plan, f"{request.request_id} needs 1 block, 0 free")
            if victim is request:
                return False
        plan.blocks[slot] = [self.kv.grow(request).block_id]
        self.slots.capacity[slot] += self.kv.block_size
        return True

    def _choose_victim(self) -> Request:
        """Of the running requests, or those with the lowest priority, the one that loses least computed work."""
        slots = np.concatenate((self.decoding, [request.slot for request in self.prefilling])).astype(np.int64)
        if self.config.policy == "priority":
            priority = self.slots.priority[slots]
            slots = slots[priority == priority.max()]
        candidates = slots[::-1]  # of equals, the one admitted last
        return self.slots.request_at(candidates[self.slots.num_computed[candidates].argmin()])

    def _preempt(self, request: Request, plan: _Plan, reason: str) -> None:
        plan.blocks.pop(request.slot, None)
        plan.preempted = True
        self._leave_slot(request)
        request.status = RequestStatus.PREEMPTED
        request.num_preemptions += 1
        self.num_preemptions += 1
        self._note(request, "preempted", reason)
        self.waiting.put_back(request)

    def _schedule_prefills(self, plan: _Plan) -> None:
        for index, request in enumerate(self.prefilling):
            if plan.budget == 0:
                return
            others = index + 1 < len(self.prefilling) or len(self.waiting) > 0
            self._give(plan, request, others)

    def _give(self, plan: _Plan, request: Request, others: bool) -> None:
        """Give a request its share of the budget.

        While others wait for theirs, one prompt takes at most half of what is left, so that a short prompt behind a
        long one gets its first token before the long one is through. Nothing is lost: leftovers are spread at the end.
        """
        share = (plan.budget + 1) // 2 if others and self.config.enable_chunked_prefill else plan.budget
        slot = request.slot
        remaining = int(self.slots.num_tokens[slot] - self.slots.num_computed[slot])
        prefill = _Prefill(request, min(remaining, share))
        plan.prefills.append(prefill)
        plan.budget -= prefill.num_tokens
        # Named before it is computed: whoever hits these blocks in this step reads them after they are written,
        # because attention writes the keys and values of the whole batch before it reads any.
        self.kv.name_full_blocks(
            request, self.slots.known_tokens(slot), int(self.slots.num_computed[slot]) + prefill.num_tokens
        )

    def _spread_leftover(self, plan: _Plan) -> None:
        for prefill in plan.prefills:
            if plan.budget == 0:
                return
            slot = prefill.request.slot
            remaining = int(self.slots.num_tokens[slot] - self.slots.num_computed[slot]) - prefill.num_tokens
            extra = min(remaining, plan.budget)
            prefill.num_tokens += extra
            plan.budget -= extra

    def _admit_waiting(self, plan: _Plan) -> None:
        while self.waiting and plan.budget > 0:
            request = self.waiting.peek()
            if self.slots.num_free == 0:
                self._note(request, "refused", f"sequence limit: {self.config.max_num_seqs} running")
                return
            prefix = self.kv.find_prefix(request)
            if (missing := self.kv.shortage(request, prefix)) > 0:
                free = self.kv.num_free
                self._note(request, "refused", f"needs {missing + free} blocks, {free} free")
                return
            remaining = len(request.token_ids) - len(prefix) * self.kv.block_size
            if not self.config.enable_chunked_prefill and remaining > plan.budget:
                self._note(request, "refused", f"token budget: needs {remaining} tokens, {plan.budget} left")
                return
            self.waiting.pop()
            self._admit(request, prefix, plan)
            self._give(plan, request, others=len(self.waiting) > 0)

    def _note(self, request: Request, kind: str, reason: str) -> None:
        request.record(kind, reason)
        self._log.event(request, kind, reason)

    def _admit(self, request: Request, prefix: list[KVCacheBlock], plan: _Plan) -> None:
        num_cached = len(prefix) * self.kv.block_size
        self.kv.admit(request, prefix)
        slot = self.slots.occupy(request, num_cached, len(request.blocks) * self.kv.block_size)
        request.status = RequestStatus.RUNNING
        self._note(request, "scheduled", f"{num_cached} of {len(request.token_ids)} tokens cached")
        self.prefilling.append(request)
        started = Started(request.handle, request.events[-1].time, num_cached)
        plan.started.append((request.client_index, started))
        plan.new.append(
            NewRequest(
                slot=slot,
                request_id=request.request_id,
                token_ids=request.token_ids,
                num_prompt_tokens=request.num_prompt_tokens,
                num_computed_tokens=num_cached,
                block_ids=[block.block_id for block in request.blocks],
                params=request.params,
                seed=request.source.seed,
                stop_token_ids=sorted(request.stop_token_ids),
                bad_words=request.source.bad_words,
                pooling=request.pooling,
                grammar=request.grammar,
            )
        )

    def _head_needs_whole_step(self) -> bool:
        """Without chunked prefill a long prompt may not fit beside the decodes: then they sit one step out."""
        if self.config.enable_chunked_prefill or not self.waiting or self.slots.num_free == 0:
            return False
        head = self.waiting.peek()
        beside = self.config.max_num_batched_tokens - len(self.decoding)
        return len(head.token_ids) > beside and self.kv.shortage(head, self.kv.find_prefix(head)) <= 0

    def _commit(self, plan: _Plan, decodes: np.ndarray) -> SchedulerOutput:
        """From here on the step counts as computed; its results come later."""
        self._step += 1
        slots = self.slots
        slots.num_computed[decodes] += 1
        chunks, sampling = self._commit_prefills(plan)
        rows = np.concatenate((decodes, sampling)) if sampling else decodes
        slots.num_in_flight[rows] += 1
        slots.last_step[decodes] = self._step
        batch = Batch(
            step=self._step,
            rows=rows,
            epochs=slots.epoch[rows],
            chunks=[(prefill.request.slot, prefill.request) for prefill in plan.prefills],
            started=plan.started,
            num_prompt_tokens=sum(prefill.num_tokens for prefill in plan.prefills),
            time=time.perf_counter(),
        )
        self.in_flight.append(batch)
        same = self._last_rows is not None and np.array_equal(decodes, self._last_rows)
        self._last_rows = decodes
        output = SchedulerOutput(
            step=self._step,
            released=self._released,
            new=plan.new,
            blocks=list(plan.blocks.items()),
            decodes=None if same else decodes.astype(np.int32),
            chunks=chunks,
            num_tokens=len(decodes) + batch.num_prompt_tokens,
            released_grammars=self._released_grammars,
        )
        self._released = []
        self._released_grammars = []
        self._log.step(output, len(decodes), len(self.waiting), self.kv.num_free)
        if self.config.check_integrity:
            self.check_integrity()
        return output

    def _commit_prefills(self, plan: _Plan) -> tuple[list[Chunk], list[int]]:
        """The step's chunks, and the slots of those that draw a token and decode from the next step on."""
        slots = self.slots
        chunks: list[Chunk] = []
        sampling: list[int] = []
        for prefill in plan.prefills:
            slot = prefill.request.slot
            slots.num_computed[slot] += prefill.num_tokens
            slots.last_step[slot] = self._step
            self.kv.name_full_blocks(prefill.request, slots.known_tokens(slot), int(slots.num_computed[slot]))
            complete = bool(slots.num_computed[slot] == slots.num_tokens[slot])
            samples = complete and prefill.request.pooling is None
            chunks.append(Chunk(slot, prefill.num_tokens, samples))
            if complete:
                self.prefilling.remove(prefill.request)
            if samples:
                sampling.append(slot)
            elif complete:
                self.pooling[slot] = prefill.request
        if sampling:
            joined = np.concatenate((self.decoding, np.array(sampling, dtype=np.int64)))
            # Longest first, of equals in the order of their admission: a kernel that takes row after row ends evenly.
            self.decoding = joined[np.argsort(-slots.num_computed[joined], kind="stable")]
        return chunks, sampling

    # Its results arrive.

    def update(self, output: ModelRunnerOutput) -> list[EngineCoreOutputs]:
        """Take in the results of the oldest batch in flight. Returns one message for each client, by its index."""
        messages = self._results.update(output)
        if self.config.check_integrity:
            self.check_integrity()
        return messages

    def batch_done(self) -> Batch:
        """The oldest batch in flight came back from the device: blocks that waited for it are free."""
        batch = self.in_flight.popleft()
        self.completed_step = batch.step
        self.kv.step_done(batch.step)
        return batch

    def stats(self) -> SchedulerStats:
        """The state now, outside of any step."""
        return self._results.stats(self.completed_step)

    def check_integrity(self) -> None:
        """Assert every invariant of the scheduler and the KV cache."""
        check_integrity(self)
