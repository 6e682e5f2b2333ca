"""Small things that tests of ``AsyncLLM`` share."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

from octavo import AsyncLLM, SamplingParams
from octavo.core.sampling_params import RequestOutputKind

PATIENCE = 60.0
GREEDY = SamplingParams(temperature=0.0, max_tokens=12, ignore_eos=True)
LONG = SamplingParams(max_tokens=230, ignore_eos=True, output_kind=RequestOutputKind.DELTA)


def run(main: Coroutine[Any, Any, Any]) -> Any:
    """On an event loop of its own; a test that hangs fails."""

    async def limited() -> Any:
        async with asyncio.timeout(PATIENCE):
            return await main

    return asyncio.run(limited())


async def collect(engine: AsyncLLM, prompt: Any, params: SamplingParams = GREEDY, name: str | None = None) -> Any:
    return [output async for output in engine.generate(prompt, params, name)][-1]


async def settle(condition: Callable[[], bool]) -> None:
    """Let the loop go on until something is so."""
    while not condition():
        await asyncio.sleep(0.01)
