"""``octavo serve``: the flags of the engine and of the server, put together and handed to the HTTP server."""

from dataclasses import replace
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from ..core.engine_args import EngineArgs
from .config_file import UsageError
from .server_args import ServerArgs

EngineFlags = Annotated[EngineArgs | None, Parameter(name="*", group="Engine")]
ServerFlags = Annotated[ServerArgs | None, Parameter(name="*", group="Server")]


def serve(
    model: str | None = None,
    /,
    *,
    engine: EngineFlags = None,
    server: ServerFlags = None,
    config: Annotated[Path | None, Parameter(group="Server")] = None,
) -> int:
    """Serve a model over HTTP, with OpenAI's API.

    Parameters
    ----------
    model
        A local folder, a .gguf file or a hub id. Without it, the embedded default model.
    config
        YAML file with any of these settings (max_model_len: 4096); flags win over it.
    """
    from .auth import keys_from_environment
    from .server import run_server

    server = server or ServerArgs()
    if not server.api_key:
        server = replace(server, api_key=keys_from_environment())
    server.set_up_logging()
    return run_server(with_model(engine or EngineArgs(), model), server)


def with_model(engine: EngineArgs, model: str | None) -> EngineArgs:
    """``engine`` for the MODEL given by position. Raises ``UsageError`` if ``--model`` names another."""
    if model is None:
        return engine
    if model.lower() in ("true", "false", "on", "off", "yes", "no"):
        raise UsageError(f"{model!r} would be the MODEL; a flag that is on or off takes no value: write --x or --no-x")
    if engine.model is not None and engine.model != model:
        raise UsageError(f"the model is given twice: {model!r} and --model {engine.model!r}; leave one out")
    return replace(engine, model=model)
