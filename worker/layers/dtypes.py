"""Data types by the names that configurations use."""

import torch

from ...core.errors import ConfigurationError

_DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


def torch_dtype(name: str) -> torch.dtype:
    """The torch dtype called ``name``. Raises ``ConfigurationError`` for another name."""
    if name not in _DTYPES:
        raise ConfigurationError(f"--dtype must be one of {', '.join(_DTYPES)}, not {name!r}")
    return _DTYPES[name]
