"""Checks and times every Triton kernel on one GPU, in one command.

    python3 tests/gpu/kernel_bench.py [--seconds 100] [--only decode,prompt,...] [--out FILE]

First, processes side by side check each family of kernels against its references and compile all variants. Then one
process for each family, one after another, times the variants, cold in cache, by graph replays, and prints for each
shape the default beside the best. A crash costs its own family only. ``--out`` gets every figure as JSON lines.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
import traceback
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "tests" / "support")]
try:
    import octavo  # noqa: F401
except ImportError:
    _folder = tempfile.mkdtemp()
    os.symlink(ROOT, Path(_folder) / "octavo")
    sys.path.insert(0, _folder)

import torch  # noqa: E402
from gpu_kernel_checks import CHECKS  # noqa: E402
from kernel_timings import TIMINGS, Call, Timing  # noqa: E402

_REPLAYS = 12
_SHARDS = {"decode": 3, "prompt": 2, "layers": 1, "sampling": 1, "vector": 6}
"""Processes that compile each family's variants, beside the one that checks it."""


def check(family: str) -> None:
    """Run a family's checks; prints each failure, and exits with 1 if there is one."""
    failed = 0
    checks = CHECKS[family]()
    for name, run in checks.items():
        torch.manual_seed(0)
        try:
            run()
        except Exception as error:  # one failure must not hide the others
            failed += 1
            if not isinstance(error, AssertionError):
                traceback.print_exc()
            print(f"FAILED {family}: {name}: {type(error).__name__}: {str(error)[:300]}", flush=True)
    print(f"checks {family}: {len(checks) - failed} of {len(checks)} right", flush=True)
    sys.exit(1 if failed else 0)


def compile_variants(family: str, shard: int, shards: int) -> None:
    """Run each variant of every ``shards``-th timing once."""
    for index, make in enumerate(TIMINGS[family]()):
        if index % shards == shard:
            for name, call in (timing := make()).variants.items():
                try:
                    call(0)
                    torch.cuda.synchronize()
                except Exception as error:
                    print(f"cannot run {timing.name} {name}: {type(error).__name__}: {str(error)[:200]}", flush=True)
            del timing
            torch.cuda.empty_cache()


def seconds_of(call: Call, copies: int) -> float:
    """Median time of one call, from replays of a graph of one call for each copy of the inputs."""
    for copy in range(copies):
        call(copy)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    repeats = max(1, 8 // copies)
    with torch.cuda.graph(graph):
        for _ in range(repeats):
            for copy in range(copies):
                call(copy)
    times = []
    for _ in range(_REPLAYS):
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        start.record()
        graph.replay()
        end.record()
        end.synchronize()
        times.append(start.elapsed_time(end) / 1e3 / (copies * repeats))
    return statistics.median(times[2:])


def rate(timing: Timing, seconds: float) -> str:
    """Achieved bandwidth or arithmetic."""
    if timing.flops:
        return f"{timing.flops / seconds / 1e12:.0f} TF"
    return f"{timing.bytes / seconds / 1e9:.0f} GB/s" if timing.bytes else ""


def measure(timing: Timing) -> dict[str, float]:
    """Microseconds of each variant that runs."""
    found: dict[str, float] = {}
    for name, call in timing.variants.items():
        try:
            found[name] = seconds_of(call, timing.copies) * 1e6
        except Exception as error:
            print(f"cannot time {timing.name} {name}: {type(error).__name__}: {str(error)[:200]}", flush=True)
    return found


def time_family(family: str, deadline: float, out: Path | None) -> None:
    """Print a line for each shape: the default, and the three best."""
    for make in TIMINGS[family]():
        if time.monotonic() > deadline:
            print(f"out of time in {family}", flush=True)
            return
        timing = make()
        found = measure(timing)
        best = sorted(found.items(), key=lambda item: item[1])
        parts = [f"{name} {us:.1f}" for name, us in best[:3]]
        given = [f"{name} {found[name]:.1f}" for name in ("cuBLAS", "torch") if name in found]
        default = found.get("default", float("nan"))
        line = [
            timing.name,
            f"default {default:.1f} us {rate(timing, default / 1e6)}",
            *given,
            "best: " + ", ".join(parts),
        ]
        print(" | ".join(line), flush=True)
        if out is not None:
            with out.open("a") as file:
                file.write(json.dumps({"name": timing.name, "bytes": timing.bytes, "flops": timing.flops, "us": found}))
                file.write("\n")
        del timing, make
        torch.cuda.empty_cache()


def start(part: str, *options: str, waits: bool = False) -> subprocess.Popen[str]:
    """This program again, for one part of the work. One that ``waits`` prints as it goes, once it is told to."""
    command = [sys.executable, __file__, "--part", part, *options]
    if waits:
        return subprocess.Popen(command, stdin=subprocess.PIPE, text=True)
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def prepare(families: list[str], limit: float) -> None:
    """Check and compile side by side, each family in processes of its own, and print what they say."""
    jobs: dict[str, subprocess.Popen[str]] = {}
    for family in families:
        works = ["check", *[f"{shard}/{_SHARDS[family]}" for shard in range(_SHARDS[family])]]
        jobs |= {f"{family}:{work}": start(f"{family}:{work}") for work in works}
    end = time.monotonic() + limit
    for name, job in jobs.items():
        try:
            output, _ = job.communicate(timeout=max(1.0, end - time.monotonic()))
        except subprocess.TimeoutExpired:
            job.kill()
            output = job.communicate()[0] + "\nstopped: out of time"
        if output.strip() or job.returncode not in (0, 1):
            print(f"[{name}: {job.returncode}] {output.strip()[-1500:]}", flush=True)


def run_part(part: str, deadline: float, out: Path | None) -> None:
    """What a process of ``start`` does."""
    family, work = part.split(":")
    if work == "check":
        check(family)
    elif work == "time":
        torch.zeros(1, device="cuda")
        if sys.stdin.readline():
            time_family(family, deadline, out)
    else:
        shard, shards = map(int, work.split("/"))
        compile_variants(family, shard, shards)


def main() -> None:
    parser = argparse.ArgumentParser(description="Check and time every Triton kernel on one GPU.", allow_abbrev=False)
    parser.add_argument("--seconds", type=float, default=100.0, help="start no timing after so many")
    parser.add_argument("--only", default=",".join(TIMINGS), help="families, separated by commas")
    parser.add_argument("--out", type=Path, help="file for every figure, as JSON lines")
    parser.add_argument("--part", help=argparse.SUPPRESS)
    parser.add_argument("--deadline", type=float, default=0.0, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.part:
        run_part(args.part, args.deadline, args.out)
        return
    begin = time.monotonic()
    families = args.only.split(",")
    options = ["--deadline", str(begin + args.seconds), *(["--out", str(args.out)] if args.out else [])]
    # They start at once, as importing takes long, and time one after another.
    timers = [start(f"{family}:time", *options, waits=True) for family in families]
    prepare(families, args.seconds * 0.6)
    print(f"checked and compiled after {time.monotonic() - begin:.0f} s", flush=True)
    for timer in timers:
        timer.communicate("go\n")
    print(f"done after {time.monotonic() - begin:.0f} s", flush=True)


if __name__ == "__main__":
    main()
