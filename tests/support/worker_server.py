"""``octavo serve`` as a program, with the whole engine behind it but a worker of the tests in place of a model.

python worker_server.py WORKER EXECUTOR TOKENIZER_FOLDER SHUTDOWN_TIMEOUT API_SERVER_COUNT HANG_TIMEOUT RESTARTS
"""

import sys

import msgspec
from simulation import make_config

from octavo.api.server import serve_engine
from octavo.api.server_args import ServerArgs
from octavo.core.config import CacheConfig, ParallelConfig
from octavo.core.errors import OctavoError
from octavo.core.logging import configure_logging
from octavo.engine.async_llm import AsyncLLM
from octavo.engine.stat_logger import StatLogger
from octavo.engine.transport import make_transport


def main() -> int:
    """Serves until it is told to stop; an error of ours is the last line, as ``octavo`` does it."""
    worker, executor, folder, shutdown_timeout, count, hang_timeout, restarts = sys.argv[1:]
    configure_logging("api")
    config = msgspec.structs.replace(
        make_config(max_model_len=20_000, budget=256, vocab_size=320),
        tokenizer=folder,
        hang_timeout=float(hang_timeout),
        restarts=int(restarts),
        cache=CacheConfig(block_size=64, num_blocks=2000),
        parallel=ParallelConfig(worker=f"faulty_workers:{worker}", executor=executor),
    )

    def start(loggers: list[StatLogger]) -> AsyncLLM:
        return AsyncLLM(config, make_transport(config, True, int(count)), loggers)

    try:
        args = ServerArgs(port=0, shutdown_timeout=float(shutdown_timeout), api_server_count=int(count))
        return serve_engine(start, "counting", args)
    except OctavoError as error:
        print(f"octavo: {error}", file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(main())
