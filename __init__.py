"""Octavo: an LLM inference engine and server.

This is the front door. The public names are loaded when they are first used, so that ``octavo --help`` and a
process that only needs the vocabulary never pay for torch.
"""

import os
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

# GNU OpenMP spins between parallel regions by default. A server runs several processes on few cores, and spinning
# threads of one starve the others: every parallel torch operation then takes milliseconds. Not spinning at all costs
# 20 to 40 us an operation. 2000 rounds are long enough to bridge the time between two products of a decode step, which
# then takes a tenth less than with 1000, and short enough to lose little beside a busy process (10000: four times as
# slow there). The variables are read once, when torch is first imported, hence here, before anything of ours can.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
os.environ.setdefault("GOMP_SPINCOUNT", "2000")

if TYPE_CHECKING:
    from .api.llm import LLM
    from .core.engine_args import EngineArgs
    from .core.grammar import StructuredOutputs
    from .core.outputs import CompletionOutput, EmbeddingOutput, Logprob, RequestOutput
    from .core.pooling_params import PoolingParams
    from .core.sampling_params import RequestOutputKind, SamplingParams
    from .engine.async_llm import AsyncLLM

_PUBLIC = {
    "LLM": ".api.llm",
    "AsyncLLM": ".engine.async_llm",
    "CompletionOutput": ".core.outputs",
    "EmbeddingOutput": ".core.outputs",
    "EngineArgs": ".core.engine_args",
    "Logprob": ".core.outputs",
    "PoolingParams": ".core.pooling_params",
    "RequestOutput": ".core.outputs",
    "RequestOutputKind": ".core.sampling_params",
    "StructuredOutputs": ".core.grammar",
    "SamplingParams": ".core.sampling_params",
}

__all__ = [
    "LLM",
    "AsyncLLM",
    "CompletionOutput",
    "EmbeddingOutput",
    "EngineArgs",
    "Logprob",
    "PoolingParams",
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
