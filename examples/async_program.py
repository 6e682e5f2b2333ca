"""Several streams inside one asyncio program, without HTTP: ``python examples/async_program.py [MODEL]``."""

import asyncio
import sys

from octavo import AsyncLLM, EngineArgs, RequestOutputKind, SamplingParams

PROMPTS = {"river": "The river begins in", "paper": "Paper is made of", "moon": "The moon looks"}


async def follow(llm: AsyncLLM, name: str, prompt: str) -> None:
    """Prints each piece of one continuation as it comes; the streams mix, since they run at the same time."""
    params = SamplingParams(temperature=0.3, seed=7, max_tokens=24, output_kind=RequestOutputKind.DELTA)
    async for output in llm.generate(prompt, params, request_id=name):
        print(f"{name:6} {output.outputs[0].text!r}")


async def main() -> None:
    """Starts the engine, follows all prompts at once, and ends the engine."""
    args = EngineArgs(model=sys.argv[1] if len(sys.argv) > 1 else None, max_model_len=1024)
    llm = AsyncLLM.from_engine_args(args)
    try:
        await llm.wait_ready()
        await asyncio.gather(*(follow(llm, name, prompt) for name, prompt in PROMPTS.items()))
    finally:
        await llm.shutdown(drain_seconds=0.0)


# The engine runs in a process of its own that imports this file anew: only the first may start one.
if __name__ == "__main__":
    asyncio.run(main())
