"""Names for the content of full KV-cache blocks: equal hash, equal tokens from the start, equal circumstances."""

import hashlib

import numpy as np


def root_hash(extra_keys: list[tuple[str, str]]) -> bytes:
    """The parent of a request's first block.

    ``extra_keys`` are tagged (``("salt", "...")``, ``("adapter", "...")``), so that a value of one kind can never be
    taken for one of another. Lengths are part of what is hashed, so that neither can two lists run together alike.
    """
    digest = hashlib.sha256(b"octavo kv block")
    for tag, value in sorted(extra_keys):
        for part in (tag.encode(), value.encode()):
            digest.update(len(part).to_bytes(8, "little") + part)
    return digest.digest()


def block_hashes(parent: bytes, token_ids: np.ndarray, block_size: int) -> list[bytes]:
    """Hashes of all full blocks of ``token_ids`` (int32), chained from ``parent``."""
    data = np.ascontiguousarray(token_ids, dtype=np.int32).tobytes()
    width = 4 * block_size
    hashes: list[bytes] = []
    for start in range(0, len(data) - width + 1, width):
        parent = hashlib.sha256(parent + data[start : start + width]).digest()
        hashes.append(parent)
    return hashes
