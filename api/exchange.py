"""One HTTP request that is to generate something, from its body to its answer."""

from dataclasses import dataclass
from typing import Generic, TypeVar

import msgspec

from .open_requests import OpenRequests
from .request_log import RequestLog

T_co = TypeVar("T_co", bound=msgspec.Struct, covariant=True)


@dataclass(frozen=True, slots=True)
class Exchange(Generic[T_co]):
    """What a request asks for, and what its answer needs beside a generation. ``ServerContext.accept`` makes it."""

    asked: T_co
    headers: dict[str, str]
    """Headers of the answer, beside those of its form."""
    log: RequestLog
    open_requests: OpenRequests
