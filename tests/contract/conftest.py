"""One live ``octavo serve`` on the default model for all tests of this folder."""

import re
import subprocess
import sys
import threading
import time
from collections.abc import Iterator

import pytest
from openai import OpenAI

COMMAND = "import sys; from octavo.api.cli import main; sys.exit(main())"
FLAGS = ["--port", "0", "--dtype", "float32", "--max-model-len", "512", "--kv-cache-memory-bytes", "100000000"]


@pytest.fixture(scope="session")
def server_url() -> Iterator[str]:
    """The server's address. Its log is shown where it does not come up."""
    process = subprocess.Popen(
        # -P: the checkout holds a folder named kernels, which must not be on the path.
        [sys.executable, "-P", "-c", COMMAND, "serve", *FLAGS],
        stderr=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        text=True,
    )
    lines: list[str] = []
    reader = threading.Thread(target=lambda: lines.extend(process.stderr or ()), daemon=True)
    reader.start()
    try:
        yield _wait_ready(process, lines)
    finally:
        process.terminate()
        process.wait(20)
        reader.join(5)


def _wait_ready(process: subprocess.Popen[str], lines: list[str]) -> str:
    deadline = time.monotonic() + 240
    while time.monotonic() < deadline and process.poll() is None:
        found = re.search(r"is ready on (http\S+)", "".join(lines))
        if found:
            return found.group(1)
        time.sleep(0.05)
    raise AssertionError("the server did not get ready:\n" + "".join(lines))


@pytest.fixture
def client(server_url: str) -> OpenAI:
    """The official client."""
    return OpenAI(base_url=f"{server_url}/v1", api_key="not-needed", max_retries=0, timeout=120)
