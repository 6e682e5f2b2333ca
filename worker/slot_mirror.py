"""The device's copy of per-slot state, for steps whose inputs are made on the device."""

import numpy as np
import torch

from .transfer import to_device


class SlotMirror:
    """On a CPU there is nothing to copy: the host's arrays are the device's."""

    def __init__(self, block_table: np.ndarray, device: torch.device) -> None:
        """``block_table``: the host's, int32 [S, W]."""
        self.last_tokens = torch.zeros(len(block_table), dtype=torch.int64, device=device)
        """int64 [S]: the token drawn last in each slot. Feeds the next step without visiting the host."""
        self.block_table = torch.from_numpy(block_table)
        """int32 [S, W]."""

    def set_blocks(self, slot: int, first: int, block_ids: list[int]) -> None:
        """The host's table has changed in these places."""

    def flush(self) -> None:
        """Make the changes visible to the next step."""

    def computed(self, slots: torch.Tensor, counts: torch.Tensor) -> None:
        """These slots have so many computed tokens now."""


class DeviceSlotMirror(SlotMirror):
    """Changes are collected and go to the device in one copy a step; a step without changes copies nothing."""

    def __init__(self, block_table: np.ndarray, device: torch.device) -> None:
        super().__init__(block_table, device)
        self.block_table = torch.zeros(block_table.shape, dtype=torch.int32, device=device)
        self.num_computed = torch.zeros(len(block_table), dtype=torch.int32, device=device)
        """int32 [S]: tokens in the cache, as steps on the device count them."""
        self._device = device
        self._places: list[np.ndarray] = []
        self._values: list[np.ndarray] = []

    def set_blocks(self, slot: int, first: int, block_ids: list[int]) -> None:
        start = slot * self.block_table.shape[1] + first
        self._places.append(np.arange(start, start + len(block_ids), dtype=np.int64))
        self._values.append(np.array(block_ids, dtype=np.int64))

    def flush(self) -> None:
        if not self._places:
            return
        changes = np.stack((np.concatenate(self._places), np.concatenate(self._values)))
        self._places, self._values = [], []
        places, values = to_device(changes, self._device)
        self.block_table.view(-1)[places] = values.to(torch.int32)

    def computed(self, slots: torch.Tensor, counts: torch.Tensor) -> None:
        self.num_computed[slots] = counts


def make_slot_mirror(block_table: np.ndarray, device: torch.device) -> SlotMirror:
    """The mirror for a device."""
    kind = DeviceSlotMirror if device.type == "cuda" else SlotMirror
    return kind(block_table, device)
