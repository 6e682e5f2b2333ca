"""What a step drew becomes known tokens, ends of requests, and one batch of deltas for each client."""

import time
from typing import TYPE_CHECKING

import numpy as np

from .engine_output import EngineCoreOutputs, Finished, PooledDelta, PromptLogprobsDelta, TokenLogprobsDelta
from .request import Request, RequestStatus
from .stats import SchedulerStats
from .step import ModelRunnerOutput

if TYPE_CHECKING:
    from .scheduler import Batch, Scheduler


class StepResults:
    """Applies results to a scheduler's state, in the order in which the steps were scheduled."""

    def __init__(self, scheduler: "Scheduler", num_clients: int) -> None:
        self._scheduler = scheduler
        self._num_clients = num_clients

    def update(self, output: ModelRunnerOutput) -> list[EngineCoreOutputs]:
        """Take in the results of the oldest batch in flight. Returns one message for each client, by index."""
        scheduler = self._scheduler
        slots = scheduler.slots
        batch = scheduler.batch_done()
        assert batch.step == output.step, f"results of step {output.step} came when step {batch.step} was due"
        failed = self._fail_rows(output, batch) if output.failures else []
        alive = slots.epoch[batch.rows] == batch.epochs
        rows, tokens = batch.rows, output.token_ids
        if not alive.all():
            rows, tokens = rows[alive], tokens[alive]
        slots.token_ids[rows, slots.num_tokens[rows]] = tokens
        slots.num_tokens[rows] += 1
        slots.num_in_flight[rows] -= 1

        messages = self._messages(batch, rows, tokens)
        for client, finished in failed:
            messages[client].finished.append(finished)
        if output.logprobs:
            self._add_logprobs(messages, output, alive, slots.client[rows])
        if output.prompt_logprobs:
            self._add_prompt_logprobs(messages, output, batch)
        if output.pooled:
            self._end_pooled(output, batch, messages)
        ends = slots.watched[tokens] | (slots.num_tokens[rows] >= slots.max_total[rows])
        for row in np.flatnonzero(ends).tolist():
            self._end(int(rows[row]), int(tokens[row]), messages)
        self._add_stats(messages, batch, len(tokens))
        return messages

    def _fail_rows(self, output: ModelRunnerOutput, batch: "Batch") -> list[tuple[int, Finished]]:
        """End the requests that cannot go on, before their rows count for anything. Client and message of each."""
        scheduler = self._scheduler
        ended = []
        for failure in output.failures:
            slot = int(batch.rows[failure.row])
            if scheduler.slots.epoch[slot] != batch.epochs[failure.row]:
                continue
            request = scheduler.slots.request_at(slot)
            scheduler.finish(request, RequestStatus.FINISHED_ERROR)
            finished = Finished(request.handle, "error", None, request.num_preemptions, failure.message)
            ended.append((request.client_index, finished))
        return ended

    def _messages(self, batch: "Batch", rows: np.ndarray, tokens: np.ndarray) -> list[EngineCoreOutputs]:
        now = time.time()
        handles = self._scheduler.slots.handle[rows]
        if self._num_clients == 1:
            messages = [EngineCoreOutputs(now, handles.tobytes(), tokens.tobytes())]
        else:
            clients = self._scheduler.slots.client[rows]
            messages = [
                EngineCoreOutputs(now, handles[clients == client].tobytes(), tokens[clients == client].tobytes())
                for client in range(self._num_clients)
            ]
        for client, started in batch.started:
            messages[client].started.append(started)
        return messages

    def _end(self, slot: int, token: int, messages: list[EngineCoreOutputs]) -> None:
        """End the request if this token, or its length, is its end."""
        slots = self._scheduler.slots
        request = slots.request_at(slot)
        num_output = int(slots.num_tokens[slot]) - request.num_prompt_tokens
        stop_token = None
        # With a grammar the worker sees to min_tokens: an end that comes too early is one that the grammar demands.
        long_enough = num_output >= request.params.min_tokens or request.grammar is not None
        if token in request.stop_token_ids and long_enough:
            status = RequestStatus.FINISHED_STOPPED
            stop_token = token if token in request.params.stop_token_ids else None
        elif slots.num_tokens[slot] >= slots.max_total[slot]:
            status = RequestStatus.FINISHED_LENGTH
        else:
            return
        self._scheduler.finish(request, status)
        finished = Finished(request.handle, status.reason, stop_token, request.num_preemptions)
        messages[request.client_index].finished.append(finished)

    def _end_pooled(self, output: ModelRunnerOutput, batch: "Batch", messages: list[EngineCoreOutputs]) -> None:
        """A vector is all that its request wants. The request may be gone, and its slot another's by now."""
        owners: dict[int, Request] = dict(batch.chunks)
        for entry in output.pooled:
            request = owners[entry.slot]
            if self._scheduler.pooling.get(entry.slot) is not request:
                continue
            self._scheduler.finish(request, RequestStatus.FINISHED_STOPPED)
            message = messages[request.client_index]
            message.pooled.append(PooledDelta(request.handle, entry.values))
            message.finished.append(Finished(request.handle, "stop", None, request.num_preemptions))

    def _add_logprobs(
        self, messages: list[EngineCoreOutputs], output: ModelRunnerOutput, alive: np.ndarray, clients: np.ndarray
    ) -> None:
        # A row's place among the deltas of its own client, once dropped rows are gone.
        kept = np.cumsum(alive) - 1
        place = np.empty(len(clients), dtype=np.int64)
        for client in range(self._num_clients):
            mine = clients == client
            place[mine] = np.arange(int(mine.sum()))
        for entry in output.logprobs:
            if alive[entry.row]:
                row = kept[entry.row]
                delta = TokenLogprobsDelta(int(place[row]), entry.token_ids, entry.logprobs, entry.rank)
                messages[clients[row]].logprobs.append(delta)

    def _add_prompt_logprobs(
        self, messages: list[EngineCoreOutputs], output: ModelRunnerOutput, batch: "Batch"
    ) -> None:
        owners: dict[int, Request] = dict(batch.chunks)
        for entry in output.prompt_logprobs:
            request = owners[entry.slot]
            if request.status is RequestStatus.RUNNING and request.slot == entry.slot:
                delta = PromptLogprobsDelta(request.handle, entry.start, entry.token_ids, entry.logprobs, entry.ranks)
                messages[request.client_index].prompt_logprobs.append(delta)

    def _add_stats(self, messages: list[EngineCoreOutputs], batch: "Batch", num_drawn: int) -> None:
        # To one client alone: what several count together, one of them must count.
        messages[0].stats = self.stats(batch.step, batch.num_prompt_tokens, num_drawn, time.perf_counter() - batch.time)

    def stats(self, step: int, num_prompt: int = 0, num_drawn: int = 0, seconds: float = 0.0) -> SchedulerStats:
        """The scheduler's state now, and what the given step did."""
        scheduler = self._scheduler
        return SchedulerStats(
            step=step,
            num_running=scheduler.num_running,
            num_waiting=len(scheduler.waiting) + len(scheduler.compiling),
            num_free_blocks=scheduler.kv.num_free,
            num_blocks=scheduler.kv.pool.num_usable,
            num_prompt_tokens=num_prompt,
            num_generated_tokens=num_drawn,
            num_preemptions=scheduler.num_preemptions,
            prefix_queries=scheduler.kv.prefix_queries,
            prefix_hits=scheduler.kv.prefix_hits,
            step_seconds=seconds,
        )
