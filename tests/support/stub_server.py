"""``octavo serve`` with a stub engine behind it, as a program: what the life of the server is tested on.

Writes the engine's end to stderr, so that a test sees whether it was shut down.
"""

import argparse
import asyncio
import sys

from stub_engine import StubEngine

from octavo.api.server import serve_engine
from octavo.api.server_args import ServerArgs
from octavo.core.errors import EngineStartError, OctavoError
from octavo.core.logging import configure_logging


class ScriptedEngine(StubEngine):
    """A stub engine with the faults that the command line asks for."""

    load_seconds = 0.0
    die_after: float | None = None
    fail_start = False

    async def wait_ready(self) -> None:
        """Ready after ``load_seconds``, or never."""
        await asyncio.sleep(self.load_seconds)
        if self.fail_start:
            self.dead_error = EngineStartError("the engine did not start: config.json is missing")
            self.status = "dead"
            raise self.dead_error
        self.status = "ready"
        if self.die_after is not None:
            asyncio.get_running_loop().call_later(self.die_after, self.die, "the engine process was killed by signal 9")

    async def shutdown(self, drain_seconds: float = 0.0) -> None:
        """Told on stderr."""
        print("stub engine was shut down", file=sys.stderr, flush=True)


def main() -> int:
    """Runs the server as the command line asks; an error of ours is the last line, as ``octavo`` does it."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--load-seconds", type=float, default=0.0)
    parser.add_argument("--step-seconds", type=float, default=0.05)
    parser.add_argument("--die-after", type=float)
    parser.add_argument("--fail-start", action="store_true")
    parser.add_argument("--shutdown-timeout", type=float, default=2.0)
    options = parser.parse_args()
    configure_logging("api")

    def start(_loggers: object) -> ScriptedEngine:
        engine = ScriptedEngine(status="loading", context=20_000, step_seconds=options.step_seconds)
        engine.load_seconds = options.load_seconds
        engine.die_after = options.die_after
        engine.fail_start = options.fail_start
        return engine

    try:
        return serve_engine(
            start, "stub-model", ServerArgs(port=options.port, shutdown_timeout=options.shutdown_timeout)
        )
    except OctavoError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(main())
