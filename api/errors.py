"""Errors of the doors themselves, beside those of ``core/errors.py``."""

from ..core.errors import EngineError


class EngineLoadingError(EngineError):
    """The model is being loaded, at the start or for another engine; 503 with Retry-After."""

    status = 503
    kind = "service_unavailable"
    code = "loading"


class ServerStoppingError(EngineError):
    """The server was told to stop; 503."""

    status = 503
    kind = "service_unavailable"
    code = "stopping"


class ClientGoneError(Exception):
    """The client closed its connection. Nobody is left to be told; the work was aborted."""
