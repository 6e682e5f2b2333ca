"""Everything Octavo raises on purpose. Each message says what happened and what to change.

OctavoError
|-- ConfigurationError            a setting at start; the process ends with this one line
|   |-- CheckpointError           model files missing, broken or not what config.json promises
|   `-- UnsupportedModelError     an architecture or feature that Octavo has no code for
|-- RequestError                  a client's request: HTTP 400 in OpenAI's shape
|   |-- ContextLengthError        the prompt, or prompt plus output, exceeds the context
|   |-- UnsupportedFieldError     a field that is known, but not offered here
|   |-- UnknownModelError         404
|   |-- BodyTooLargeError         413
|   `-- OverloadedError           429
`-- EngineError                   the engine, not the request: HTTP 5xx
    |-- EngineStartError          the engine did not come up
    |-- EngineDeadError           the engine is gone; requests in flight end with this
    `-- RequestFailedError        this one request failed inside the engine
"""

from typing import Self


class OctavoError(Exception):
    """Root of the tree. Catch this to catch everything Octavo raises on purpose."""


class ConfigurationError(OctavoError):
    """A setting is wrong or contradicts another. The message names the flag to change."""


class CheckpointError(ConfigurationError):
    """Model files are missing, broken, or differ from what ``config.json`` promises. Names the file or tensor."""


class UnsupportedModelError(ConfigurationError):
    """The model needs an architecture or a feature that Octavo does not have."""


class RequestError(OctavoError):
    """A request that cannot be served as asked.

    ``param`` names the offending field where there is one; ``status`` is the HTTP status, ``code`` OpenAI's
    machine-readable code.
    """

    status = 400
    code: str | None = None

    def __init__(self, message: str, param: str | None = None, code: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.param = param
        if code is not None:
            self.code = code

    @classmethod
    def at(cls, param: str, fault: str) -> Self:
        """What is wrong with ``param``, in a message that begins with its name."""
        return cls(f"{param} {fault}", param)


class ContextLengthError(RequestError):
    """The prompt, or the prompt plus the tokens asked for, does not fit the context."""

    code = "context_length_exceeded"

    @classmethod
    def over(cls, limit: int, detail: str, param: str) -> "ContextLengthError":
        """For a context of ``limit`` tokens, in the words by which clients tell this error from others."""
        return cls(f"this model's maximum context length is {limit} tokens; {detail}", param)


class UnsupportedFieldError(RequestError):
    """A field that the API defines and this server does not offer."""

    code = "unsupported_parameter"


class UnknownModelError(RequestError):
    """The request names a model that is not served here."""

    status = 404
    code = "model_not_found"


class BodyTooLargeError(RequestError):
    """The request body is over the configured limit."""

    status = 413
    code = "request_too_large"


class OverloadedError(RequestError):
    """Queues are full; the client may come back later."""

    status = 429
    code = "overloaded"


class EngineError(OctavoError):
    """The engine failed, not the request. With a ``code`` clients are told its message, else only that it failed."""

    status = 500
    kind = "server_error"
    code: str | None = None


class EngineStartError(EngineError):
    """The engine did not come up. The message carries the cause from the engine's process."""

    status = 503
    code = "engine_dead"


class EngineDeadError(EngineError):
    """The engine's process is gone; requests in flight end with this."""

    status = 503
    code = "engine_dead"


class RequestFailedError(EngineError):
    """One request failed inside the engine; others go on."""

    code = "request_failed"
