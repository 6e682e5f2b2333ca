"""Small arrays on their way to the device."""

import numpy as np
import torch


def to_device(array: np.ndarray, device: torch.device) -> torch.Tensor:
    """The array as a tensor on ``device``; on a CPU they share memory.

    A copy from ordinary memory would wait for all work in the stream first, and with it the host for the device; from
    pinned memory it is queued like any other work.
    """
    tensor = torch.from_numpy(array)
    return tensor if device.type == "cpu" else tensor.pin_memory().to(device, non_blocking=True)
