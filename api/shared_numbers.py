"""Numbers that all API processes of one server see: each writes a row of its own, and reads the sum of all rows.

The memory has no name, so nothing is left of it when its last process has ended, however that ends. One writer for
each number and aligned words of 8 bytes: no locks.
"""

import mmap
import os

NUM_COLUMNS = 2048
"""Numbers of one process; several times what a server has."""
_BYTES = 8


class SharedNumbers:
    """A table of float64, one row for each process, all zero at first.

    Every process takes its columns in the same order, so that a column means the same in each.
    """

    def __init__(self, num_rows: int = 1, row: int = 0, fd: int | None = None) -> None:
        """``fd``: the memory that another process has made, for ``row`` of it. Without it the memory is new."""
        size = num_rows * NUM_COLUMNS * _BYTES
        if fd is None and num_rows > 1:
            fd = os.memfd_create("octavo-numbers")
            os.ftruncate(fd, size)
        self.fd = fd
        """What other processes open; None if there are none."""
        self._all = memoryview(mmap.mmap(-1 if fd is None else fd, size)).cast("d")
        self.own = self._all[row * NUM_COLUMNS : (row + 1) * NUM_COLUMNS]
        """This process's row."""
        self._num_taken = 0

    def take(self, count: int = 1) -> int:
        """The first of ``count`` columns that nobody else has."""
        first, self._num_taken = self._num_taken, self._num_taken + count
        assert self._num_taken <= NUM_COLUMNS, "NUM_COLUMNS is too small"
        return first

    def total(self, column: int) -> float:
        """A column's sum over all processes."""
        return sum(self._all[column::NUM_COLUMNS])
