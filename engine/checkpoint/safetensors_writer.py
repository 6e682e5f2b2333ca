"""Writing a safetensors file piece by piece, so that a model larger than the memory can be converted."""

import json
import struct
from collections.abc import Iterable
from pathlib import Path
from typing import BinaryIO

import numpy as np

ELEMENT_BYTES = {"F32": 4, "F16": 2, "BF16": 2}


class SafetensorsWriter:
    """Writes tensors in the order in which their ``(name, dtype, shape)`` were announced."""

    def __init__(self, path: Path, entries: list[tuple[str, str, tuple[int, ...]]]) -> None:
        header: dict[str, object] = {"__metadata__": {"format": "pt"}}
        self._sizes: list[tuple[str, int]] = []
        end = 0
        for name, dtype, shape in entries:
            size = int(np.prod(shape, dtype=np.int64)) * ELEMENT_BYTES[dtype]
            header[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [end, end + size]}
            self._sizes.append((name, size))
            end += size
        self.total_bytes = end
        text = json.dumps(header, separators=(",", ":")).encode()
        # The data must begin at a multiple of eight bytes.
        text += b" " * (-len(text) % 8)
        self._next = 0
        self._file: BinaryIO = path.open("wb")
        self._file.write(struct.pack("<Q", len(text)) + text)

    def __enter__(self) -> "SafetensorsWriter":
        return self

    def __exit__(self, *exception: object) -> None:
        self._file.close()

    def write(self, name: str, pieces: Iterable[np.ndarray]) -> int:
        """Write the next tensor, given as flat pieces in order. Returns its bytes."""
        expected, size = self._sizes[self._next]
        self._next += 1
        written = 0
        for piece in pieces:
            written += self._file.write(np.ascontiguousarray(piece).data.cast("B"))
        assert (name, written) == (expected, size), f"{name}: {written} bytes, announced {expected}: {size}"
        return written
