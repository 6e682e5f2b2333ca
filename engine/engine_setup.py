"""What ``LLM`` and ``AsyncLLM`` have in common: from settings to a configuration, a tokenizer, a way to an engine."""

from ..core.config import EngineConfig
from ..core.engine_args import EngineArgs
from .checkpoint.resolver import resolve_model, resolve_tokenizer
from .tokenizer import Tokenizer
from .transport import EngineTransport, make_transport


def set_up_engine(
    args: EngineArgs, multiprocess: bool = True, num_clients: int = 1
) -> tuple[EngineConfig, EngineTransport]:
    """Find the model (fetching the default one if need be), build the configuration, prepare an engine for it.

    Raises ``ConfigurationError``, before anything is loaded, for whatever is wrong with the settings or the files.
    """
    folder = resolve_model(args.model)
    tokenizer = None if args.skip_tokenizer_init else resolve_tokenizer(args.tokenizer, folder)
    config = args.build(folder, tokenizer)
    return config, make_transport(config, multiprocess, num_clients)


def load_tokenizer(config: EngineConfig) -> Tokenizer | None:
    """The configuration's tokenizer; None where none is wanted. Raises ``CheckpointError``."""
    return Tokenizer.from_folder(config.tokenizer) if config.tokenizer is not None else None
