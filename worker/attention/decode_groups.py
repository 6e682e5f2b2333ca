"""Which decode rows to attend together, when their keys are padded to the longest of the group."""

import numpy as np


def group_rows(sizes: np.ndarray, overhead: int, limit: int) -> list[np.ndarray]:
    """Divide rows of ``sizes`` [R] (blocks of context each) into groups of similar size.

    A group costs its padded size (rows times the largest) plus ``overhead``, both in blocks: long contexts go apart
    from short ones when the padding saved outweighs one more pass. No group of several rows is over ``limit`` blocks
    padded. Returns row indices; rows that stay in one group keep their order.
    """
    rows = np.arange(len(sizes))
    if len(sizes) * int(sizes.max()) <= min(int(sizes.sum()) + overhead, limit):
        return [rows]
    order = np.argsort(sizes, kind="stable")
    ranges = _split(sizes[order], 0, len(sizes), overhead)
    groups: list[np.ndarray] = []
    for start, stop in ranges:
        most = max(1, limit // int(sizes[order[stop - 1]]))
        groups.extend(order[at : min(at + most, stop)] for at in range(start, stop, most))
    return groups


def _split(ordered: np.ndarray, start: int, stop: int, overhead: int) -> list[tuple[int, int]]:
    """Cut the ascending sizes ``start:stop`` in two where that saves most, and each part again, while it saves."""
    todo, done = [(start, stop)], []
    while todo:
        start, stop = todo.pop()
        part = ordered[start:stop]
        before = np.arange(1, len(part))  # rows in the first part
        two = before * part[:-1] + (len(part) - before) * part[-1] + overhead
        if len(two) == 0 or int(two.min()) >= len(part) * int(part[-1]):
            done.append((start, stop))
            continue
        cut = start + int(two.argmin()) + 1
        todo += [(start, cut), (cut, stop)]
    return done
