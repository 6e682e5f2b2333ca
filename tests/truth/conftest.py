"""The real model, once for all tests of this folder."""

import os
from pathlib import Path

import pytest

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")


@pytest.fixture(scope="session")
def default_model() -> Path:
    """The embedded default model, obtained as a user obtains it."""
    from octavo.engine.checkpoint.resolver import resolve_model

    return resolve_model(None, quiet=True)
