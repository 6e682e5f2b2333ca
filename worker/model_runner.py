"""Runs one step of the model: diff in, drawn tokens out."""

from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np
import torch

from ..core.config import EngineConfig
from ..core.step import ModelRunnerOutput, NewRequest, PromptLogprobs, SchedulerOutput
from .attention.backend import AttentionBackend
from .grammar_cache import GrammarCache
from .grammar_rows import RowGrammars
from .input_batch import InputBatch, StepInputs
from .logprobs import prompt_logprobs
from .models.causal_lm import CausalLM
from .pending_output import PendingOutput
from .pooling import make_pooling
from .sampler import SamplerOutput, make_sampler
from .sampling_state import SamplingState
from .slot_mirror import SlotMirror

if TYPE_CHECKING:
    from .decode_graphs import DecodeGraphs
    from .prompt_graphs import PromptGraphs

_PROMPT_LOGPROB_ROWS = 128
"""Prompt positions whose logits exist at one time."""


class ModelRunner:
    """Joins the input batch, the model and the sampler."""

    def __init__(
        self,
        config: EngineConfig,
        device: torch.device,
        model: CausalLM,
        attention: AttentionBackend,
        grammars: GrammarCache,
    ) -> None:
        self._device = device
        self._model = model
        self._attention = attention
        self._inputs = InputBatch(config, device)
        self._sampling = SamplingState(
            config.scheduler.max_num_seqs, config.model.vocab_size, config.scheduler.max_model_len, device
        )
        self._sampler = make_sampler(device)
        self._compiled = grammars
        self._grammars = RowGrammars(grammars, config.scheduler.max_num_seqs, config.model.vocab_size, device)
        self._failures: dict[int, str] = {}
        self._wants_prompt_logprobs: dict[int, NewRequest] = {}
        self._pooling = make_pooling(config.model.pooling.kind)
        self._decodes: DecodeGraphs | None = None
        self._prompts: PromptGraphs | None = None

    @torch.inference_mode()
    def launch(self, output: SchedulerOutput) -> Callable[[], ModelRunnerOutput]:
        """Apply the diff, run the model over the step's tokens, draw.

        On a GPU all of it is only launched here; the returned function waits for the copy of what was drawn.
        """
        self._apply(output)
        if self._decodes is not None and not output.chunks and len(self._inputs.decodes) <= self._decodes.largest:
            slots = self._inputs.advance_decodes()
            drawn = self._draw(*self._decodes.run(slots), slots)
            return PendingOutput(output.step, drawn, [], self._device, self._failures).wait
        step = self._inputs.advance(output.chunks)
        every = bool(self._wants_prompt_logprobs) or self._pooling.active
        hidden = self._hidden_states(step, every)
        drawn = None
        if len(step.sampling_slots):
            states = hidden[step.sampling_tokens] if every and step.sampling_tokens is not None else hidden
            drawn = self._draw(self._model.raw_logits(states), step.draw_positions, step.sampling_slots)
        scores = self._prompt_logprobs(hidden, step, output) if self._wants_prompt_logprobs else []
        pooled = None
        if self._pooling.active:
            bounds = step.layout.query_start_loc[step.layout.num_decodes :]
            pooled = self._pooling.pool(hidden, bounds, output.chunks)
        return PendingOutput(output.step, drawn, scores, self._device, self._failures, pooled).wait

    def replay(self, decodes: "DecodeGraphs", prompts: "PromptGraphs") -> None:
        """From here on steps are replayed that are recorded."""
        self._decodes = decodes
        self._prompts = prompts

    @property
    def mirror(self) -> SlotMirror:
        """The device's per-slot state."""
        return self._inputs.mirror

    def release(self, slot: int) -> None:
        """Forget what a slot held."""
        self._sampling.remove(slot)
        self._grammars.remove(slot)
        self._inputs.release(slot)
        self._wants_prompt_logprobs.pop(slot, None)
        self._pooling.remove(slot)

    def _apply(self, output: SchedulerOutput) -> None:
        self._failures = {}
        for slot in output.released:
            self.release(slot)
        for new in output.new:
            prompt, generated = np.split(new.token_ids, [new.num_prompt_tokens])
            self._sampling.add(
                new.slot,
                new.params,
                seed=new.seed,
                prompt_token_ids=prompt,
                output_token_ids=generated,
                # A grammar may be complete before min_tokens; then only its own row knows that the end must come.
                stop_token_ids=new.stop_token_ids if new.grammar is None else [],
                bad_words=new.bad_words,
            )
            self._grammars.add(new)
            if new.params.prompt_logprobs is not None:
                self._wants_prompt_logprobs[new.slot] = new
            if new.pooling is not None:
                self._pooling.add(new)
        for spec in output.released_grammars:
            self._compiled.release(spec)
        self._inputs.apply(output)

    def _hidden_states(self, step: StepInputs, every: bool) -> torch.Tensor:
        """[S, hidden] of the tokens of a step that a draw follows, or of ``every`` token."""
        wanted = None if every else step.sampling_tokens
        hidden = None if self._prompts is None else self._prompts.run(step, wanted)
        if hidden is not None:
            return hidden
        plan = self._attention.plan(step.layout)
        return self._model.forward(step.input_ids, step.layout.positions, self._attention, plan, wanted)

    def _draw(self, logits: torch.Tensor, positions: torch.Tensor, slots: np.ndarray) -> SamplerOutput:
        """Draw a token for each of ``slots`` from logits [S, V]; ``positions`` are those of the tokens drawn."""
        masks = self._grammars.masks(slots) if self._grammars.active else None
        drawn = self._sampler.sample(logits, self._sampling.batch(slots), positions, masks)
        self._inputs.keep_drawn(slots, drawn.token_ids)
        if masks is not None:
            self._grammars.keep_drawn(slots, drawn.token_ids)
            self._failures = masks.failures
        return drawn

    def _prompt_logprobs(self, hidden: torch.Tensor, step: StepInputs, output: SchedulerOutput) -> list[PromptLogprobs]:
        """Of the prompt tokens that follow those computed in this step."""
        entries = []
        layout = step.layout
        for row, chunk in enumerate(output.chunks, layout.num_decodes):
            new = self._wants_prompt_logprobs.get(chunk.slot)
            if new is None:
                continue
            first = int(layout.query_start_loc[row])
            start = int(layout.seq_lens[row]) - chunk.num_tokens + 1  # the hidden state at p is about token p + 1
            targets = new.token_ids[start : min(start + chunk.num_tokens, new.num_prompt_tokens)]
            if len(targets):
                states = hidden[first : first + len(targets)]
                entries.append(self._score(chunk.slot, start, states, targets, new.params.prompt_logprobs or 0))
        return entries

    def _score(self, slot: int, start: int, states: torch.Tensor, targets: np.ndarray, count: int) -> PromptLogprobs:
        ids: list[list[int]] = []
        values: list[list[float]] = []
        ranks: list[int] = []
        wanted = torch.from_numpy(targets.astype(np.int64)).to(states.device)
        for low in range(0, len(targets), _PROMPT_LOGPROB_ROWS):
            logits = self._model.compute_logits(states[low : low + _PROMPT_LOGPROB_ROWS])
            scored = prompt_logprobs(logits, wanted[low : low + _PROMPT_LOGPROB_ROWS], count)
            for row_ids, row_values, rank in scored.compact():
                ids.append(row_ids)
                values.append(row_values)
                ranks.append(rank)
        return PromptLogprobs(slot, start, ids, values, ranks)
