"""``ServerArgs``: every setting of the HTTP server, once. Field, default, help and command-line flag come from here.

Settings of the model and the engine are in ``core/engine_args.py``.
"""

from dataclasses import dataclass, field
from typing import Literal

from ..core.errors import ConfigurationError


@dataclass(kw_only=True)
class ServerArgs:
    """Settings of the HTTP server. Each field is also a flag of ``octavo serve``."""

    host: str = "127.0.0.1"
    """Address to listen on. 0.0.0.0 or :: accepts connections from other machines."""

    port: int = 8000
    """Port to listen on. 0 takes a free one; the log names it."""

    served_model_name: list[str] = field(default_factory=list)
    """Names that requests may give as model; answers carry the first. Without it, the name that MODEL was given as."""

    chat_template: str | None = None
    """Jinja chat template, as a file or as text, in place of the model's own."""

    strict_fields: bool = False
    """Refuse requests with unknown fields. Without it they are ignored, and named in the log and in a header."""

    max_body_bytes: int = 32 * 1024 * 1024
    """Largest request body in bytes; a larger one is refused with status 413."""

    shutdown_timeout: float = 2.0
    """Seconds that running requests may go on after SIGTERM or Ctrl-C. What then still runs ends with an error."""

    root_path: str = ""
    """Path prefix under which a reverse proxy serves this server."""

    log_level: Literal["debug", "info", "warning", "error"] | None = None
    """Least severe messages to log. Without it, OCTAVO_LOGGING_LEVEL, else info. debug shows tracebacks too."""

    def check(self) -> None:
        """Raises ``ConfigurationError`` naming the flag of a setting that cannot be used."""
        if not 0 <= self.port <= 65535:
            raise ConfigurationError(f"--port must be between 0 and 65535, not {self.port}")
        if self.max_body_bytes < 1:
            raise ConfigurationError(f"--max-body-bytes must be at least 1, not {self.max_body_bytes}")
        if not 0.0 <= self.shutdown_timeout < 86400.0:
            raise ConfigurationError(f"--shutdown-timeout must be 0 to 86400 seconds, not {self.shutdown_timeout}")
        if any(not name.strip() for name in self.served_model_name):
            raise ConfigurationError("--served-model-name must not be empty")
