"""Block tables: which blocks hold a request's keys and values, what can be reused, and when they may be given back.

Who holds what, along one request's tokens (block size 4):

    tokens      0 1 2 3 | 4 5 6 7 | 8 9 A B | C D
    blocks        b7    |   b2    |   b9    |  b4
                shared    shared     own       own, not full: only this request may write it
                named     named      named     unnamed

A full block is named by its content and may be shared from then on; it is never written again. A block that is not
full has one holder. Blocks of a request that ends while a batch with it is in flight stay held until that batch is
done: the device may still write them.
"""

from collections import deque
from typing import NamedTuple

import numpy as np

from .block_hash import block_hashes
from .block_pool import BlockPool
from .config import CacheConfig
from .kv_cache_block import KVCacheBlock
from .request import Request


class _Retired(NamedTuple):
    """A block table to be given back once the batch of ``step`` is done."""

    step: int
    blocks: list[KVCacheBlock]
    num_exclusive: int
    """Blocks that nobody else held when it was retired."""


class KVCacheManager:
    """Allocates blocks to requests, finds their prefixes in the cache, takes blocks back."""

    def __init__(self, config: CacheConfig) -> None:
        assert config.num_blocks is not None, "the number of blocks is known once the worker has loaded"
        self.block_size = config.block_size
        self.pool = BlockPool(config.num_blocks)
        self._caching = config.enable_prefix_caching
        self._retired: deque[_Retired] = deque()
        self.num_retiring = 0
        """Blocks that become free when the batches in flight are done (a lower bound: shared ones are not counted)."""
        self.prefix_queries = 0
        """Prompt tokens looked up since the start."""
        self.prefix_hits = 0
        """Of those, tokens found."""

    @property
    def num_free(self) -> int:
        return self.pool.num_free

    def blocks_for(self, num_tokens: int) -> int:
        """Blocks that hold this many tokens."""
        return -(-num_tokens // self.block_size)

    def find_prefix(self, request: Request) -> list[KVCacheBlock]:
        """Cached blocks of the longest known beginning of the request's tokens, not touched yet.

        At least one token is always left to compute, because the next token is drawn from its logits (or the vector
        pooled from its hidden state). Prompt logprobs and means need the whole prompt computed.
        """
        if not self._caching or request.whole_prompt:
            return []
        found = []
        limit = (len(request.token_ids) - 1) // self.block_size
        for block_hash in request.block_hashes[:limit]:
            block = self.pool.find(block_hash)
            if block is None:
                break
            found.append(block)
        return found

    def shortage(self, request: Request, prefix: list[KVCacheBlock]) -> int:
        """How many blocks are missing to hold all the request's known tokens, given its cached prefix.

        0 or less: it fits. Cached blocks that nobody holds are in the free list; taking them over uses them up.
        """
        needed = self.blocks_for(len(request.token_ids)) - len(prefix)
        unheld = sum(block.ref_count == 0 for block in prefix)
        return needed + unheld - self.pool.num_free

    def admit(self, request: Request, prefix: list[KVCacheBlock]) -> None:
        """Give a request the blocks of all its known tokens. ``shortage`` was 0 or less.

        Hits are touched before anything new is taken, or taking could evict them.
        """
        self.pool.touch(prefix)
        request.blocks = prefix + self.pool.take(self.blocks_for(len(request.token_ids)) - len(prefix))
        request.num_named_blocks = len(prefix)
        if self._caching and not request.whole_prompt:
            self.prefix_queries += len(request.token_ids)
            self.prefix_hits += len(prefix) * self.block_size

    def grow(self, request: Request) -> KVCacheBlock:
        """One more block for a request at a block border. The caller has checked ``num_free``."""
        (block,) = self.pool.take(1)
        request.blocks.append(block)
        return block

    def name_full_blocks(self, request: Request, token_ids: np.ndarray, num_computed: int) -> None:
        """Let others find the blocks that are full once ``num_computed`` tokens are computed.

        ``token_ids`` are the request's known tokens; a block whose last token is not known yet waits.
        """
        if not self._caching:
            return
        full = min(num_computed, len(token_ids)) // self.block_size
        hashes = request.block_hashes
        if full > len(hashes):
            parent = hashes[-1] if hashes else request.cache_root
            start = len(hashes) * self.block_size
            hashes += block_hashes(parent, token_ids[start : full * self.block_size], self.block_size)
        for index in range(request.num_named_blocks, full):
            self.pool.name(request.blocks[index], hashes[index])
        request.num_named_blocks = max(full, request.num_named_blocks)

    def release(self, request: Request, last_step: int | None) -> None:
        """Take a request's blocks back: now, or, if a batch up to ``last_step`` may still use them, when it is done."""
        blocks, request.blocks = request.blocks[::-1], []
        if last_step is None:
            self.pool.release(blocks)
        else:
            exclusive = sum(block.ref_count == 1 for block in blocks)
            self._retired.append(_Retired(last_step, blocks, exclusive))
            self.num_retiring += exclusive

    def step_done(self, step: int) -> None:
        """The batch of ``step`` is done: give back what waited for it."""
        while self._retired and self._retired[0].step <= step:
            retired = self._retired.popleft()
            self.num_retiring -= retired.num_exclusive
            self.pool.release(retired.blocks)

    def retired_tables(self) -> list[list[KVCacheBlock]]:
        """Block tables waiting for a batch in flight (for integrity checks)."""
        return [retired.blocks for retired in self._retired]

    def reset_prefix_cache(self) -> None:
        """Forget all cached content; running requests keep their blocks."""
        self.pool.forget_all()
