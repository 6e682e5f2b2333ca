"""Octavo: an LLM inference engine and server.

This is the front door. The public names are loaded when they are first used, so that ``octavo --help`` and a
process that only needs the vocabulary never pay for torch.
"""

import os
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

# GNU OpenMP spins between parallel regions by default. A server runs several processes on few cores, and spinning
# threads of one starve the others: every parallel torch operation then takes milliseconds. Not spinning at all costs
# 20 to 40 us an operation, a few microseconds of spinning (1000 rounds) next to nothing. The variables are read once,
# when torch is first imported, hence here, before anything of ours can import it.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
os.environ.setdefault("GOMP_SPINCOUNT", "1000")

if TYPE_CHECKING:
    from .api.llm import LLM
    from .core.engine_args import EngineArgs
    from .core.grammar import StructuredOutputs
    from .core.outputs import CompletionOutput, Logprob, RequestOutput
    from .core.sampling_params import RequestOutputKind, SamplingParams
    from .engine.async_llm import AsyncLLM

_PUBLIC = {
    "LLM": ".api.llm",
    "AsyncLLM": ".engine.async_llm",
    "CompletionOutput": ".core.outputs",
    "EngineArgs": ".core.engine_args",
    "Logprob": ".core.outputs",
    "RequestOutput": ".core.outputs",
    "RequestOutputKind": ".core.sampling_params",
    "StructuredOutputs": ".core.grammar",
    "SamplingParams": ".core.sampling_params",
}

__all__ = [
    "LLM",
    "AsyncLLM",
    "CompletionOutput",
    "EngineArgs",
    "Logprob",
    "RequestOutput",
    "RequestOutputKind",
    "SamplingParams",
    "StructuredOutputs",
    "__version__",
]


def __getattr__(name: str) -> Any:
    if name not in _PUBLIC:
        raise AttributeError(f"module 'octavo' has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(_PUBLIC[name], __name__), name)
