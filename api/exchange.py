"""One HTTP request that is to generate something, from its body to its answer."""

from dataclasses import dataclass

from .open_requests import OpenRequests
from .request_log import RequestLog


@dataclass(frozen=True, slots=True)
class Exchange:
    """What a request's answer needs beside a generation. ``ServerContext.accept`` makes it."""

    headers: dict[str, str]
    """Headers of the answer, beside those of its form."""
    log: RequestLog
    open_requests: OpenRequests
