"""The grammars of the requests that run: each one follows its request's output and says which tokens may come next.

A step's masks depend on the tokens that the step before drew. They are made after the step's forward pass was
launched: on a GPU those tokens have long arrived by then, so the host works while the device does.
"""

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from ..core.step import NewRequest
from .grammar_cache import GrammarCache, GrammarError
from .transfer import to_device

if TYPE_CHECKING:
    from llguidance import LLExecutor

    from .grammar_compiler import Matcher

_FEW = 4
"""Up to so many masks are made one after the other; threads cost more."""


@dataclass(slots=True, frozen=True)
class RowMasks:
    """The tokens that may be drawn, for the rows that have a grammar."""

    rows: Tensor
    """int64 [G], on the device."""
    bits: Tensor
    """int32 [G, ceil(V / 32)], on the device; bit t % 32 of word t // 32 is set if token t may come."""
    failures: dict[int, str] = field(default_factory=dict)
    """Rows that cannot go on, and why. Whatever is drawn for them must not be used."""


@dataclass(slots=True, eq=False)
class _Row:
    """One running request's place in its grammar."""

    matcher: "Matcher | None"
    """None: the grammar could not be had at all; ``failure`` says why."""
    num_output: int
    min_tokens: int
    ignore_eos: bool
    stop_ids: np.ndarray
    """int64: every token that ends the request."""
    failure: str = ""

    def take(self, token: int) -> None:
        """A token was drawn."""
        self.num_output += 1
        if self.matcher is not None and not self.failure and not self.matcher.consume_token(token):
            reason = self.matcher.get_error().partition("\n")[0][:200]
            self.failure = f"the grammar cannot be followed past the token {token} that was drawn: {reason}"

    @property
    def delays_end(self) -> bool:
        """True while the request's end tokens are unwanted, as long as there is anything else."""
        return self.ignore_eos or self.num_output < self.min_tokens


class _Drawn:
    """Tokens of the last step's rows on their way to the host."""

    def __init__(self, rows: list[_Row], tokens: Tensor) -> None:
        self._rows = rows
        self._event: torch.cuda.Event | None = None
        if tokens.device.type == "cuda":
            self._tokens = torch.empty(tokens.shape, dtype=tokens.dtype, pin_memory=True)
            self._tokens.copy_(tokens, non_blocking=True)
            self._event = torch.cuda.Event()
            self._event.record()
        else:
            self._tokens = tokens

    def apply(self) -> None:
        """Wait for them and tell the rows."""
        if self._event is not None:
            self._event.synchronize()
        for row, token in zip(self._rows, self._tokens.tolist(), strict=True):
            row.take(token)


class RowGrammars:
    """Grammars by slot."""

    def __init__(self, cache: GrammarCache, num_slots: int, vocab_size: int, device: torch.device) -> None:
        self._cache = cache
        self._device = device
        self._words = -(-vocab_size // 32)
        self._rows: dict[int, _Row] = {}
        self._has_row = np.zeros(num_slots, np.bool_)
        self._drawn: _Drawn | None = None
        self._threads: LLExecutor | None = None

    @property
    def active(self) -> bool:
        """False while no request has a grammar: then nothing here costs anything."""
        return bool(self._rows)

    def add(self, new: NewRequest) -> None:
        """A request got a slot. What it generated before is replayed."""
        if new.grammar is None:
            return
        row = _Row(
            matcher=None,
            num_output=0,
            min_tokens=new.params.min_tokens,
            ignore_eos=new.params.ignore_eos,
            stop_ids=np.array(new.stop_token_ids, np.int64),
        )
        try:
            row.matcher = self._cache.matcher(new.grammar)
        except GrammarError as error:
            row.failure = f"the grammar does not compile: {error}"
        for token in new.token_ids[new.num_prompt_tokens :].tolist():
            row.take(token)
        self._rows[new.slot] = row
        self._has_row[new.slot] = True

    def remove(self, slot: int) -> None:
        """A slot was given back."""
        self._rows.pop(slot, None)
        self._has_row[slot] = False

    def masks(self, slots: np.ndarray) -> RowMasks | None:
        """For the rows of a step, given their slots [S]; None if none of them has a grammar."""
        if self._drawn is not None:
            self._drawn.apply()
            self._drawn = None
        places = np.flatnonzero(self._has_row[slots])
        if not len(places):
            return None
        rows = [self._rows[slot] for slot in slots[places].tolist()]
        bits = torch.empty((len(rows), self._words), dtype=torch.int32, pin_memory=self._device.type == "cuda")
        self._fill([row.matcher for row in rows], bits)
        failures = {}
        host_bits = bits.numpy()
        for index, row in enumerate(rows):
            self._settle(row, host_bits[index])
            if row.failure:
                failures[int(places[index])] = row.failure
        return RowMasks(to_device(places, self._device), bits.to(self._device, non_blocking=True), failures)

    def keep_drawn(self, slots: np.ndarray, token_ids: Tensor) -> None:
        """Remember what was drawn in these slots (device, int64 [S]), to go on from there in the next step."""
        places = np.flatnonzero(self._has_row[slots])
        if len(places):
            rows = [self._rows[slot] for slot in slots[places].tolist()]
            everyone = len(places) == len(slots)
            self._drawn = _Drawn(rows, token_ids if everyone else token_ids[to_device(places, self._device)])

    def _fill(self, matchers: "list[Matcher | None]", bits: Tensor) -> None:
        """Each matcher's mask into its row of ``bits``; rows without one are left undefined."""
        stride = self._words * 4
        pointer = bits.data_ptr()
        live = [(matcher, index) for index, matcher in enumerate(matchers) if matcher is not None]
        live = [(matcher, index) for matcher, index in live if not matcher.is_error()]
        if len(live) > _FEW:
            if self._threads is None:
                from llguidance import LLExecutor

                self._threads = LLExecutor()
            self._threads.unsafe_compute_mask_ptr(live, pointer, stride, len(matchers))
        else:
            for matcher, index in live:
                matcher.unsafe_compute_mask_ptr(pointer + index * stride, stride)

    def _settle(self, row: _Row, bits: np.ndarray) -> None:
        """Find out whether the row can go on, and take out end tokens that must not come yet."""
        matcher = row.matcher
        if not row.failure and matcher is not None and matcher.is_error():
            row.failure = f"the grammar cannot be followed any further: {matcher.get_error()[:200]}"
        if not row.failure and not bits.any():
            row.failure = "no token of the vocabulary goes on as the grammar demands"
        if row.failure:
            bits[:] = -1  # whatever it draws is dropped; a row without any token would be no row for the sampler
        elif row.delays_end and len(row.stop_ids):
            kept = bits.copy()
            np.bitwise_and.at(bits, row.stop_ids >> 5, ~(np.int32(1) << (row.stop_ids & 31).astype(np.int32)))
            if not bits.any():
                bits[:] = kept  # the grammar is complete: there is nothing but the end
