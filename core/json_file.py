"""JSON files of a model folder."""

import json
from pathlib import Path
from typing import Any

from .errors import CheckpointError


def read_json(path: Path) -> Any:
    """Any JSON value from a file. Raises ``CheckpointError`` that names the file."""
    try:
        return json.loads(path.read_bytes())
    except OSError as error:
        raise CheckpointError(f"cannot read {path}: {error.strerror}") from error
    except ValueError as error:
        raise CheckpointError(f"{path} is not valid JSON: {error}") from error


def load_json(path: Path) -> dict[str, Any]:
    """A JSON object from a file. Raises ``CheckpointError`` that names the file."""
    value = read_json(path)
    if not isinstance(value, dict):
        raise CheckpointError(f"{path} does not hold a JSON object")
    return value
