"""The invariants that hold between any two calls of the scheduler, as assertions.

Run after every step by tests and under ``--check-integrity``. The numbers are those of the design.
"""

from collections import Counter
from typing import TYPE_CHECKING

import numpy as np

from .request import RequestStatus

if TYPE_CHECKING:
    from .scheduler import Scheduler


def check_integrity(scheduler: "Scheduler") -> None:
    """Assert everything that can be said of one moment. Raises ``AssertionError`` naming what is broken."""
    scheduler.kv.pool.check_integrity()  # (2) free list membership means count 0
    _check_references(scheduler)
    _check_places(scheduler)
    _check_counters(scheduler)


def _check_references(scheduler: "Scheduler") -> None:
    """(1) reference counts equal table entries; (3) no writable block is shared."""
    tables = [request.blocks for request in scheduler.requests] + scheduler.kv.retired_tables()
    held = Counter(block.block_id for table in tables for block in table)
    for block in scheduler.kv.pool.blocks:
        assert block.ref_count == held[block.block_id], f"{block!r} stands in {held[block.block_id]} tables"
    for request in scheduler.requests:
        if request.status is not RequestStatus.RUNNING:
            assert not request.blocks, f"{request.request_id} does not run but holds blocks"
            continue
        first_writable = int(scheduler.slots.num_computed[request.slot]) // scheduler.kv.block_size
        for block in request.blocks[first_writable:]:
            assert block.ref_count == 1, f"{request.request_id} may write {block!r}, which is shared"
            assert block.block_hash is None, f"{request.request_id} may write {block!r}, which others can find"


def _check_places(scheduler: "Scheduler") -> None:
    """(5) each request is in exactly one place."""
    decoding = set(scheduler.decoding.tolist())
    assert len(decoding) == len(scheduler.decoding), "a slot decodes twice"
    waiting = {id(request) for request in scheduler.waiting}
    prefilling = {id(request) for request in scheduler.prefilling}
    assert len(prefilling) == len(scheduler.prefilling), "a request prefills twice"
    for request in scheduler.requests:
        running = request.status is RequestStatus.RUNNING
        compiling = id(request) in scheduler.compiling
        pooling = scheduler.pooling.get(request.slot) is request
        decodes = running and request.slot in decoding
        places = (id(request) in waiting, compiling, id(request) in prefilling, decodes, pooling)
        assert sum(places) == 1, f"{request.request_id} ({request.status.name}) is in {sum(places)} places"
        assert running == (request.slot >= 0), f"{request.request_id} has slot {request.slot}"
        if running:
            assert scheduler.slots.requests[request.slot] is request, f"{request.request_id} has lost its slot"
    occupied = sum(request is not None for request in scheduler.slots.requests)
    assert occupied == len(decoding) + len(prefilling) + len(scheduler.pooling), "a slot is occupied by nobody"
    assert occupied + scheduler.slots.num_free == len(scheduler.slots.requests), "a slot is lost"
    compiling = len(scheduler.compiling)
    assert len(waiting) + compiling + occupied == len(scheduler.requests), "a request is in no place"


def _check_counters(scheduler: "Scheduler") -> None:
    """(4) and what the arrays promise each other."""
    slots = scheduler.slots
    assert scheduler.num_running <= scheduler.config.max_num_seqs, "more sequences than allowed"
    running = [request for request in scheduler.requests if request.status is RequestStatus.RUNNING]
    for request in running:
        slot = request.slot
        assert slots.capacity[slot] == len(request.blocks) * scheduler.kv.block_size, "capacity is not the table's"
        assert slots.num_computed[slot] <= slots.capacity[slot], f"{request.request_id} computes without a block"
        assert slots.num_computed[slot] <= slots.num_tokens[slot] + slots.num_in_flight[slot]
        assert slots.num_tokens[slot] < slots.max_total[slot], f"{request.request_id} should have ended"
        assert slots.num_tokens[slot] + slots.num_in_flight[slot] <= slots.max_total[slot], "drawn past the limit"
    flying = Counter(
        int(slot) for batch in scheduler.in_flight for slot in batch.rows[slots.epoch[batch.rows] == batch.epochs]
    )
    for request in running:
        assert slots.num_in_flight[request.slot] == flying[request.slot], f"{request.request_id} lost a token in flight"
    counts: Counter[int] = Counter(token for request in running for token in request.stop_token_ids)
    assert set(np.flatnonzero(slots.watched).tolist()) == set(counts), "the watched tokens are not the stop tokens"
