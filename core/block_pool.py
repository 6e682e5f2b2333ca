"""All KV-cache blocks: who holds them, which are free, and which the prefix cache can find.

A block is in exactly one of three states:

    free, unnamed      in the free list, no hash              -- handed out first
    free, cached       in the free list, hash in the index    -- evicted least recently used first
    held               ref_count > 0, not in the free list; may be in the index as well

        take()            put back by release()            touch()
    free ------> held ----------------------> free, cached ------> held again, nothing computed
"""

from collections import OrderedDict
from collections.abc import Iterable

from .kv_cache_block import KVCacheBlock


class BlockPool:
    """Hands out blocks and counts their holders. Block 0 is the null block: never handed out, never written."""

    def __init__(self, num_blocks: int) -> None:
        self.blocks = [KVCacheBlock(i) for i in range(num_blocks)]
        self.null_block = self.blocks[0]
        self.free = OrderedDict((block.block_id, block) for block in self.blocks[1:])
        """By id, the next to be handed out first. Its links let a prefix hit take a block out of the middle in O(1)."""
        self._index: dict[bytes, KVCacheBlock] = {}

    @property
    def num_free(self) -> int:
        return len(self.free)

    @property
    def num_usable(self) -> int:
        """Blocks that can be handed out at all."""
        return len(self.blocks) - 1

    def take(self, count: int) -> list[KVCacheBlock]:
        """``count`` blocks for one holder; what they cached is forgotten. The caller has checked ``num_free``."""
        taken = []
        for _ in range(count):
            _, block = self.free.popitem(last=False)
            self._forget(block)
            block.ref_count = 1
            taken.append(block)
        return taken

    def touch(self, blocks: Iterable[KVCacheBlock]) -> None:
        """Add a holder to cached blocks, taking those that were free out of the free list."""
        for block in blocks:
            if block.ref_count == 0:
                del self.free[block.block_id]
            block.ref_count += 1

    def release(self, blocks: Iterable[KVCacheBlock]) -> None:
        """Drop a holder of each block. Blocks with nothing to find go to the front of the free list, cached ones to
        its back in the order given: give a table's tail first, so that its beginning, which others are likelier to
        share, is evicted last."""
        for block in blocks:
            assert block.ref_count > 0, f"{block!r} released more often than held"
            block.ref_count -= 1
            if block.ref_count == 0:
                self.free[block.block_id] = block
                if block.block_hash is None:
                    self.free.move_to_end(block.block_id, last=False)

    def find(self, block_hash: bytes) -> KVCacheBlock | None:
        """The block with this content, if it is still there."""
        return self._index.get(block_hash)

    def name(self, block: KVCacheBlock, block_hash: bytes) -> None:
        """Let the prefix cache find a full block. Where another block has the same content already, that one stays."""
        if block.block_hash is None and block_hash not in self._index:
            block.block_hash = block_hash
            self._index[block_hash] = block

    def forget_all(self) -> None:
        """Empty the prefix cache. Blocks in use stay with their holders."""
        for block in list(self._index.values()):
            self._forget(block)

    def _forget(self, block: KVCacheBlock) -> None:
        if block.block_hash is not None:
            del self._index[block.block_hash]
            block.block_hash = None

    def check_integrity(self) -> None:
        """Assert the pool's own invariants."""
        assert self.null_block.ref_count == 0 and 0 not in self.free, "null block was touched"
        for block in self.blocks[1:]:
            assert (block.block_id in self.free) == (block.ref_count == 0), f"{block!r} is in the wrong place"
            if block.block_hash is not None:
                assert self._index.get(block.block_hash) is block, f"{block!r} is not in the index"
        for block_hash, block in self._index.items():
            assert block.block_hash == block_hash, f"the index names {block!r} wrongly"
