"""Reading GGUF: metadata, tensor directory and tensors. Metadata of a whole vocabulary takes some 50 ms.

The format (llama.cpp, versions 2 and 3, little endian): magic, version, number of tensors, number of metadata pairs;
the pairs; the directory of tensors (name, dimensions innermost first, type, offset); then, aligned, their data.
"""

import mmap
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType
from gguf.quants import dequantize

from ...core.errors import CheckpointError, UnsupportedModelError

# Metadata value types by their number; 8 is a string and 9 an array.
_SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
_STRING, _ARRAY = 8, 9
_CHUNK_ELEMENTS = 1 << 18
"""Elements dequantized at once: the intermediate arrays stay in the processor's cache."""


@dataclass(frozen=True, slots=True)
class GGUFTensor:
    """A tensor in the directory. ``shape`` is outermost first, as in numpy; ``offset`` is from the file's start."""

    name: str
    shape: tuple[int, ...]
    kind: GGMLQuantizationType
    offset: int
    num_bytes: int

    @property
    def stored_dtype(self) -> str:
        """The safetensors dtype that holds this tensor without loss: its own, or F32 for a quantized one."""
        return self.kind.name if self.kind.name in ("F16", "BF16") else "F32"


class GGUFFile:
    """An open GGUF file.

    Raises ``CheckpointError`` where the file is not GGUF or ends early, ``UnsupportedModelError`` for a version or a
    tensor type that is not known. Strings that are not UTF-8 (some vocabularies have such) decode with surrogates.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.metadata: dict[str, Any] = {}
        self.tensors: dict[str, GGUFTensor] = {}
        try:
            with path.open("rb") as file:
                self._data = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        except (OSError, ValueError) as error:
            raise CheckpointError(f"cannot read {path}: {error}") from error
        self._at = 0
        try:
            self._read_header()
        except (struct.error, IndexError) as error:
            raise CheckpointError(f"{path} ends within its header; download it again") from error

    def __enter__(self) -> "GGUFFile":
        return self

    def __exit__(self, *_: object) -> None:
        self._data.close()

    def read(self, tensor: GGUFTensor) -> Iterator[np.ndarray]:
        """The tensor's elements in order, as flat pieces: float32, or uint16 with the bits of F16 and BF16."""
        name = tensor.kind.name
        if name in ("F32", "F16", "BF16"):
            yield self._bytes(tensor).view(np.float32 if name == "F32" else np.uint16)
            return
        block, block_bytes = GGML_QUANT_SIZES[tensor.kind]
        blocks = self._bytes(tensor).reshape(-1, block_bytes)
        step = max(1, _CHUNK_ELEMENTS // block)
        faster = _DEQUANTIZERS.get(name)
        for start in range(0, len(blocks), step):
            piece = blocks[start : start + step]
            try:
                yield (faster(piece) if faster else dequantize(piece, tensor.kind)).reshape(-1)
            except NotImplementedError as error:
                raise UnsupportedModelError(
                    f"{self.path}: tensor {tensor.name} is of type {name}, which cannot be read; use another "
                    "quantization of the model, such as Q8_0, Q4_K_M or F16"
                ) from error

    def _bytes(self, tensor: GGUFTensor) -> np.ndarray:
        # A copy, so that no array outlives the mapping. The pieces of the largest tensors are read one at a time.
        raw = self._data[tensor.offset : tensor.offset + tensor.num_bytes]
        return np.frombuffer(raw, np.uint8)

    def _read_header(self) -> None:
        if self._data[:4] != b"GGUF":
            raise CheckpointError(f"{self.path} is not a GGUF file")
        self._at = 4
        version, num_tensors, num_pairs = self._unpack("<IQQ")
        if version not in (2, 3):
            raise UnsupportedModelError(
                f"{self.path} has GGUF version {version}; versions 2 and 3 (little endian) can be read"
            )
        for _ in range(num_pairs):
            key = self._string()
            (kind,) = self._unpack("<I")
            self.metadata[key] = self._value(key, kind)
        directory = [self._entry() for _ in range(num_tensors)]
        alignment = int(self.metadata.get("general.alignment", 32)) or 32
        start = -(-self._at // alignment) * alignment
        for name, shape, kind, offset in directory:
            self.tensors[name] = self._tensor(name, shape, kind, start + offset)

    def _unpack(self, layout: str) -> tuple[Any, ...]:
        values = struct.unpack_from(layout, self._data, self._at)
        self._at += struct.calcsize(layout)
        return values

    def _string(self) -> str:
        (length,) = self._unpack("<Q")
        end = self._at + length
        text = self._data[self._at : end]
        if len(text) != length:
            raise IndexError
        self._at = end
        return text.decode("utf-8", "surrogateescape")

    def _value(self, key: str, kind: int) -> Any:
        if kind == _STRING:
            return self._string()
        if kind in _SCALARS:
            return self._unpack("<" + _SCALARS[kind])[0]
        if kind != _ARRAY:
            raise CheckpointError(f"{self.path}: metadata {key} has the unknown type {kind}")
        item, length = self._unpack("<IQ")
        if item == _STRING:
            return self._strings(length)
        if item not in _SCALARS:
            raise CheckpointError(f"{self.path}: metadata {key} is an array of the unknown type {item}")
        dtype = np.dtype("<" + _SCALARS[item]) if item != 7 else np.dtype(bool)
        raw = self._data[self._at : self._at + length * dtype.itemsize]
        if len(raw) != length * dtype.itemsize:
            raise IndexError
        self._at += len(raw)
        return np.frombuffer(raw, dtype).tolist()

    def _strings(self, count: int) -> list[str]:
        # Written out without calls: a vocabulary and its merges are 100 000 to 400 000 strings.
        data, at, unpack = self._data, self._at, struct.Struct("<Q").unpack_from
        strings = []
        for _ in range(count):
            end = at + 8 + unpack(data, at)[0]
            strings.append(data[at + 8 : end].decode("utf-8", "surrogateescape"))
            at = end
        if at > len(data):
            raise IndexError
        self._at = at
        return strings

    def _entry(self) -> tuple[str, tuple[int, ...], int, int]:
        name = self._string()
        (num_dimensions,) = self._unpack("<I")
        dimensions = self._unpack(f"<{num_dimensions}Q")
        kind, offset = self._unpack("<IQ")
        return name, tuple(reversed(dimensions)), kind, offset

    def _tensor(self, name: str, shape: tuple[int, ...], kind: int, offset: int) -> GGUFTensor:
        try:
            quantization = GGMLQuantizationType(kind)
        except ValueError as error:
            raise UnsupportedModelError(f"{self.path}: tensor {name} has the unknown type {kind}") from error
        block, block_bytes = GGML_QUANT_SIZES[quantization]
        num_elements = int(np.prod(shape, dtype=np.int64))
        if not shape or num_elements <= 0 or shape[-1] % block:
            raise CheckpointError(f"{self.path}: tensor {name} has the impossible shape {list(shape)}")
        num_bytes = num_elements // block * block_bytes
        if offset + num_bytes > len(self._data):
            raise CheckpointError(f"{self.path} ends within tensor {name}; download it again")
        return GGUFTensor(name, shape, quantization, offset, num_bytes)


def _scale(blocks: np.ndarray, column: int) -> np.ndarray:
    """The float16 at byte ``column`` of each block, as float32 [blocks, 1]."""
    return np.ascontiguousarray(blocks[:, column : column + 2]).view(np.float16).astype(np.float32)


def _q8_0(blocks: np.ndarray) -> np.ndarray:
    return blocks[:, 2:].view(np.int8) * _scale(blocks, 0)


def _q4_0(blocks: np.ndarray) -> np.ndarray:
    return (_nibbles(blocks[:, 2:]) - np.float32(8)) * _scale(blocks, 0)


def _q4_1(blocks: np.ndarray) -> np.ndarray:
    values = _nibbles(blocks[:, 4:])
    values *= _scale(blocks, 0)
    values += _scale(blocks, 2)
    return values


def _nibbles(packed: np.ndarray) -> np.ndarray:
    """Low halves of the bytes, then high halves: uint8 [blocks, 16] to float32 [blocks, 32]."""
    values = np.empty((len(packed), 32), np.float32)
    values[:, :16] = packed & 15
    values[:, 16:] = packed >> 4
    return values


# The commonest types without the small row groups and wide intermediates of the gguf package; equal bit for bit.
_DEQUANTIZERS = {"Q8_0": _q8_0, "Q4_0": _q4_0, "Q4_1": _q4_1}
