"""``ServerArgs``: every setting of the HTTP server, once. Field, default, help and command-line flag come from here.

Settings of the model and the engine are in ``core/engine_args.py``.
"""

import os
import re
from dataclasses import dataclass, field
from typing import Literal

from ..core.errors import ConfigurationError
from ..core.limits import check_least

MAX_API_SERVERS = 64
_ORIGIN = re.compile(r"[a-z][a-z0-9+.-]*://[^/\s]+")


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

    tool_call_parser: str = "auto"
    """How the model writes calls of tools: auto (by its chat template), hermes, llama3_json, mistral, pythonic,
    deepseek_v3, qwen3_coder, granite, none to refuse tools, or MODULE:CLASS for a parser of your own."""

    reasoning_parser: str = "auto"
    """How the model marks its reasoning: auto (by its chat template), qwen3, deepseek_r1, mistral, seed_oss or none."""

    strict_fields: bool = False
    """Refuse requests with unknown fields. Without it they are ignored, and named in the log and in a header."""

    max_body_bytes: int = 32 * 1024 * 1024
    """Largest request body in bytes; a larger one is refused with status 413."""

    responses_store_size: int = 1000
    """Answers of /v1/responses kept in memory for previous_response_id; the least recently used go first. 0: none."""

    responses_store_bytes: int = 64 * 1024 * 1024
    """Most bytes of those kept answers."""

    shutdown_timeout: float = 2.0
    """Seconds that running requests may go on after SIGTERM or Ctrl-C. What then still runs ends with an error."""

    root_path: str = ""
    """Path prefix under which a reverse proxy serves this server."""

    api_server_count: int = 1
    """Processes that read requests and write answers, all for one engine. More than one where that is the limit."""

    uds: str | None = None
    """Path of a Unix socket to listen on, in place of host and port."""

    api_key: list[str] = field(default_factory=list, repr=False)
    """Keys of which requests must carry one. Without it, OCTAVO_API_KEY; without that, none is needed."""

    metrics_without_key: bool = False
    """Let /metrics be read without a key, for a scraper that has none."""

    allowed_origins: list[str] = field(default_factory=list)
    """Web origins whose pages may use this server (CORS), like https://chat.example; * stands for all."""

    allowed_methods: list[str] = field(default_factory=lambda: ["*"])
    """Methods that those pages may use."""

    allowed_headers: list[str] = field(default_factory=lambda: ["*"])
    """Headers that those pages may send."""

    allow_credentials: bool = False
    """Let those pages send cookies."""

    ssl_certfile: str | None = None
    """TLS certificate with its chain, as a PEM file. With it the server speaks HTTPS."""

    ssl_keyfile: str | None = None
    """Private key of the certificate, as a PEM file. Without it, the key is looked for in ssl_certfile."""

    ssl_ca_certs: str | None = None
    """Authorities, as a PEM file, one of which must have signed the certificate that every client then needs."""

    max_queued_requests: int = 4096
    """Most completions that may wait for their turn beside those that run (max_num_seqs); beyond it, status 429."""

    log_format: Literal["text", "json"] | None = None
    """Log lines as text, or each as one JSON object. Without it, OCTAVO_LOGGING_FORMAT, else text."""

    otlp_endpoint: str | None = None
    """OpenTelemetry collector that gets one trace per request, like http://localhost:4318. Needs the extra 'otel'."""

    log_level: Literal["debug", "info", "warning", "error"] | None = None
    """Least severe messages to log. Without it, OCTAVO_LOGGING_LEVEL, else info. debug shows tracebacks too."""

    def check(self) -> None:
        """Raises ``ConfigurationError`` naming the flag of a setting that cannot be used."""
        if not 0 <= self.port <= 65535:
            raise ConfigurationError(f"--port must be between 0 and 65535, not {self.port}")
        if not 1 <= self.api_server_count <= MAX_API_SERVERS:
            raise ConfigurationError(
                f"--api-server-count must be between 1 and {MAX_API_SERVERS}, not {self.api_server_count}"
            )
        check_least(self, max_body_bytes=1, responses_store_size=0, responses_store_bytes=1, max_queued_requests=0)
        if not 0.0 <= self.shutdown_timeout < 86400.0:
            raise ConfigurationError(f"--shutdown-timeout must be 0 to 86400 seconds, not {self.shutdown_timeout}")
        if any(not name.strip() for name in self.served_model_name):
            raise ConfigurationError("--served-model-name must not be empty")
        self._check_parsers()
        if self.root_path and not self.root_path.startswith("/"):
            raise ConfigurationError(f"--root-path must begin with '/', not {self.root_path!r}")
        for origin in self.allowed_origins:
            if origin != "*" and not _ORIGIN.fullmatch(origin):
                raise ConfigurationError(
                    f"--allowed-origins {origin!r} is no origin: write scheme://host or scheme://host:port, or *"
                )
        if self.ssl_certfile is None and (self.ssl_keyfile or self.ssl_ca_certs):
            raise ConfigurationError("--ssl-keyfile and --ssl-ca-certs need --ssl-certfile")

    def _check_parsers(self) -> None:
        # Imported here: they need libraries that would hold up --help.
        from .reasoning import reasoning_format
        from .tools.registry import tool_parser_class

        tool_parser_class(self.tool_call_parser, "")
        reasoning_format(self.reasoning_parser, "")

    def set_up_logging(self) -> None:
        """Level and format of this process's log and, through the environment, of the engine's processes."""
        from ..core.logging import configure_logging

        if self.log_level is not None:
            os.environ["OCTAVO_LOGGING_LEVEL"] = self.log_level.upper()
        if self.log_format is not None:
            os.environ["OCTAVO_LOGGING_FORMAT"] = self.log_format
        configure_logging("api")
