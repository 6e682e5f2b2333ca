"""Messages from one process to several others through shared memory, with a wake-up for each.

The memory is a ring of fixed slots; a long message takes several. Two pipes for each reader carry one byte a slot:

    writer --- "slot filled" ---> reader      the reader blocks here, using no CPU, until there is something
    writer <-- "slot emptied" --- reader      the writer blocks here when the slowest reader is a whole ring behind

The bytes are also the synchronisation: a slot is written before its byte is sent and read after it was received. An
end of file in place of a byte means that the other side is gone. The memory has no name in the file system (memfd),
so nothing is left behind however the processes end.
"""

import contextlib
import mmap
import os
import struct
from typing import NamedTuple

NUM_SLOTS = 16
SLOT_BYTES = 1 << 16
_HEADER = struct.Struct("<II")  # bytes in this slot; 1 if the message goes on in the next
_ROOM = SLOT_BYTES - _HEADER.size


class RingClosedError(Exception):
    """The other side of a ring is gone."""


class ReaderEnd(NamedTuple):
    """Descriptors of one reader. Each end owns its descriptors, so it can be passed on and closed alone."""

    memory: int
    filled: int
    emptied: int


class WriterEnd(NamedTuple):
    """Descriptors of the writer: the memory, then for each reader where to say "filled" and to hear "emptied"."""

    memory: int
    filled: tuple[int, ...]
    emptied: tuple[int, ...]

    @property
    def fds(self) -> tuple[int, ...]:
        """All of them, flat, to pass to another process."""
        return (self.memory, *self.filled, *self.emptied)

    @classmethod
    def of(cls, fds: list[int]) -> "WriterEnd":
        """The inverse of ``fds``."""
        readers = (len(fds) - 1) // 2
        return cls(fds[0], tuple(fds[1 : 1 + readers]), tuple(fds[1 + readers :]))


def make_ring(num_readers: int) -> tuple[WriterEnd, list[ReaderEnd]]:
    """Shared memory and pipes for one writer and so many readers."""
    memory = os.memfd_create("octavo-ring")
    os.ftruncate(memory, NUM_SLOTS * SLOT_BYTES)
    filled = [os.pipe() for _ in range(num_readers)]
    emptied = [os.pipe() for _ in range(num_readers)]
    readers = [ReaderEnd(os.dup(memory), filled[i][0], emptied[i][1]) for i in range(num_readers)]
    return WriterEnd(memory, tuple(write for _, write in filled), tuple(read for read, _ in emptied)), readers


def close_fds(fds: tuple[int, ...]) -> None:
    """Close descriptors: this process's copies of an end that was passed to another."""
    for fd in fds:
        os.close(fd)


class RingWriter:
    """The one writer."""

    def __init__(self, end: WriterEnd) -> None:
        self._end = end
        self._map = mmap.mmap(end.memory, NUM_SLOTS * SLOT_BYTES)
        self._credits = [NUM_SLOTS] * len(end.filled)
        self._next = 0

    def write(self, message: bytes) -> None:
        """Send to all readers. Blocks while the slowest is a whole ring behind. Raises ``RingClosedError``."""
        view = memoryview(message)
        while True:
            piece, view = view[:_ROOM], view[_ROOM:]
            self._await_credit()
            start = self._next * SLOT_BYTES
            _HEADER.pack_into(self._map, start, len(piece), 1 if view else 0)
            self._map[start + _HEADER.size : start + _HEADER.size + len(piece)] = bytes(piece)
            self._next = (self._next + 1) % NUM_SLOTS
            self._wake()
            if not view:
                return

    def _await_credit(self) -> None:
        for reader, fd in enumerate(self._end.emptied):
            while self._credits[reader] == 0:
                returned = os.read(fd, NUM_SLOTS)
                if not returned:
                    raise RingClosedError("a reader of the ring is gone")
                self._credits[reader] += len(returned)
            self._credits[reader] -= 1

    def _wake(self) -> None:
        for fd in self._end.filled:
            try:
                os.write(fd, b"\1")
            except BrokenPipeError:
                raise RingClosedError("a reader of the ring is gone") from None

    def close(self) -> None:
        """Close this side; readers get ``RingClosedError``."""
        close_fds(self._end.fds)
        self._map.close()


class RingReader:
    """One reader."""

    def __init__(self, end: ReaderEnd) -> None:
        self._end = end
        self._map = mmap.mmap(end.memory, NUM_SLOTS * SLOT_BYTES, prot=mmap.PROT_READ)
        self._next = 0

    def read(self) -> bytes:
        """The next message. Blocks without using CPU. Raises ``RingClosedError`` when the writer is gone."""
        message = bytearray()
        while True:
            if not os.read(self._end.filled, 1):
                raise RingClosedError("the writer of the ring is gone")
            start = self._next * SLOT_BYTES
            length, more = _HEADER.unpack_from(self._map, start)
            message += self._map[start + _HEADER.size : start + _HEADER.size + length]
            self._next = (self._next + 1) % NUM_SLOTS
            with contextlib.suppress(BrokenPipeError):  # the writer is gone; what it wrote before is still good
                os.write(self._end.emptied, b"\1")
            if not more:
                return bytes(message)

    def close(self) -> None:
        """Close this side; the writer gets ``RingClosedError``."""
        close_fds(self._end)
        self._map.close()
