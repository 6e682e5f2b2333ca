"""Full load with aborts for some minutes: nothing may be left behind.

    python3 tests/gpu/soak.py MODEL [--seconds 180] [--clients 400] [--device cuda] [--set name=value ...]

Clients ask for random lengths with every kind of sampling; one in five leaves in the middle. At the end no request may
run or wait, every block must be free or cached as at the start, the scheduler's invariants must hold, and the device
must hold as much memory as after half of the time. Exits with 1 and says what was left if not.
"""

import argparse
import asyncio
import random
import subprocess
import sys
import time

from octavo import AsyncLLM, EngineArgs, RequestOutputKind, SamplingParams
from octavo.core.stats import FinishedRequestStats, SchedulerStats


class LastStats:
    """A ``StatLogger`` that keeps the last record and counts."""

    def __init__(self) -> None:
        self.last: SchedulerStats | None = None
        self.tokens = 0
        self.ended = 0

    def record_step(self, stats: SchedulerStats) -> None:
        self.last = stats

    def record_first_token(self, seconds: float) -> None:
        self.tokens += 1

    def record_tokens(self, count: int, seconds: float) -> None:
        self.tokens += count

    def record_finished(self, stats: FinishedRequestStats) -> None:
        self.ended += 1


def device_megabytes() -> int:
    """Memory of the first GPU that is in use; 0 without one."""
    command = ["nvidia-smi", "--query-gpu=memory.used", "--format=csv,noheader,nounits", "--id=0"]
    try:
        return int(subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()[0])
    except (OSError, subprocess.CalledProcessError):
        return 0


def random_params(chance: random.Random) -> SamplingParams:
    """Greedy, plain, filtered, penalized, with log probabilities; now and then those of the prompt, too."""
    kind = chance.randrange(5)
    common = {"max_tokens": chance.randint(1, 400), "ignore_eos": True, "detokenize": False}
    extra: dict[str, object] = [
        {"temperature": 0.0},
        {"temperature": 1.0},
        {"temperature": 0.8, "top_p": 0.9, "top_k": 50},
        {"temperature": 0.7, "repetition_penalty": 1.2, "presence_penalty": 0.5},
        {"temperature": 1.0, "logprobs": 3, "min_p": 0.05},
    ][kind]
    if chance.random() < 0.02:
        extra["prompt_logprobs"] = 1  # needs the states of every token of a step
    return SamplingParams(output_kind=RequestOutputKind.DELTA, **common, **extra)  # pyright: ignore[reportArgumentType]


async def client(llm: AsyncLLM, number: int, until: float, vocab: int) -> int:
    """Requests, one after another, until the time is over. Returns how many it left."""
    chance = random.Random(number)
    left = 0
    while time.monotonic() < until:
        ids = [chance.randrange(vocab) for _ in range(chance.randint(1, 1200))]
        leaves_after = chance.randint(0, 100) if chance.random() < 0.2 else None
        stream = llm.generate(
            {"prompt_token_ids": ids}, random_params(chance), request_id=f"{number}-{chance.random()}"
        )
        taken = 0
        async for output in stream:
            taken += len(output.outputs[0].token_ids)
            if leaves_after is not None and taken >= leaves_after:
                left += 1
                break
        await stream.aclose()
    return left


async def soak(args: argparse.Namespace, settings: dict[str, object]) -> list[str]:
    """What was left behind."""
    stats = LastStats()
    engine_args = EngineArgs(model=args.model, device=args.device, disable_log_requests=True, **settings)  # pyright: ignore[reportArgumentType]
    llm = AsyncLLM.from_engine_args(engine_args, stat_loggers=[stats])
    try:
        await llm.wait_ready()
        began = time.monotonic()
        vocab = llm.config.model.vocab_size
        clients = [asyncio.create_task(client(llm, n, began + args.seconds, vocab)) for n in range(args.clients)]
        early = 0
        while time.monotonic() < began + args.seconds:
            await asyncio.sleep(args.seconds / 9)
            now, used = time.monotonic() - began, device_megabytes()
            early = early or (used if now > args.seconds / 2 else 0)
            last = stats.last
            print(f"{now:5.0f} s: {stats.ended} requests, {stats.tokens} tokens, {used} MB, last {last}", flush=True)
        left = sum(await asyncio.gather(*clients))
        await asyncio.sleep(1.0)
        await llm.call("check_integrity")
        last, late = stats.last, device_megabytes()
        print(f"end: {stats.ended} requests, {left} left early, {stats.tokens} tokens, {late} MB, {last}")
        faults = []
        if last is None or last.num_running or last.num_waiting or last.num_free_blocks != last.num_blocks:
            faults.append(f"not all is free: {last}")
        if late > early + 64:
            faults.append(f"device memory grew from {early} to {late} MB")
        return faults
    finally:
        await llm.shutdown()


def main() -> int:
    """The exit code."""
    parser = argparse.ArgumentParser()
    parser.add_argument("model")
    parser.add_argument("--seconds", type=float, default=180.0)
    parser.add_argument("--clients", type=int, default=400)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--set", dest="settings", action="append", default=[], help="an engine setting, name=value")
    args = parser.parse_args()
    settings: dict[str, object] = {}
    for setting in args.settings:
        name, _, value = setting.partition("=")
        settings[name] = int(value) if value.isdigit() else {"true": True, "false": False}.get(value, value)
    faults = asyncio.run(soak(args, settings))
    for fault in faults:
        print(f"LEFT BEHIND: {fault}")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
