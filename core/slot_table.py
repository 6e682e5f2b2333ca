"""State of the requests that run, as arrays with one stable slot for each request.

Work on many requests is a handful of array operations however many they are; a Python object is visited only when
something happens to it. A request keeps its slot until it ends or is preempted.
"""

import numpy as np

from .request import Request


class SlotTable:
    """Arrays over slots. Entries of a free slot mean nothing."""

    def __init__(self, num_slots: int, max_model_len: int, vocab_size: int) -> None:
        self.requests: list[Request | None] = [None] * num_slots
        self.token_ids = np.empty((num_slots, max_model_len), dtype=np.int32)
        """Known tokens, prompt then output. Untouched rows take no memory."""
        self.num_tokens = np.zeros(num_slots, dtype=np.int64)
        """Known tokens."""
        self.num_computed = np.zeros(num_slots, dtype=np.int64)
        """Tokens whose keys and values are computed once all scheduled steps are done."""
        self.num_in_flight = np.zeros(num_slots, dtype=np.int64)
        """Tokens drawn by steps in flight, not known yet."""
        self.capacity = np.zeros(num_slots, dtype=np.int64)
        """Tokens that the block table holds."""
        self.max_total = np.zeros(num_slots, dtype=np.int64)
        self.priority = np.zeros(num_slots, dtype=np.int64)
        self.handle = np.zeros(num_slots, dtype=np.int32)
        self.client = np.zeros(num_slots, dtype=np.int32)
        self.last_step = np.zeros(num_slots, dtype=np.int64)
        """The last step that computed something for this slot."""
        self.epoch = np.zeros(num_slots, dtype=np.int64)
        """Goes up when the slot changes hands, so that a late result finds out that its request is gone."""
        self._free = list(range(num_slots - 1, -1, -1))
        # How many running requests end at each token: a step looks up its drawn tokens in one go.
        self._watchers = np.zeros(vocab_size, dtype=np.int32)
        self.watched = np.zeros(vocab_size, dtype=bool)
        """True for tokens that may end some running request."""

    @property
    def num_free(self) -> int:
        return len(self._free)

    def occupy(self, request: Request, num_computed: int, capacity: int) -> int:
        """Give the request a slot and fill it. The caller has checked ``num_free``."""
        slot = self._free.pop()
        length = len(request.token_ids)
        request.slot = slot
        self.requests[slot] = request
        self.token_ids[slot, :length] = request.token_ids
        self.num_tokens[slot] = length
        self.num_computed[slot] = num_computed
        self.num_in_flight[slot] = 0
        self.capacity[slot] = capacity
        self.max_total[slot] = request.max_total_tokens
        self.priority[slot] = request.priority
        self.handle[slot] = request.handle
        self.client[slot] = request.client_index
        self.last_step[slot] = 0
        self._watch(request, 1)
        return slot

    def vacate(self, request: Request) -> None:
        """Free the slot; the tokens known by now go back to the request."""
        slot = request.slot
        request.token_ids = self.known_tokens(slot).copy()
        request.slot = -1
        self.requests[slot] = None
        self.epoch[slot] += 1
        self._free.append(slot)
        self._watch(request, -1)

    def known_tokens(self, slot: int) -> np.ndarray:
        """A view of the tokens known so far, int32 [num_tokens]."""
        return self.token_ids[slot, : self.num_tokens[slot]]

    def request_at(self, slot: int) -> Request:
        """The request in an occupied slot."""
        request = self.requests[slot]
        assert request is not None, f"slot {slot} is free"
        return request

    def _watch(self, request: Request, change: int) -> None:
        for token in request.stop_token_ids:
            self._watchers[token] += change
            self.watched[token] = self._watchers[token] > 0
