"""The past tokens of those requests whose sampling depends on them, kept on the device."""

import numpy as np
import torch
from torch import Tensor

_FIRST_ROWS = 8


class TokenHistory:
    """A pool of rows, one per request with penalties or with bad words of several tokens; it grows on demand.

    Each row holds the request's tokens (int32, prompt then output, by position), how often each id is in the output
    (int32 [V]) and which ids are in the prompt (bool [V]). Drawn tokens are recorded by device operations alone:
    with overlapped steps the host does not know them yet.
    """

    def __init__(self, vocab_size: int, max_model_len: int, device: torch.device) -> None:
        self._vocab_size = vocab_size
        # One column more: an overlapped step may draw a token past the last one that the request can use.
        self._columns = max_model_len + 1
        self._device = device
        self._free: list[int] = []
        self._widths = np.zeros(0, np.int64)  # an upper bound of each row's tokens, known without asking the device
        self.tokens = torch.zeros((0, self._columns), dtype=torch.int32, device=device)
        self.counts = torch.zeros((0, vocab_size), dtype=torch.int32, device=device)
        self.in_prompt = torch.zeros((0, vocab_size), dtype=torch.bool, device=device)

    def take(self, prompt: np.ndarray, output: np.ndarray) -> int:
        """A row filled with these token ids (int64 arrays)."""
        if not self._free:
            self._grow()
        row = self._free.pop()
        past = torch.as_tensor(np.concatenate((prompt, output)), device=self._device)
        self.tokens[row, : len(past)] = past.to(torch.int32)
        self.in_prompt[row] = False
        self.in_prompt[row, past[: len(prompt)]] = True
        self.counts[row] = torch.bincount(past[len(prompt) :], minlength=self._vocab_size).to(torch.int32)
        self._widths[row] = len(past)
        return row

    def release(self, row: int) -> None:
        """Gives a row back. What it holds stays until it is taken again."""
        self._free.append(row)

    def width(self, rows: np.ndarray) -> int:
        """Columns that hold every token of these rows; at least 1."""
        return min(max(int(self._widths[rows].max()), 1), self._columns)

    def record(self, rows: np.ndarray, device_rows: Tensor, positions: Tensor, token_ids: Tensor) -> None:
        """Appends one drawn token to each row. ``rows`` and ``device_rows`` are the same, distinct rows [N]."""
        columns = positions.clamp(max=self._columns - 1)
        self.tokens[device_rows, columns] = token_ids.to(torch.int32)
        self.counts[device_rows, token_ids] += 1
        self._widths[rows] += 1

    def _grow(self) -> None:
        old = len(self._widths)
        new = max(_FIRST_ROWS, 2 * old)
        self._free.extend(range(new - 1, old - 1, -1))
        self._widths = np.concatenate((self._widths, np.zeros(new - old, np.int64)))
        self.tokens = _longer(self.tokens, new)
        self.counts = _longer(self.counts, new)
        self.in_prompt = _longer(self.in_prompt, new)


def _longer(tensor: Tensor, rows: int) -> Tensor:
    """A copy with more rows; the new ones are 0."""
    grown = tensor.new_zeros((rows, tensor.shape[1]))
    grown[: len(tensor)] = tensor
    return grown
