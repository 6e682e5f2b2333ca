"""A block of the KV cache, and the free blocks in least-recently-used order."""

from collections.abc import Iterator


class KVCacheBlock:
    """Bookkeeping of one block. The keys and values themselves are the worker's."""

    __slots__ = ("block_hash", "block_id", "next_free", "previous_free", "ref_count")

    def __init__(self, block_id: int) -> None:
        self.block_id = block_id
        self.ref_count = 0
        """Block tables that hold it. In the free list exactly when 0 (the null block aside)."""
        self.block_hash: bytes | None = None
        """Set while the prefix cache can find this block."""
        self.previous_free: KVCacheBlock | None = None
        self.next_free: KVCacheBlock | None = None

    def __repr__(self) -> str:
        return f"KVCacheBlock({self.block_id}, ref_count={self.ref_count}, cached={self.block_hash is not None})"


class FreeKVCacheBlockQueue:
    """Free blocks as an intrusive doubly linked list, so that a prefix hit takes its block out of the middle in O(1).

    The head is handed out first. Two sentinels stand at the ends, so that no operation meets a None.
    """

    def __init__(self, blocks: list[KVCacheBlock]) -> None:
        self._head = KVCacheBlock(-1)
        self._tail = KVCacheBlock(-1)
        self._head.next_free = self._tail
        self._tail.previous_free = self._head
        self._count = 0
        for block in blocks:
            self.append(block)

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[KVCacheBlock]:
        """From the next to be handed out to the last."""
        block = self._head.next_free
        while block is not None and block is not self._tail:
            yield block
            block = block.next_free

    def append(self, block: KVCacheBlock) -> None:
        """Make it the last to be handed out."""
        assert self._tail.previous_free is not None
        self._link(self._tail.previous_free, block, self._tail)

    def prepend(self, block: KVCacheBlock) -> None:
        """Make it the next to be handed out."""
        assert self._head.next_free is not None
        self._link(self._head, block, self._head.next_free)

    def pop(self) -> KVCacheBlock:
        """Take the next block out. The caller has checked that there is one."""
        block = self._head.next_free
        assert block is not None and block is not self._tail, "pop from an empty free list"
        self.remove(block)
        return block

    def remove(self, block: KVCacheBlock) -> None:
        """Take a block out of wherever it is."""
        before, after = block.previous_free, block.next_free
        assert before is not None and after is not None, f"{block!r} is not in the free list"
        before.next_free, after.previous_free = after, before
        block.previous_free = block.next_free = None
        self._count -= 1

    def _link(self, before: KVCacheBlock, block: KVCacheBlock, after: KVCacheBlock) -> None:
        assert block.next_free is None, f"{block!r} is in the free list already"
        before.next_free = after.previous_free = block
        block.previous_free, block.next_free = before, after
        self._count += 1
