"""Models of the Hugging Face hub, through its own client and cache."""

from pathlib import Path

from ...core.errors import CheckpointError
from .progress import Progress


def hub_snapshot(name: str, files: tuple[str, ...], progress: Progress) -> Path:
    """Download the ``files`` (patterns) of the hub's model ``name``, or find them in the hub's cache.

    Raises ``CheckpointError`` where the hub is out of reach or has no such model.
    """
    # Imported here: local models need no hub client, whose import takes longer than all the rest.
    import huggingface_hub
    from huggingface_hub import errors

    progress.say(f"looking for {name} on the Hugging Face hub")
    try:
        return Path(huggingface_hub.snapshot_download(name, allow_patterns=list(files)))
    except (errors.RepositoryNotFoundError, errors.HFValidationError) as error:
        raise CheckpointError(
            f"{name} is neither a local folder nor a model on the Hugging Face hub that you may read; check the "
            "spelling, or log in with `hf auth login` if it is a private or gated one"
        ) from error
    except Exception as error:  # of its HTTP client, of a proxy's page that is no JSON, ...: whatever is in the way
        raise CheckpointError(
            f"{name} is no local folder, and the Hugging Face hub cannot be reached to download it "
            f"({type(error).__name__}: {str(error)[:200]}); check the network, or name a local folder or .gguf file"
        ) from error
