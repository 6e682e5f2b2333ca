"""A block of the KV cache."""


class KVCacheBlock:
    """Bookkeeping of one block. The keys and values themselves are the worker's."""

    __slots__ = ("block_hash", "block_id", "ref_count")

    def __init__(self, block_id: int) -> None:
        self.block_id = block_id
        self.ref_count = 0
        """Block tables that hold it. In the free list exactly when 0 (the null block aside)."""
        self.block_hash: bytes | None = None
        """Set while the prefix cache can find this block."""

    def __repr__(self) -> str:
        return f"KVCacheBlock({self.block_id}, ref_count={self.ref_count}, cached={self.block_hash is not None})"
